//! The search.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
};

use super::{
    act::{How, act, observe},
    environment::{arrive, can_start, can_stop, happenings, start, stop},
    observe::{Circumstances, Flaw, REACHES, Reach},
    properties::{always, at_the_end},
    world::{Limits, Phase, Start, World, checksums},
};

/// What a search came to.
#[derive(Debug)]
pub struct Report {
    /// Different states that were reached.
    pub states: usize,
    /// Steps that were tried.
    pub steps: usize,
    /// The longest way to a state that no shorter way leads to.
    pub depth: usize,
    /// What was found wrong, and how it came about.
    pub failure: Option<String>,
}

type Print = u128;

struct ObservedKeys {
    /// How deep a state is, and the state and step that led to it.
    from: HashMap<Print, (Print, u32, String)>,
    /// States that undisturbed steps lead to a good end from.
    good: HashSet<Print>,
}

/// Searches everything that can happen within the limits.
pub fn search(limits: &Limits, flaw: Option<Flaw>) -> Report {
    let mut report = Report { states: 0, steps: 0, depth: 0, failure: None };
    let first = match begin(limits) {
        Ok(first) => first,
        Err(why) => return Report { failure: Some(why), ..report },
    };
    let mut observed = ObservedKeys { from: HashMap::new(), good: HashSet::new() };
    let root = print(&first);
    observed.from.insert(root, (root, 0, String::new()));
    let mut queue = VecDeque::from([(first, root)]);
    while let Some((world, here)) = queue.pop_front() {
        report.states += 1;
        let depth = observed.from.get(&here).map_or(0, |(_, depth, _)| *depth);
        report.depth = report.depth.max(depth as usize);
        let checked = always(&world, limits).and_then(|()| converges(&world, here, flaw, &mut observed.good));
        if let Err(why) = checked {
            report.failure = Some(format!("{}\n{why}\nafter: {world:?}", way(&observed, here)));
            return report;
        }
        for (name, next) in successors(&world, limits, flaw) {
            report.steps += 1;
            let there = print(&next);
            if let std::collections::hash_map::Entry::Vacant(free) = observed.from.entry(there) {
                free.insert((here, depth + 1, name));
                queue.push_back((next, there));
            }
        }
    }
    report
}

/// The first state of a search.
fn begin(limits: &Limits) -> Result<World, String> {
    let mut world = World::new(limits);
    if limits.start == Start::New {
        return Ok(world);
    }
    while let Some(next) = undisturbed(&world, None) {
        world = next;
    }
    if limits.start == Start::TakenOver {
        for stored in world.secrets.iter_mut().flatten() {
            stored.marks = None;
        }
        if let Some(key) = &mut world.record.current {
            key.place.deployment_id = None;
        }
        let held = world.pods.first().map(|pod| pod.held).ok_or("the pool does not come up")?;
        let [_, existing] = checksums(held).ok_or("the pool does not come up")?;
        for run in world.deployment.iter_mut().chain(world.pods.iter_mut().map(|pod| &mut pod.run)) {
            run.checksum.clone_from(&existing);
        }
    }
    Ok(world)
}

fn successors(world: &World, limits: &Limits, flaw: Option<Flaw>) -> Vec<(String, World)> {
    let mut all = Vec::new();
    let at_rest = limits.sequential && undisturbed(world, flaw).is_none();
    all.extend(happenings(world, limits, at_rest));
    if world.phase == Phase::Gone {
        return all;
    }
    if world.flight.is_some() {
        for how in [How::Well, How::Lost, How::Late, How::Dropped] {
            all.extend(
                act(world, how, flaw).map(|next| (format!("effect: {how:?} {:?}", world.flight), next)),
            );
        }
        return all;
    }
    let half_made = world.record.stale.iter().any(|stale| stale.key.id.is_none());
    let time_matters = half_made || (world.phase != Phase::Alive && world.record.pending.is_some());
    for reach in REACHES {
        for late in [false, true] {
            // A request that is under way ends long before the deadlines of the protocol.
            if late && (world.late.is_some() || !time_matters) {
                continue;
            }
            let how = Circumstances { reach, late, verify: true, flaw };
            all.extend(observe(world, how).map(|next| (format!("pass: {reach:?}, late {late}"), next)));
        }
    }
    all
}

/// The next step when nobody disturbs: everything answers, everything works, and time passes.
fn undisturbed(world: &World, flaw: Option<Flaw>) -> Option<World> {
    let mut next = world.clone();
    if world.phase == Phase::Gone {
        return None;
    }
    if world.late.is_some() {
        arrive(&mut next);
        return Some(next);
    }
    if world.flight.is_some() {
        return act(world, How::Well, flaw);
    }
    let how = Circumstances { reach: Reach::All, late: true, verify: true, flaw };
    if let Some(next) = observe(world, how) {
        return Some(next);
    }
    if can_start(world) {
        start(&mut next);
        return Some(next);
    }
    if can_stop(world) {
        stop(&mut next);
        return Some(next);
    }
    None
}

/// Whether undisturbed steps lead to a good end. States on the way are remembered.
fn converges(
    world: &World,
    here: Print,
    flaw: Option<Flaw>,
    good: &mut HashSet<Print>,
) -> Result<(), String> {
    let mut way = vec![here];
    let mut world = world.clone();
    loop {
        let last = way.last().copied().unwrap_or(here);
        if good.contains(&last) {
            break;
        }
        if way.len() > 100 {
            return Err(format!("does not converge: {world:?}"));
        }
        let Some(next) = undisturbed(&world, flaw) else {
            let how = Circumstances { reach: Reach::All, late: true, verify: true, flaw };
            at_the_end(&world, how).map_err(|why| format!("in the end: {why}: {world:?}"))?;
            break;
        };
        way.push(print(&next));
        world = next;
        if let Some(violation) = world.violation {
            return Err(format!("{violation}, undisturbed: {world:?}"));
        }
    }
    good.extend(way);
    Ok(())
}

fn print(world: &World) -> Print {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn way(observed: &ObservedKeys, mut here: Print) -> String {
    let mut steps = Vec::new();
    while let Some((from, depth, name)) = observed.from.get(&here) {
        if *depth == 0 {
            break;
        }
        steps.push(format!("{depth}. {name}"));
        here = *from;
    }
    steps.reverse();
    steps.join("\n")
}
