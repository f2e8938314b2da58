//! The effects of an operator: every request that changes something outside of it, numbered as it passes a proxy.
//!
//! A [`Ledger`] is shared by the proxies of a case. It knows each effect by what it does, such as
//! `create deployments coder`, and how often the same was done before, because the order of effects is not the same in each
//! run. It decides which fault an effect meets, and kills the operator.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// How late an effect arrives at most when effects are shuffled.
const SHUFFLED_MILLIS: u64 = 60;

/// What happens to an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operator is killed before the request reaches the server.
    KilledBefore,
    /// The operator is killed after the server has done it, before it learns of that.
    KilledAfter,
    /// The server does it, and the connection breaks before the response.
    ReplyLost,
    /// The connection breaks before the request reaches the server.
    Dropped,
    /// The server is not asked: the response has this status.
    Answered(u16),
    /// The request arrives late.
    Delayed(Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KilledBefore => write!(f, "killed-before"),
            Self::KilledAfter => write!(f, "killed-after"),
            Self::ReplyLost => write!(f, "reply-lost"),
            Self::Dropped => write!(f, "dropped"),
            Self::Answered(code) => write!(f, "answered-{code}"),
            Self::Delayed(time) => write!(f, "delayed-{}ms", time.as_millis()),
        }
    }
}

/// An effect by what it does and how often that was done before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub name: String,
    pub ordinal: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.ordinal)
    }
}

/// Which effect meets a fault.
#[derive(Clone, Debug)]
pub enum Trap {
    /// This one.
    At(Point, Fault),
    /// The one of this number, counted from the moment that the trap is the first.
    Next(usize, Fault),
    /// So many from now on, each with one of these faults, by chance.
    Storm { faults: Vec<Fault>, left: usize, percent: u8, seed: u64 },
}

/// What an effect was and what became of it.
#[derive(Clone, Debug)]
pub struct Record {
    pub point: Point,
    /// The status of the response. None: the server was not asked, or did not answer.
    pub code: Option<u16>,
    pub fault: Option<Fault>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code.map_or_else(|| "no answer".to_owned(), |code| code.to_string());
        write!(f, "{} -> {code}", self.point)?;
        self.fault.map_or(Ok(()), |fault| write!(f, "  ** {fault} **"))
    }
}

/// All effects of a case.
pub struct Ledger {
    state: Mutex<State>,
}

struct State {
    records: Vec<Record>,
    counts: BTreeMap<String, usize>,
    traps: VecDeque<Trap>,
    victim: Option<Pid>,
    last: Instant,
    hits: Vec<(Point, Fault)>,
    judge: Option<Judge>,
    violations: Vec<String>,
    /// Effects of this name happen by the clock, and are none.
    ignored: Option<String>,
    /// Delays every effect that meets no fault by a short time.
    shuffle: Option<fastrand::Rng>,
}

/// Looks at the servers after each effect. Returns what must never be.
pub type Judge = Box<dyn Fn() -> Option<String> + Send>;

impl Default for Ledger {
    fn default() -> Self {
        let state = State {
            records: Vec::new(),
            counts: BTreeMap::new(),
            traps: VecDeque::new(),
            victim: None,
            last: Instant::now(),
            hits: Vec::new(),
            judge: None,
            violations: Vec::new(),
            ignored: None,
            shuffle: None,
        };
        Self { state: Mutex::new(state) }
    }
}

impl Ledger {
    /// Forgets the effects so far, and lays traps for those that follow. One trap after the other: the second waits until the
    /// first was met.
    pub fn begin(&self, traps: Vec<Trap>) {
        let mut state = self.state.lock();
        state.records.clear();
        state.counts.clear();
        state.hits.clear();
        state.traps = traps.into();
        state.last = Instant::now();
    }

    /// From now on, each effect that meets no fault arrives a little late, by chance: effects that happen side by side
    /// happen in another order.
    pub fn shuffle(&self, seed: u64) {
        self.state.lock().shuffle = Some(fastrand::Rng::with_seed(seed));
    }

    /// Names the process that a fault kills.
    pub fn aim(&self, process: u32) {
        self.state.lock().victim = i32::try_from(process).ok().and_then(Pid::from_raw);
    }

    /// Kills it, if it has not been killed.
    pub fn kill(&self) {
        if let Some(victim) = self.state.lock().victim.take() {
            let _ = kill_process(victim, Signal::KILL);
        }
    }

    /// Lets what has this name pass, as if it were no effect.
    pub fn ignore(&self, name: &str) {
        self.state.lock().ignored = Some(name.to_owned());
    }

    /// Notes an effect that is about to happen. Returns its number, and the fault that it meets.
    pub fn enter(&self, name: String) -> (usize, Option<Fault>) {
        let mut state = self.state.lock();
        if state.ignored.as_ref() == Some(&name) {
            return (usize::MAX, None);
        }
        let count = state.counts.entry(name.clone()).or_default();
        let point = Point { name, ordinal: *count };
        *count += 1;
        state.last = Instant::now();
        let fault = state.meet(&point);
        if let Some(fault) = fault {
            state.hits.push((point.clone(), fault));
        }
        state.records.push(Record { point, code: None, fault });
        let late = state.shuffle.as_mut().map(|chance| Duration::from_millis(chance.u64(..SHUFFLED_MILLIS)));
        (state.records.len() - 1, fault.or(late.map(Fault::Delayed)))
    }

    /// Notes how the server responded.
    pub fn leave(&self, number: usize, code: u16) {
        let mut state = self.state.lock();
        let Some(record) = state.records.get_mut(number) else { return };
        record.code = Some(code);
        state.last = Instant::now();
        let violation = state.judge.as_ref().and_then(|judge| judge());
        let point = state.records.get(number).map(|record| record.point.to_string()).unwrap_or_default();
        state.violations.extend(violation.map(|violation| format!("after {point}: {violation}")));
    }

    /// Has every effect from now on judged.
    pub fn judge_by(&self, judge: Judge) {
        self.state.lock().judge = Some(judge);
    }

    /// What was found that must never be.
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    /// How long nothing has happened.
    pub fn quiet_for(&self) -> Duration {
        self.state.lock().last.elapsed()
    }

    /// Whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.state.lock().records.is_empty()
    }

    /// The effects so far.
    pub fn records(&self) -> Vec<Record> {
        self.state.lock().records.clone()
    }

    /// The faults that were met.
    pub fn hits(&self) -> Vec<(Point, Fault)> {
        self.state.lock().hits.clone()
    }
}

impl State {
    fn meet(&mut self, point: &Point) -> Option<Fault> {
        let (fault, is_spent) = match self.traps.front_mut()? {
            Trap::At(at, fault) => (*at == *point).then_some((*fault, true))?,
            Trap::Next(0, fault) => (*fault, true),
            Trap::Next(left, _) => {
                *left -= 1;
                return None;
            }
            Trap::Storm { faults, left, percent, seed } => {
                let mut chance = fastrand::Rng::with_seed(*seed);
                *seed = chance.u64(..);
                let is_hit = chance.u8(..100) < *percent;
                let fault = chance.choice(faults.iter()).copied().filter(|_| is_hit);
                *left -= usize::from(fault.is_some());
                (fault?, *left == 0)
            }
        };
        if is_spent {
            self.traps.pop_front();
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, ordinal: usize) -> Point {
        Point { name: name.to_owned(), ordinal }
    }

    #[test]
    fn an_effect_is_known_by_what_it_does_whatever_happens_between() {
        let ledger = Ledger::default();
        ledger.begin(vec![Trap::At(point("create a", 1), Fault::KilledAfter)]);
        assert_eq!(ledger.enter("create a".to_owned()).1, None);
        assert_eq!(ledger.enter("create b".to_owned()).1, None);
        assert_eq!(ledger.enter("create a".to_owned()).1, Some(Fault::KilledAfter));
        assert_eq!(ledger.enter("create a".to_owned()).1, None, "once");
        assert_eq!(ledger.hits(), [(point("create a", 1), Fault::KilledAfter)]);
    }

    #[test]
    fn a_second_trap_waits_for_the_first() {
        let ledger = Ledger::default();
        let kill = Fault::KilledBefore;
        ledger.begin(vec![Trap::Next(1, kill), Trap::Next(0, kill)]);
        let met: Vec<_> = (0..4).map(|_| ledger.enter("patch".to_owned()).1.is_some()).collect();
        assert_eq!(met, [false, true, true, false]);
    }

    #[test]
    fn a_storm_ends_and_is_the_same_for_a_seed() {
        let storm = |seed| {
            let ledger = Ledger::default();
            let faults = vec![Fault::Answered(409), Fault::Answered(500)];
            ledger.begin(vec![Trap::Storm { faults, left: 6, percent: 50, seed }]);
            (0..100).map(|_| ledger.enter("patch".to_owned()).1).collect::<Vec<_>>()
        };
        assert_eq!(storm(1).iter().flatten().count(), 6);
        assert_eq!(storm(1), storm(1));
        assert_ne!(storm(1), storm(2));
    }

    #[test]
    fn shuffled_effects_are_late_and_meet_no_fault() {
        let ledger = Ledger::default();
        ledger.begin(Vec::new());
        ledger.shuffle(1);
        let (number, fault) = ledger.enter("patch".to_owned());
        assert!(matches!(fault, Some(Fault::Delayed(_))), "{fault:?}");
        assert!(ledger.records()[number].fault.is_none() && ledger.hits().is_empty());
    }

    #[test]
    fn what_must_never_be_is_kept_with_the_effect_after_which_it_was() {
        let ledger = Ledger::default();
        ledger.begin(Vec::new());
        ledger.judge_by(Box::new(|| Some("two keys too many".to_owned())));
        let (number, _) = ledger.enter("create key".to_owned());
        ledger.leave(number, 201);
        assert_eq!(ledger.violations(), ["after create key#0: two keys too many"]);
        assert_eq!(ledger.records()[0].to_string(), "create key#0 -> 201");
    }
}
