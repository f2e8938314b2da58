//! What happens in the simulated days: jobs, and faults.
//!
//! Published is one figure: Coder's reference architecture for 1,000 users has 60 daemons, of which each runs one build at a
//! time. For other numbers of users the simulation takes 60 for each 1,000. How long builds take and when they are asked for
//! is not published. The constants here are assumptions, which a trace of a real coderd replaces.

use coder_k8s_core::daemon_listing::DaemonTags;
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::Millis;

/// The names of the built-in traces.
pub const BUILT_IN: [&str; 6] =
    ["workday-1000", "workday-10000", "monday-burst", "failing-starts", "failing-nodes", "coderd-away"];

/// Daemons of Coder's reference architecture for each 1,000 users.
const REFERENCE_DAEMONS: u32 = 60;
/// The part of the jobs that need a GPU, in percent. They have a pool of their own.
const GPU_PERCENT: u32 = 15;
/// Builds beside the start in the morning and the stop in the evening, of 100 users in a day.
const OTHER_BUILDS_PERCENT: u32 = 105;
/// Median and spread (sigma of the logarithm) of the time that a build takes.
const BUILD: (f64, f64) = (60.0, 0.7);
/// The same of a build that stops a workspace.
const STOP_BUILD: (f64, f64) = (30.0, 0.5);
/// The shortest and the longest build.
const BUILD_BOUNDS: (Millis, Millis) = (5 * SECOND, 30 * MINUTE);

/// Midnight of a Monday.
const MONDAY: i64 = 1_767_571_200;

/// A second of virtual time.
pub const SECOND: Millis = 1_000;
/// A minute of virtual time.
pub const MINUTE: Millis = 60 * SECOND;
/// An hour of virtual time.
pub const HOUR: Millis = 60 * MINUTE;
/// A day of virtual time.
pub const DAY: Millis = 24 * HOUR;

/// A job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceJob {
    /// When it is created.
    pub at: Millis,
    /// How long its build takes.
    pub takes: Millis,
    /// The pool with its tags, as an index.
    pub pool: usize,
}

/// A pool, and its part of the reference fleet.
#[derive(Clone, Debug)]
pub struct TracePool {
    /// Unique in the trace.
    pub name: String,
    /// `spec.tags`.
    pub tags: DaemonTags,
    /// Its daemons in the reference fleet.
    pub reference: u32,
}

/// A time at which something does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it begins.
    pub from: Millis,
    /// When it ends.
    pub to: Millis,
    /// What does not work.
    pub kind: FaultKind,
}

/// What does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// So many of 100 attempts to start a pod fail. The kubelet tries again, with a growing delay.
    StartsFail(u32),
    /// So many of 100 pods come to a node on which they do not start before the end of the fault.
    NodesFail(u32),
    /// coderd does not answer anybody. What users ask for meanwhile, they ask for after it.
    CoderdAway,
}

/// Days of an organization.
#[derive(Clone, Debug)]
pub struct Trace {
    /// As it is called in the report.
    pub name: String,
    /// In the order of their creation.
    pub jobs: Vec<TraceJob>,
    /// The pools.
    pub pools: Vec<TracePool>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// How long it lasts at least.
    pub length: Millis,
    /// Midnight of its first day, from which virtual time counts.
    pub begins: Timestamp,
}

impl Trace {
    /// A built-in trace. A name that is not built in makes a workday of 1,000 users.
    pub fn built_in(name: &str, seed: u64, days: u32) -> Self {
        let mut rng = Rng::with_seed(seed);
        let users = if name == "workday-10000" { 10_000 } else { 1_000 };
        let reference = reference_fleet(users);
        let gpu = (reference * GPU_PERCENT).div_ceil(100);
        let mut trace = Self {
            name: name.to_owned(),
            jobs: Vec::new(),
            pools: vec![
                TracePool { name: "plain".into(), tags: DaemonTags::new(), reference: reference - gpu },
                TracePool { name: "gpu".into(), tags: [("gpu".into(), "yes".into())].into(), reference: gpu },
            ],
            faults: Vec::new(),
            length: DAY * Millis::from(days),
            begins: Timestamp::from_second(MONDAY).unwrap_or(Timestamp::UNIX_EPOCH),
        };
        let kind = match name {
            "failing-starts" => Some((FaultKind::StartsFail(80), 7 * HOUR + HOUR / 2, 9 * HOUR + HOUR / 2)),
            "failing-nodes" => Some((FaultKind::NodesFail(80), 7 * HOUR + HOUR / 2, 9 * HOUR + HOUR / 2)),
            "coderd-away" => Some((FaultKind::CoderdAway, 10 * HOUR, 11 * HOUR)),
            _ => None,
        };
        for day in (0..Millis::from(days)).map(|day| day * DAY) {
            // Nobody works at weekends.
            if (day / DAY) % 7 < 5 {
                trace.add_workday(users, name == "monday-burst", day, &mut rng);
            }
            trace.faults.extend(kind.map(|(kind, from, to)| Fault { from: day + from, to: day + to, kind }));
        }
        trace.put_off_what_coderd_does_not_hear(&mut rng);
        trace.jobs.sort_unstable();
        trace
    }

    /// Each user starts a workspace in the morning and stops it in the evening, and builds now and then in between. In a
    /// burst, six of ten workspaces start by a schedule, at nine.
    fn add_workday(&mut self, users: u32, is_burst: bool, day: Millis, rng: &mut Rng) {
        for _ in 0..users {
            let is_scheduled = is_burst && rng.u32(0..100) < 60;
            let start = if is_scheduled {
                9 * HOUR + rng.i64(0..MINUTE)
            } else {
                around(9 * HOUR, 40 * MINUTE, rng).clamp(6 * HOUR, 12 * HOUR)
            };
            let stop = around(18 * HOUR, HOUR, rng).clamp(14 * HOUR, 23 * HOUR);
            self.add(day + start, BUILD, rng);
            self.add(day + stop, STOP_BUILD, rng);
        }
        for _ in 0..users * OTHER_BUILDS_PERCENT / 100 {
            self.add(day + rng.i64(9 * HOUR..18 * HOUR), BUILD, rng);
        }
    }

    fn add(&mut self, at: Millis, (median, sigma): (f64, f64), rng: &mut Rng) {
        #[expect(clippy::cast_possible_truncation, reason = "bounded")]
        let takes = (median * (sigma * normal(rng)).exp() * 1_000.0).min(1e9) as Millis;
        let takes = takes.clamp(BUILD_BOUNDS.0, BUILD_BOUNDS.1);
        self.jobs.push(TraceJob { at, takes, pool: usize::from(rng.u32(0..100) < GPU_PERCENT) });
    }

    fn put_off_what_coderd_does_not_hear(&mut self, rng: &mut Rng) {
        for fault in self.faults.iter().filter(|fault| fault.kind == FaultKind::CoderdAway) {
            for job in self.jobs.iter_mut().filter(|job| (fault.from..fault.to).contains(&job.at)) {
                job.at = fault.to + rng.i64(0..10 * MINUTE);
            }
        }
    }

    /// The clock at a virtual time.
    pub fn time(&self, at: Millis) -> Timestamp {
        self.begins.saturating_add(SignedDuration::from_millis(at)).unwrap_or(Timestamp::MAX)
    }

    /// The jobs of one pool.
    pub fn of_pool(&self, pool: usize) -> impl Iterator<Item = TraceJob> {
        self.jobs.iter().copied().filter(move |job| job.pool == pool)
    }
}

/// The size of Coder's reference fleet.
pub fn reference_fleet(users: u32) -> u32 {
    users.saturating_mul(REFERENCE_DAEMONS).div_ceil(1_000)
}

/// A time that is normally distributed.
fn around(mean: Millis, deviation: Millis, rng: &mut Rng) -> Millis {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "hours in milliseconds")]
    let offset = (deviation as f64 * normal(rng)) as Millis;
    mean + offset
}

/// A number of the standard normal distribution (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}
