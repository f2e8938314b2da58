//! Sorts the daemons that coderd lists, and the pods of the pools, into what the decision counts.
//!
//! coderd lists a daemon for 90 seconds after it left, so that a daemon of a pool counts only while its pod exists and stays.
//! A daemon that was listed and no longer is may have lost its connection with a build in hand: it is protected for as long
//! as coderd waits for its build, and is not capacity.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{PodCounts, QueueState, ScaledPool, ScalingPolicy, count, has_passed};
use crate::{
    daemon_listing::{DaemonListing, DaemonTags, ListedDaemon},
    intervals::{DAEMON_START, IDLE_TIME_GAP, MAX_REMEMBERED_DAEMONS},
    jobs::normal,
    provisioner::daemons::DaemonPod,
};

/// What this process remembers of the daemons of one organization, by their names.
#[derive(Clone, Debug)]
pub struct DaemonTimes {
    daemons: BTreeMap<String, DaemonTime>,
    /// Since when coderd answers, but for short gaps.
    began: Timestamp,
    answered: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct DaemonTime {
    last_listed: Timestamp,
    /// None while it runs a build.
    idle_since: Option<Timestamp>,
}

impl DaemonTimes {
    /// Remembers nothing: every idle time starts with the first listing.
    pub fn new(now: Timestamp) -> Self {
        Self { daemons: BTreeMap::new(), began: now, answered: now }
    }

    /// Takes in a listing.
    pub fn record(&mut self, daemons: &[ListedDaemon], now: Timestamp) {
        self.answered = now;
        let is_recent = |time: &DaemonTime| !has_passed(time.last_listed, DAEMON_START, now);
        // A server that lists other names each time does not fill the memory.
        let is_bounded = self.daemons.len() <= MAX_REMEMBERED_DAEMONS;
        self.daemons.retain(|_, time| is_bounded && is_recent(time));
        for ListedDaemon { name, busy, key: _, version: _, tags: _, last_seen: _ } in daemons {
            let known = self.daemons.get(name.as_str()).and_then(|time| time.idle_since);
            // A clock that was set back does not keep a daemon for longer.
            let idle_since = (!busy).then(|| known.map_or(now, |since| since.min(now)));
            let time = DaemonTime { last_listed: now, idle_since };
            match self.daemons.get_mut(name.as_str()) {
                Some(known) => *known = time,
                None => drop(self.daemons.insert(name.clone(), time)),
            }
        }
    }

    /// Takes in a poll without an answer. After some time nobody knows what the daemons did meanwhile, so that all times start
    /// anew. A coderd that fails now and then does not keep a pool from shrinking.
    pub fn record_failure(&mut self, now: Timestamp) {
        if !has_passed(self.answered, IDLE_TIME_GAP, now) {
            return;
        }
        self.began = now;
        self.daemons.values_mut().for_each(|time| *time = DaemonTime { last_listed: now, idle_since: None });
    }

    fn idle_since(&self, name: &str, now: Timestamp) -> Timestamp {
        self.daemons.get(name).and_then(|time| time.idle_since).unwrap_or(now)
    }

    /// Since when a pod has no daemon any more, if it had one. A pod that is ready for longer than a start takes had one
    /// before this process began to watch.
    fn lost_since(&self, pod: &DaemonPod, now: Timestamp) -> Option<Timestamp> {
        if let Some(time) = pod.daemon.as_ref().and_then(|name| self.daemons.get(name)) {
            return Some(time.last_listed);
        }
        let is_old = pod.created.is_none_or(|created| has_passed(created, DAEMON_START, now));
        (pod.ready_since.is_some() && is_old).then_some(self.began)
    }
}

/// A scaled pool as it was observed.
#[derive(Clone, Debug)]
pub struct ObservedPool<'a> {
    /// Name of the CoderProvisioner.
    pub name: &'a str,
    /// `spec.tags`.
    pub tags: &'a DaemonTags,
    /// How it is scaled.
    pub policy: &'a ScalingPolicy,
    /// The replicas of its Deployment.
    pub replicas: u32,
    /// UUIDs of the keys that its daemons may have connected with.
    pub keys: &'a [String],
    /// Its pods. None: they could not be listed.
    pub pods: Option<&'a [DaemonPod]>,
    /// Whether its Deployment reports that pods are refused.
    pub refused: bool,
}

/// The queue and the pools of an organization, as [`super::decide`] takes them.
#[derive(Clone, Debug)]
pub struct Census<'a> {
    /// The queue.
    pub queue: QueueState<'a>,
    /// In the order of the observed pools.
    pub pools: Vec<ScaledPool<'a>>,
}

/// Counts. `listing` is the last one, which is taken into `times` already; `answered` is when coderd last listed the jobs, or
/// when the operator started.
pub fn observe<'a>(
    listing: Option<&'a DaemonListing>,
    answered: Timestamp,
    times: &DaemonTimes,
    pools: &'a [ObservedPool<'a>],
    now: Timestamp,
) -> Census<'a> {
    let daemons = listing.map(|listing| listing.daemons.as_slice()).unwrap_or_default();
    let jobs = listing.filter(|listing| !listing.outdated && listing.blocker.is_none());
    let jobs = jobs.and_then(|listing| listing.jobs.as_deref());
    let why = listing.and_then(|listing| listing.blocker.as_ref()).map(|blocker| blocker.message.as_str());
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, pool) in pools.iter().enumerate() {
        owners.extend(pool.keys.iter().filter(|key| !key.is_empty()).map(|key| (key.as_str(), index)));
    }
    let mut listed: Vec<BTreeMap<&str, &ListedDaemon>> = vec![BTreeMap::new(); pools.len()];
    let mut foreign: BTreeMap<&DaemonTags, u32> = BTreeMap::new();
    for daemon in daemons {
        let of_pool = owners.get(daemon.key.as_str()).and_then(|index| listed.get_mut(*index));
        match of_pool {
            Some(of_pool) => drop(of_pool.insert(&daemon.name, daemon)),
            None if daemon.busy => {}
            None => *foreign.entry(&daemon.tags).or_default() += 1,
        }
    }
    let queue = match jobs {
        Some(jobs) => QueueState::Known { jobs, foreign },
        None => QueueState::Unknown { since: answered, why },
    };
    let counted = pools.iter().zip(listed).map(|(pool, listed)| {
        let ObservedPool { name, tags, policy, replicas, keys: _, pods: _, refused: _ } = pool;
        let pods = count_pods(pool, &listed, jobs.is_some(), times, now);
        ScaledPool { name, tags: normal(tags), policy, replicas: *replicas, pods }
    });
    Census { queue, pools: counted.collect() }
}

fn count_pods(
    pool: &ObservedPool<'_>,
    listed: &BTreeMap<&str, &ListedDaemon>,
    is_known: bool,
    times: &DaemonTimes,
    now: Timestamp,
) -> PodCounts {
    let mut counts = PodCounts { refused: pool.refused, ..PodCounts::default() };
    let staying = || pool.pods.unwrap_or_default().iter().filter(|pod| !pod.is_deleting);
    let is_named = pool.pods.is_some() && staying().all(|pod| pod.daemon.is_some());
    if !is_named {
        // Which daemon is in which pod is not known: all that are listed count.
        for daemon in listed.values() {
            counts.add_daemon(daemon, is_known, times, now);
        }
    }
    for pod in staying() {
        match pod.daemon.as_deref().filter(|_| is_named).and_then(|name| listed.get(name)) {
            Some(daemon) => counts.add_daemon(daemon, is_known, times, now),
            None if is_named || pod.ready_since.is_none() => counts.add_pod(pod, is_known, times, now),
            None => {}
        }
    }
    if !is_known && !is_named {
        let ready = count(staying().filter(|pod| pod.ready_since.is_some()));
        let pods = if pool.pods.is_some() { ready } else { pool.replicas };
        counts.unknown = pods.saturating_sub(counts.busy);
    }
    counts
}

impl PodCounts {
    fn add_daemon(&mut self, daemon: &ListedDaemon, is_known: bool, times: &DaemonTimes, now: Timestamp) {
        match (daemon.busy, is_known) {
            (true, _) => self.busy += 1,
            (false, true) => self.idle.push(times.idle_since(&daemon.name, now)),
            (false, false) => self.unknown += 1,
        }
    }

    /// A pod whose daemon is not listed.
    fn add_pod(&mut self, pod: &DaemonPod, is_known: bool, times: &DaemonTimes, now: Timestamp) {
        let lost_since = times.lost_since(pod, now);
        let is_protected = match lost_since {
            Some(since) => !is_known || !has_passed(since, DAEMON_START, now),
            None => !is_known && pod.ready_since.is_some(),
        };
        if is_protected {
            self.unknown += 1;
        } else if pod.fails || lost_since.is_some() {
            self.failing += 1;
        } else {
            self.starting.push(pod.created.unwrap_or(now));
        }
    }
}

#[cfg(test)]
mod tests;
