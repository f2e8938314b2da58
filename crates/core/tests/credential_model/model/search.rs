//! The search: breadth first over every state that a model can reach, with a set of 128-bit fingerprints.
//!
//! A library for this would bring its own notion of actors and a web server. A queue, a set and the way to each state are
//! enough, and they let convergence be checked cheaply: a state is good if its next undisturbed step leads to a good state.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::DefaultHasher, hash_map::Entry},
    fmt::Debug,
    hash::{Hash, Hasher},
};

/// A protocol with everything around it.
pub trait Machine {
    /// A state: the object, its Secrets and pods, every coderd, and what is under way.
    type World: Clone + Debug + Hash;

    /// The state in which the search starts.
    fn begin(&self) -> Result<Self::World, String>;
    /// Everything that can happen next, with a name.
    fn successors(&self, world: &Self::World) -> Vec<(String, Self::World)>;
    /// The next step when nobody disturbs: everything answers, everything works, and time passes.
    fn undisturbed(&self, world: &Self::World) -> Option<Self::World>;
    /// Checks what must hold in every state.
    fn always(&self, world: &Self::World) -> Result<(), String>;
    /// Checks what must hold when no undisturbed step is left.
    fn at_the_end(&self, world: &Self::World) -> Result<(), String>;
}

/// The result of a search.
#[derive(Debug)]
pub struct Report {
    /// Distinct states.
    pub states: usize,
    /// Transitions that were tried.
    pub steps: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// The first property that does not hold, with the way to the state.
    pub failure: Option<String>,
}

type Print = u128;

/// Undisturbed steps after which a model counts as never coming to rest.
const CONVERGENCE_LIMIT: usize = 100;

struct Visited {
    /// For each state: the state before it, its depth, and the step between them.
    from: HashMap<Print, (Print, u32, String)>,
    /// States from which undisturbed steps lead to a good end.
    good: HashSet<Print>,
}

/// Searches everything that can happen within the machine's limits, up to the first failure.
pub fn search<M: Machine>(machine: &M) -> Report {
    let mut report = Report { states: 0, steps: 0, depth: 0, failure: None };
    let first = match machine.begin() {
        Ok(first) => first,
        Err(why) => return Report { failure: Some(why), ..report },
    };
    let mut visited = Visited { from: HashMap::new(), good: HashSet::new() };
    let root = print(&first);
    visited.from.insert(root, (root, 0, String::new()));
    let mut queue = VecDeque::from([(first, root)]);
    while let Some((world, here)) = queue.pop_front() {
        report.states += 1;
        let depth = visited.from.get(&here).map_or(0, |(_, depth, _)| *depth);
        report.depth = report.depth.max(depth as usize);
        let checked =
            machine.always(&world).and_then(|()| converges(machine, &world, here, &mut visited.good));
        if let Err(why) = checked {
            report.failure = Some(format!("{}\n{why}\nafter: {world:?}", way(&visited, here)));
            return report;
        }
        for (name, next) in machine.successors(&world) {
            report.steps += 1;
            let there = print(&next);
            if let Entry::Vacant(free) = visited.from.entry(there) {
                free.insert((here, depth + 1, name));
                queue.push_back((next, there));
            }
        }
    }
    report
}

/// Follows undisturbed steps to the end, or to a state that is known to be good.
fn converges<M: Machine>(
    machine: &M,
    world: &M::World,
    here: Print,
    good: &mut HashSet<Print>,
) -> Result<(), String> {
    let mut way = vec![here];
    let mut world = world.clone();
    loop {
        let last = way.last().copied().unwrap_or(here);
        if good.contains(&last) {
            break;
        }
        if way.len() > CONVERGENCE_LIMIT {
            return Err(format!("does not converge: {world:?}"));
        }
        let Some(next) = machine.undisturbed(&world) else {
            machine.at_the_end(&world).map_err(|why| format!("in the end: {why}: {world:?}"))?;
            break;
        };
        way.push(print(&next));
        world = next;
        machine.always(&world).map_err(|why| format!("{why}, undisturbed: {world:?}"))?;
    }
    good.extend(way);
    Ok(())
}

fn print<W: Hash>(world: &W) -> Print {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn way(visited: &Visited, mut here: Print) -> String {
    let mut steps = Vec::new();
    while let Some((from, depth, name)) = visited.from.get(&here) {
        if *depth == 0 {
            break;
        }
        steps.push(format!("{depth}. {name}"));
        here = *from;
    }
    steps.reverse();
    steps.join("\n")
}
