//! A breadth-first search over every state that a model can reach.
//!
//! A state is remembered by a 128-bit fingerprint. Convergence is checked from every state: the undisturbed steps, in
//! which everything answers and nobody interferes, must lead to a good end.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::DefaultHasher},
    fmt::Debug,
    hash::{Hash, Hasher},
};

/// A world with an operator in it.
pub trait Model: Clone + Debug + Hash {
    /// Everything that can happen next, with a name.
    fn successors(&self) -> Vec<(String, Self)>;

    /// The next step when everything answers and nobody interferes. None: the world is at rest.
    fn undisturbed(&self) -> Option<Self>;

    /// What must hold in every state.
    fn always(&self) -> Result<(), String>;

    /// What must hold at rest.
    fn at_rest(&self) -> Result<(), String>;
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct Outcome {
    pub states: usize,
    pub steps: usize,
    /// The length of the longest shortest way to a state.
    pub depth: u32,
    /// What was violated, with the steps that led there.
    pub failure: Option<String>,
}

type Fingerprint = u128;

struct Visit {
    from: Fingerprint,
    depth: u32,
    step: String,
}

/// The most undisturbed steps to rest. A world that needs more counts as one that never rests.
const MAX_STEPS_TO_REST: usize = 120;

/// A search that does not end within so many states has lost its bounds.
const MAX_STATES: usize = 200_000;

/// Visits every state that `first` leads to, and stops at the first violation.
pub fn search<M: Model>(first: M) -> Outcome {
    let mut outcome = Outcome::default();
    let root = fingerprint(&first);
    let mut visited = HashMap::from([(root, Visit { from: root, depth: 0, step: String::new() })]);
    let mut converging = HashSet::new();
    let mut queue = VecDeque::from([(first, root)]);
    while let Some((world, here)) = queue.pop_front() {
        let depth = visited.get(&here).map_or(0, |visit| visit.depth);
        outcome.states += 1;
        outcome.depth = outcome.depth.max(depth);
        if outcome.states > MAX_STATES {
            outcome.failure = Some(format!("more than {MAX_STATES} states:\n{}", way(&visited, here)));
            return outcome;
        }
        if let Err(why) = world.always().and_then(|()| converges(&world, here, &mut converging)) {
            outcome.failure = Some(format!("{why}\n{}\nin {world:#?}", way(&visited, here)));
            return outcome;
        }
        for (step, next) in world.successors() {
            outcome.steps += 1;
            let there = fingerprint(&next);
            visited.entry(there).or_insert_with(|| {
                queue.push_back((next, there));
                Visit { from: here, depth: depth + 1, step }
            });
        }
    }
    outcome
}

/// Whether undisturbed steps lead to a good end. States on the way are remembered, so that each is followed once.
fn converges<M: Model>(
    world: &M,
    here: Fingerprint,
    converging: &mut HashSet<Fingerprint>,
) -> Result<(), String> {
    let (mut world, mut last) = (world.clone(), here);
    let mut steps = Vec::new();
    while !converging.contains(&last) {
        steps.push(last);
        if steps.len() > MAX_STEPS_TO_REST {
            return Err(format!("never at rest: {world:?}"));
        }
        let Some(next) = world.undisturbed() else {
            world.at_rest().map_err(|why| format!("at rest: {why}: {world:?}"))?;
            break;
        };
        next.always().map_err(|why| format!("undisturbed: {why}"))?;
        (world, last) = (next.clone(), fingerprint(&next));
    }
    converging.extend(steps);
    Ok(())
}

fn fingerprint<M: Model>(world: &M) -> Fingerprint {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn way(visited: &HashMap<Fingerprint, Visit>, mut here: Fingerprint) -> String {
    let mut steps = Vec::new();
    while let Some(visit) = visited.get(&here).filter(|visit| visit.depth > 0) {
        steps.push(format!("{}. {}", visit.depth, visit.step));
        here = visit.from;
    }
    steps.reverse();
    steps.join("\n")
}
