//! One case: a scenario, what goes wrong in it, and how it ends.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::sync::{mpsc, watch};

use crate::{
    effect::{Fault, Point, Record, Trap},
    scenario::Scenario,
    snapshot::Snapshot,
    stage::Stage,
};

/// How long a case may take to end as it should, from its change on: longer than what a few failures in a row delay.
const CONVERGE_WITHIN: Duration = Duration::from_secs(150);
/// How long nothing may happen for a case to be at rest. In a reference, which nothing is compared with, it is longer.
const QUIET: Duration = Duration::from_millis(900);
const QUIET_REFERENCE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(100);
/// How long events are held, and how long a leader is stopped: longer than its lease.
const HELD: Duration = Duration::from_secs(4);
const STOPPED: Duration = Duration::from_secs(7);

/// How a leader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderEnd {
    Killed,
    Terminated,
    /// Stopped until after its lease has expired, and then continued.
    Frozen,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Disruption {
    /// Nothing: its end is what the others are compared with.
    None,
    /// An effect meets a fault. With a seed, all effects arrive in another order than usual.
    Crash { point: Point, fault: Fault, shuffled: Option<u64> },
    /// The operator is killed at one effect, and its successor at one of its first.
    Twice { first: usize, second: usize, after: bool },
    /// Some effects fail by chance.
    Storm { code: u16, seed: u64 },
    /// Events of a resource come late, or only the last of each object.
    Stale { resource: &'static str, thinned: bool },
    /// Watches of a resource begin again from before the change.
    Replay { resource: &'static str },
    /// All watches are cut when an effect happens.
    Cut { at: usize },
    /// The leader ends at an effect; another instance stands by.
    Failover { end: LeaderEnd, at: usize },
    /// The API server or etcd is killed and started again right after the change, for all cases of a round.
    Restart(Component),
}

/// What is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    ApiServer,
    Etcd,
}

/// How the cases of a round change what they change at the same time.
pub struct Round {
    /// Told when a case is prepared, and again when it has changed something.
    pub told: mpsc::UnboundedSender<()>,
    pub go: watch::Receiver<bool>,
}

impl fmt::Display for Disruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "none"),
            Self::Crash { point, fault, shuffled: None } => write!(f, "{fault}: {point}"),
            Self::Crash { point, fault, shuffled: Some(seed) } => {
                write!(f, "{fault}, shuffled by {seed}: {point}")
            }
            Self::Twice { first, second, after } => {
                write!(f, "twice-{}: {first} {second}", if *after { "after" } else { "before" })
            }
            Self::Storm { code: 0, seed } => write!(f, "storm-mixed: {seed}"),
            Self::Storm { code, seed } => write!(f, "storm-{code}: {seed}"),
            Self::Stale { resource, thinned: false } => write!(f, "held: {resource}"),
            Self::Stale { resource, thinned: true } => write!(f, "unobserved: {resource}"),
            Self::Replay { resource } => write!(f, "replayed: {resource}"),
            Self::Cut { at } => write!(f, "watches-cut: {at}"),
            Self::Failover { end, at } => {
                let end = match end {
                    LeaderEnd::Killed => "killed",
                    LeaderEnd::Terminated => "terminated",
                    LeaderEnd::Frozen => "frozen",
                };
                write!(f, "leader-{end}: {at}")
            }
            Self::Restart(Component::ApiServer) => write!(f, "restarted: kube-apiserver"),
            Self::Restart(Component::Etcd) => write!(f, "restarted: etcd"),
        }
    }
}

impl Disruption {
    /// The disruption of a name that holds all there is to know about it. None: a crash, whose effect a reference knows, or no
    /// name of a disruption.
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, of) = name.split_once(": ")?;
        let twice = |after| {
            let (first, second) = of.split_once(' ')?;
            Some(Self::Twice { first: first.parse().ok()?, second: second.parse().ok()?, after })
        };
        let failover = |end| Some(Self::Failover { end, at: of.parse().ok()? });
        match kind {
            "twice-after" => twice(true),
            "twice-before" => twice(false),
            "watches-cut" => Some(Self::Cut { at: of.parse().ok()? }),
            "leader-killed" => failover(LeaderEnd::Killed),
            "leader-terminated" => failover(LeaderEnd::Terminated),
            "leader-frozen" => failover(LeaderEnd::Frozen),
            "storm-mixed" => Some(Self::Storm { code: 0, seed: of.parse().ok()? }),
            _ => {
                let code = kind.strip_prefix("storm-")?.parse().ok()?;
                Some(Self::Storm { code, seed: of.parse().ok()? })
            }
        }
    }
}

/// How a case that ended well did.
#[derive(Debug)]
pub struct Outcome {
    pub records: Vec<Record>,
    pub end: Snapshot,
    /// Whether the fault was met at all.
    pub reached: bool,
    /// How often the operator ended.
    pub ends: usize,
}

/// Why a case failed, with its story.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    pub story: String,
}

/// Plays a case. `reference` is how it should end; there is none for the case that finds that out.
pub async fn play(
    scenario: &'static Scenario,
    disruption: &Disruption,
    reference: Option<&(Snapshot, BTreeMap<String, usize>)>,
    mut round: Option<Round>,
) -> Result<Outcome, Failure> {
    let elects = matches!(disruption, Disruption::Failover { .. });
    let stage = Stage::new(scenario.name, scenario.needs, elects).await;
    if !scenario.needs.late {
        stage.start();
    }
    let prepare = async {
        (scenario.prepare)(&stage).await;
        settle(&stage).await;
    };
    tokio::select! {
        () = prepare => {}
        // On an overloaded machine an instance may lose its lease, and ends.
        () = keep_running(&stage), if elects && !scenario.needs.late => {}
    }
    let before = newest_version(&stage).await;
    stage.ledger.begin(traps(disruption));
    match disruption {
        Disruption::Crash { shuffled: Some(seed), .. } => stage.ledger.shuffle(*seed),
        Disruption::Stale { resource, .. } => stage.api.hold(resource),
        Disruption::Failover { .. } if !scenario.needs.late => {
            stage.start();
            // Faults are for the leader.
            stage.with_operator(0, |leader| stage.ledger.aim(leader.pid()));
        }
        _ => {}
    }
    if let Some(Round { told, go }) = &mut round {
        let _ = told.send(());
        let _ = go.wait_for(|go| *go).await;
    }
    (scenario.change)(&stage).await;
    if let Some(Round { told, .. }) = &round {
        let _ = told.send(());
    }
    let mut ends = 0;
    match disruption {
        Disruption::Stale { thinned, .. } => {
            tokio::time::sleep(HELD).await;
            stage.api.release(*thinned);
        }
        Disruption::Replay { resource } => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            stage.api.replay(resource, &before);
        }
        Disruption::Cut { at } => {
            until_effects(&stage, *at).await;
            stage.api.cut_watches();
        }
        Disruption::Failover { end, at } => {
            until_effects(&stage, *at).await;
            ends += 1;
            end_leader(&stage, *end).await;
        }
        _ => {}
    }
    let converged = converge(&stage, reference, &mut ends).await;
    let (log, panicked, lost) = (stage.log(), stage.panicked(), stage.end_daemons());
    stage.clear().await;
    let records = stage.ledger.records();
    let story = || {
        let effects: Vec<_> = records.iter().map(|record| format!("  {record}")).collect();
        format!("effects:\n{}\nlog of the last operator:\n{}", effects.join("\n"), log)
    };
    let end = match converged {
        Ok(end) => end,
        Err(mut why) => {
            why.extend(lost.iter().map(|lost| format!("\n  {lost}")));
            return Err(Failure { why, story: story() });
        }
    };
    if panicked {
        return Err(Failure { why: "the operator panicked".to_owned(), story: story() });
    }
    let mut violations = stage.ledger.violations();
    violations.extend(lost.filter(|_| !scenario.cuts));
    if !violations.is_empty() {
        return Err(Failure { why: violations.join("\n"), story: story() });
    }
    if let Some(why) = reference.and_then(|(_, writes)| excessive(writes, &records)) {
        return Err(Failure { why, story: story() });
    }
    let reached = match disruption {
        Disruption::Crash { .. } | Disruption::Storm { .. } => !stage.ledger.hits().is_empty(),
        Disruption::Twice { .. } => stage.ledger.hits().len() == 2,
        _ => true,
    };
    Ok(Outcome { records, end, reached, ends })
}

fn traps(disruption: &Disruption) -> Vec<Trap> {
    let kill = |after: &bool| if *after { Fault::KilledAfter } else { Fault::KilledBefore };
    match disruption {
        Disruption::Crash { point, fault, shuffled: _ } => vec![Trap::At(point.clone(), *fault)],
        Disruption::Twice { first, second, after } => {
            vec![Trap::Next(*first, kill(after)), Trap::Next(*second, kill(after))]
        }
        Disruption::Storm { code, seed } => {
            let faults = match code {
                0 => vec![
                    Fault::Answered(409),
                    Fault::Answered(429),
                    Fault::Answered(500),
                    Fault::Answered(503),
                    Fault::Dropped,
                    Fault::ReplyLost,
                    Fault::Delayed(Duration::from_millis(300)),
                ],
                code => vec![Fault::Answered(*code)],
            };
            vec![Trap::Storm { faults, left: 6, percent: 50, seed: *seed }]
        }
        _ => Vec::new(),
    }
}

/// Starts an operator again whenever it has ended, as a kubelet does. Does not return.
async fn keep_running(stage: &Stage) {
    loop {
        tokio::time::sleep(POLL).await;
        if stage.restart_if_ended().await {
            stage.forget_ended();
        }
    }
}

/// Waits until nothing has happened for a while.
async fn settle(stage: &Stage) {
    let began = Instant::now();
    while stage.ledger.quiet_for() < QUIET && began.elapsed() < CONVERGE_WITHIN {
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until so many effects have happened since the change, or it is clear that so many will not.
async fn until_effects(stage: &Stage, least: usize) {
    let began = Instant::now();
    while stage.ledger.records().len() < least && began.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn end_leader(stage: &Stage, end: LeaderEnd) {
    let signal = |signal| {
        stage.with_operator(0, |leader| leader.signal(signal));
    };
    match end {
        LeaderEnd::Killed => signal(Signal::KILL),
        LeaderEnd::Terminated => signal(Signal::TERM),
        LeaderEnd::Frozen => {
            signal(Signal::STOP);
            tokio::time::sleep(STOPPED).await;
            signal(Signal::CONT);
        }
    }
}

/// A version of the cluster from before the change.
async fn newest_version(stage: &Stage) -> String {
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = stage.scene().api();
    let list = secrets.list_metadata(&kube::api::ListParams::default()).await;
    list.ok().and_then(|list| list.metadata.resource_version).unwrap_or_default()
}

async fn converge(
    stage: &Stage,
    reference: Option<&(Snapshot, BTreeMap<String, usize>)>,
    ends: &mut usize,
) -> Result<Snapshot, String> {
    let began = Instant::now();
    let mut last = Vec::new();
    while began.elapsed() < CONVERGE_WITHIN {
        tokio::time::sleep(POLL).await;
        if stage.restart_if_ended().await {
            *ends += 1;
        }
        let quiet = stage.ledger.quiet_for();
        match reference {
            None if quiet >= QUIET_REFERENCE && stage.is_observed().await => {
                return stage.snapshot().await.map_err(|error| error.to_string());
            }
            Some((expected, _)) if quiet >= QUIET => {
                let Ok(found) = stage.snapshot().await else { continue };
                last = found.difference(expected);
                if last.is_empty() && stage.ledger.quiet_for() >= QUIET {
                    return Ok(found);
                }
                tokio::time::sleep(POLL * 5).await;
            }
            _ => {}
        }
    }
    let quiet = stage.ledger.quiet_for();
    Err(format!(
        "not as it should be after {CONVERGE_WITHIN:?} (quiet for {quiet:?}):\n  {}",
        last.join("\n  ")
    ))
}

/// How often each object was written, by what was done.
pub fn writes(records: &[Record]) -> BTreeMap<String, usize> {
    let mut writes = BTreeMap::new();
    for record in records {
        *writes.entry(record.point.name.clone()).or_default() += 1;
    }
    writes
}

/// An effect that happened far more often than it had to, or was tried far more often.
fn excessive(expected: &BTreeMap<String, usize>, records: &[Record]) -> Option<String> {
    let too_often = |found: BTreeMap<String, usize>, more: usize, what: &str| {
        let usual = |name: &str| expected.get(name).copied().unwrap_or_default();
        let (name, count) = found.iter().find(|(name, count)| **count > usual(name) * 3 + more)?;
        Some(format!("{name} {what} {count} times, and {} times without a fault", usual(name)))
    };
    let done: Vec<_> =
        records.iter().filter(|record| record.code.is_some_and(|code| code < 300)).cloned().collect();
    // A server that restarts refuses for seconds.
    too_often(writes(&done), 12, "happened").or_else(|| too_often(writes(records), 30, "was tried"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_by_chance_is_known_by_its_name() {
        for name in [
            "twice-after: 3 1",
            "twice-before: 0 2",
            "storm-mixed: 92",
            "storm-429: 7",
            "watches-cut: 4",
            "leader-killed: 0",
            "leader-terminated: 5",
            "leader-frozen: 5",
        ] {
            assert_eq!(Disruption::parse(name).unwrap().to_string(), name);
        }
        assert!(Disruption::parse("killed-after: create coderd /licenses#0").is_none());
    }
}
