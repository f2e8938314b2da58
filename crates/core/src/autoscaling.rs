//! Decides how many daemons each scaled pool of an organization has: from the queue, the daemons and the clock.
//!
//! Growth is at once. A pool shrinks only by daemons that are idle for `scale_down_after`, and never below the daemons that
//! run a build or may run one. Each pending job counts for one pool. Pods that start count as capacity, and a pool whose
//! pods do not start does not grow. While the queue is unknown nothing shrinks.
//!
//! Keeps no state: the last decision is in the replicas of the Deployment. After a restart of the operator every idle time
//! starts anew, so that a restart changes nothing by itself. It decides how many pods there are, never which of them leave.

mod assignment;
mod census;
mod message;
mod window;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use self::assignment::{Assignment, PoolJobs, Room};
pub use self::{
    census::{Census, DaemonTimes, ObservedPool, observe},
    window::{WarmWindow, Weekdays},
};
use crate::{
    daemon_listing::{DaemonTags, PendingJob},
    intervals::{
        AUTOSCALING_CALLS_PER_MINUTE, AUTOSCALING_REST_FACTOR, DAEMON_START, MAX_FAILING_STARTS,
        QUEUE_UNKNOWN_KEEP,
    },
};

/// How a pool follows its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingPolicy {
    /// Daemons without any job. Above `max` it counts as `max`.
    pub min: u32,
    /// The most daemons, whatever waits.
    pub max: u32,
    /// Idle daemons beyond those that the jobs need.
    pub spare: u32,
    /// How long a daemon is idle before it may leave.
    pub scale_down_after: SignedDuration,
    /// Times at which the minimum is higher.
    pub windows: Vec<WarmWindow>,
}

/// The pods of a pool, without those that are being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// Daemons that run a build.
    pub busy: u32,
    /// Daemons that may run a build, because coderd does not say.
    pub unknown: u32,
    /// Since when each of the other connected daemons is idle.
    pub idle: Vec<Timestamp>,
    /// When each pod was created whose daemon has not connected yet.
    pub starting: Vec<Timestamp>,
    /// Pods that are known not to start.
    pub failing: u32,
    /// Whether the API server refuses further pods, as for a quota.
    pub refused: bool,
}

/// A pool that follows its queue.
#[derive(Clone, Debug)]
pub struct ScaledPool<'a> {
    /// Unique in the organization. Decides ties.
    pub name: &'a str,
    /// Its tags as coderd stores them ([`crate::jobs::normal`]).
    pub tags: DaemonTags,
    /// How it is scaled.
    pub policy: &'a ScalingPolicy,
    /// The replicas of its Deployment, which are the last decision.
    pub replicas: u32,
    /// Its pods.
    pub pods: PodCounts,
}

/// What is known of the queue of an organization.
#[derive(Clone, Debug)]
pub enum QueueState<'a> {
    /// coderd answered.
    Known {
        /// The pending jobs.
        jobs: &'a [PendingJob],
        /// The idle daemons that belong to no scaled pool, by their tags: built-in ones, those of fixed pools and of others.
        foreign: BTreeMap<&'a DaemonTags, u32>,
    },
    /// coderd does not answer, or does not list the jobs.
    Unknown {
        /// When it last did. Before its first answer: when the operator started.
        since: Timestamp,
        /// Why it does not, if that is known.
        why: Option<&'a str>,
    },
}

/// Why a pool has the replicas that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScaleReason {
    /// coderd does not say which jobs wait.
    QueueUnknown,
    /// Jobs wait, and pods of the pool do not start or are refused.
    StartsFail,
    /// More jobs wait than the maximum permits daemons for.
    AtMaximum,
    /// Daemons are added, or the added ones start.
    ScalingUp,
    /// Daemons that were idle for long enough leave.
    ScalingDown,
    /// More daemons than needed, not idle for long enough.
    WaitingForIdle,
    /// As many daemons as needed.
    Steady,
}

/// The decision about one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleDecision {
    /// Name of the pool.
    pub pool: String,
    /// The replicas that its Deployment is to have.
    pub desired: u32,
    /// Jobs that count for this pool and for no other.
    pub pending: u32,
    /// When the first of them was created.
    pub oldest: Option<Timestamp>,
    /// Daemons that run a build, or may run one.
    pub busy: u32,
    /// Of these, those of which coderd does not say that they run one.
    pub unlisted: u32,
    /// Connected daemons without a build.
    pub idle: u32,
    /// Pods whose daemon has not connected yet, and those still to be created. Without those that fail.
    pub starting: u32,
    /// Why.
    pub reason: ScaleReason,
    /// The reason as a sentence.
    pub message: String,
    /// When time alone may change the decision. None: only a change does.
    pub until: Option<Timestamp>,
}

/// What a pool has and may have, counted.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    /// Daemons that must not be told to stop: busy ones, and those that may be.
    protected: u32,
    idle: u32,
    /// Of the idle daemons, those that may leave.
    ripe: u32,
    starting: u32,
    failing: u32,
    /// Whether growth would only add pods that do not start.
    closed: bool,
    replicas: u32,
    min: u32,
    max: u32,
    spare: u32,
}

/// Decides about each pool, in the order of `pools`.
pub fn decide(queue: &QueueState<'_>, pools: &[ScaledPool<'_>], now: Timestamp) -> Vec<ScaleDecision> {
    let capacities: Vec<_> = pools.iter().map(|pool| Capacity::of(pool, now)).collect();
    match queue {
        QueueState::Known { jobs, foreign } => {
            let rooms = pools.iter().zip(&capacities).map(|(pool, capacity)| capacity.room(pool)).collect();
            let Assignment { pools: jobs, is_complete } = assignment::assign(jobs, foreign, rooms, now);
            let each = pools.iter().zip(&capacities).zip(jobs);
            each.map(|((pool, capacity), jobs)| capacity.decide(pool, jobs, is_complete, now)).collect()
        }
        QueueState::Unknown { since, why } => {
            let each = pools.iter().zip(&capacities);
            each.map(|(pool, capacity)| capacity.decide_unknown(pool, *since, *why, now)).collect()
        }
    }
}

impl ScaleDecision {
    /// The replicas to set instead of `current`, if they are fewer. `busy` is how many daemons of the pool run a build, read
    /// right before; None if coderd did not answer. Then only pods leave that never connected, as decided without it.
    pub fn shrink(&self, current: u32, busy: Option<u32>) -> u32 {
        let least = match busy {
            Some(busy) => busy.saturating_add(self.unlisted),
            None if self.reason == ScaleReason::QueueUnknown => self.busy,
            None => current,
        };
        self.desired.max(least).min(current)
    }
}

impl Capacity {
    fn of(pool: &ScaledPool<'_>, now: Timestamp) -> Self {
        let ScaledPool { name: _, tags: _, policy, replicas, pods } = pool;
        let PodCounts { busy, unknown, idle, starting, failing, refused } = pods;
        let late = count(starting.iter().filter(|since| has_passed(**since, DAEMON_START, now)));
        let mut capacity = Self {
            // While a rollout replaces pods there are more of them than replicas.
            protected: busy.saturating_add(*unknown).min(*replicas).max(*busy),
            idle: count(idle),
            ripe: count(idle.iter().filter(|since| has_passed(**since, policy.scale_down_after, now))),
            starting: count(starting) - late,
            failing: failing.saturating_add(late),
            closed: false,
            replicas: *replicas,
            min: policy.minimum(now).0,
            max: policy.max,
            spare: policy.spare,
        };
        let missing = replicas.saturating_sub(sum([
            *busy,
            *unknown,
            capacity.idle,
            capacity.starting,
            capacity.failing,
        ]));
        let of_missing = if *refused { &mut capacity.failing } else { &mut capacity.starting };
        *of_missing = of_missing.saturating_add(missing);
        let connected = sum([*busy, *unknown, capacity.idle]);
        capacity.closed = *refused || capacity.failing >= MAX_FAILING_STARTS.max(connected / 2);
        capacity
    }

    fn room<'a>(&self, pool: &'a ScaledPool<'_>) -> Room<'a> {
        let taken = sum([self.protected, self.idle, self.starting, self.failing]);
        Room {
            name: pool.name,
            tags: &pool.tags,
            idle: self.idle,
            starting: self.starting,
            growth: if self.closed { 0 } else { self.max.saturating_sub(taken) },
        }
    }

    /// Without bounds: the busy daemons, one for each job, the spare ones, and one in the place of each pod that fails.
    fn wanted(&self, pending: u32) -> u32 {
        let free = pending.saturating_add(self.spare);
        sum([self.protected, free, if free > 0 { self.failing } else { 0 }])
    }

    /// What does not leave yet. Of the pods that have not connected the ReplicaSet chooses itself, so that those that fail
    /// stay while others start.
    fn kept(&self) -> u32 {
        let failing = if self.starting > 0 { self.failing } else { 0 };
        sum([self.protected, self.idle - self.ripe, self.starting, failing]).min(self.replicas)
    }

    fn desired(&self, target: u32, kept: u32) -> u32 {
        let mut desired = target.max(kept).min(self.max);
        if self.closed {
            desired = desired.min(self.replicas.max(self.min));
        }
        desired.max(self.protected)
    }

    fn decide(
        &self,
        pool: &ScaledPool<'_>,
        jobs: PoolJobs,
        is_complete: bool,
        now: Timestamp,
    ) -> ScaleDecision {
        let pending = jobs.pending;
        let wanted = self.wanted(pending);
        let target = wanted.max(self.min).min(self.max);
        // A queue of which a part is not known shrinks nothing.
        let kept = if is_complete { self.kept() } else { self.replicas };
        let desired = self.desired(target, kept);
        let waits = pending > self.idle;
        let healthy = sum([self.protected, self.idle, self.starting]);
        let reason = if !is_complete {
            ScaleReason::QueueUnknown
        } else if self.closed && healthy < target {
            ScaleReason::StartsFail
        } else if waits && self.protected.saturating_add(pending) > self.max {
            ScaleReason::AtMaximum
        } else if desired > self.replicas || (waits && self.starting > 0) {
            ScaleReason::ScalingUp
        } else if desired < self.replicas {
            ScaleReason::ScalingDown
        } else if target < desired {
            ScaleReason::WaitingForIdle
        } else {
            ScaleReason::Steady
        };
        let message = message::of(reason, self, pool, pending, desired, target);
        let mut until = vec![pool.policy.minimum(now).1];
        if target < desired {
            let idle = pool.pods.idle.iter();
            until.extend(idle.map(|since| since.checked_add(pool.policy.scale_down_after).ok()));
        }
        let starting = pool.pods.starting.iter();
        until.extend(starting.map(|since| since.checked_add(DAEMON_START).ok()));
        self.decision(pool, jobs, desired, reason, message, earliest(until, now))
    }

    fn decide_unknown(
        &self,
        pool: &ScaledPool<'_>,
        since: Timestamp,
        why: Option<&str>,
        now: Timestamp,
    ) -> ScaleDecision {
        let is_over = has_passed(since, QUEUE_UNKNOWN_KEEP, now);
        let kept = if is_over { self.protected.saturating_add(self.idle) } else { self.replicas };
        // A daemon that may run a build stays, also above the maximum.
        let desired = kept.min(self.replicas).max(self.min).max(self.protected);
        let end = since.checked_add(QUEUE_UNKNOWN_KEEP).ok();
        let message = message::unknown(since, why, desired, end.filter(|_| !is_over));
        let until = earliest(vec![end, pool.policy.minimum(now).1], now);
        self.decision(pool, PoolJobs::default(), desired, ScaleReason::QueueUnknown, message, until)
    }

    fn decision(
        &self,
        pool: &ScaledPool<'_>,
        jobs: PoolJobs,
        desired: u32,
        reason: ScaleReason,
        message: String,
        until: Option<Timestamp>,
    ) -> ScaleDecision {
        let PoolJobs { pending, oldest } = jobs;
        let (busy, idle, starting) = (self.protected, self.idle, self.starting);
        ScaleDecision {
            pool: pool.name.to_owned(),
            desired,
            pending,
            oldest,
            busy,
            unlisted: busy.saturating_sub(pool.pods.busy),
            idle,
            starting,
            reason,
            message,
            until,
        }
    }
}

/// The delay until the next poll of one coderd, which takes `calls` calls. Short while jobs wait, pods start or the queue is
/// unknown; never so short that the calls of a minute are too many; and not past the time at which a decision may change.
pub fn poll_delay(decisions: &[ScaleDecision], interval: Duration, calls: u32, now: Timestamp) -> Duration {
    let least = Duration::from_mins(1) * calls / AUTOSCALING_CALLS_PER_MINUTE;
    let interval = interval.max(least);
    let is_active = |decision: &ScaleDecision| {
        decision.pending > 0 || decision.starting > 0 || decision.reason == ScaleReason::QueueUnknown
    };
    if decisions.iter().any(is_active) {
        return interval;
    }
    let due = decisions.iter().filter_map(|decision| decision.until).min();
    let due = due.map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
    let rest = interval.saturating_mul(AUTOSCALING_REST_FACTOR);
    due.map_or(rest, |due| due.clamp(interval, rest))
}

fn earliest(times: Vec<Option<Timestamp>>, now: Timestamp) -> Option<Timestamp> {
    times.into_iter().flatten().filter(|time| *time > now).min()
}

fn has_passed(since: Timestamp, time: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(since) >= time
}

fn count<T>(items: impl IntoIterator<Item = T>) -> u32 {
    u32::try_from(items.into_iter().count()).unwrap_or(u32::MAX)
}

fn sum<const N: usize>(numbers: [u32; N]) -> u32 {
    numbers.into_iter().fold(0, u32::saturating_add)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
