//! The operator's side: its polls, the real decision, and what the ReplicaSets make of it.

use std::{cmp::Reverse, time::Duration};

use coder_k8s_api::Reason;
use coder_k8s_core::{
    autoscaling::{ObservedPool, ScaleDecision, decide, observe, poll_delay},
    daemon_listing::{DaemonListing, ListedDaemon, PendingJob},
    outcome::Blocker,
    provisioner::daemons::DaemonPod,
};

use super::{CRASH_LOOP, Event, LISTED_AFTER, PodState, SimulatedPod, World};
use crate::{
    Millis,
    trace::{FaultKind, HOUR, SECOND},
};

/// The interval of polls while jobs wait or pods start.
const INTERVAL: Duration = Duration::from_secs(5);
/// Calls of a poll: who coderd is, its daemons, its jobs.
const CALLS: u32 = 3;
/// How long a pod takes from its creation until its daemon is connected, if its node is there and has the image.
pub(super) const POD_START: (Millis, Millis) = (4 * SECOND, 12 * SECOND);
/// The same where the cluster adds a node, or the node pulls the image.
pub(super) const NEW_NODE: (Millis, Millis) = (40 * SECOND, 120 * SECOND);
/// The part of pods that wait for a node, in percent.
const NEW_NODE_PERCENT: u32 = 10;
/// From the answer of coderd to the new replicas of the Deployment. Which daemons are busy is asked again at its end.
pub(super) const ACT: Millis = 100;
/// From that last question until the pods that leave are told to stop.
pub(super) const STOP: Millis = 50;

impl World<'_> {
    pub(super) fn poll(&mut self) {
        let now = self.trace.time(self.now);
        self.forget_the_gone();
        self.reap();
        let listing = self.listing();
        if listing.blocker.is_none() {
            self.answered = self.now;
            self.times.record(&listing.daemons, now);
        } else {
            self.times.record_failure(now);
        }
        let decisions = self.decide(&listing);
        self.outcome.decisions += decisions.len() as u64;
        for (pool, decision) in decisions.iter().enumerate() {
            if self.pools.get(pool).is_some_and(|pool| pool.replicas != decision.desired) {
                self.schedule(self.now + ACT, Event::Act { pool, desired: decision.desired });
            }
        }
        let delay = poll_delay(&decisions, INTERVAL, CALLS, now);
        let delay = Millis::try_from(delay.as_millis()).unwrap_or(Millis::MAX);
        self.schedule(self.now.saturating_add(delay), Event::Poll);
    }

    fn forget_the_gone(&mut self) {
        let now = self.now;
        self.pods.retain(|_, pod| match pod.state {
            PodState::Gone { at, was_connected } => was_connected && now - at < LISTED_AFTER,
            _ => true,
        });
    }

    /// What coderd answers, or that it does not.
    fn listing(&self) -> DaemonListing {
        let listed = self.pods.values().filter_map(|pod| {
            let pool = self.pools.get(pod.pool)?;
            let busy = match pod.state {
                PodState::Busy { .. } => true,
                PodState::Idle | PodState::Gone { .. } => false,
                PodState::Starting { .. } | PodState::Lost => return None,
            };
            let (name, key, tags) = (pod.name.clone(), pool.key.concat(), pool.tags.clone());
            Some(ListedDaemon { name, key, tags, busy, ..ListedDaemon::default() })
        });
        let jobs = self.waiting.iter().flatten().filter_map(|job| {
            let tags = self.pools.get(job.pool)?.tags.clone();
            Some(PendingJob { tags, since: Some(self.trace.time(job.at)) })
        });
        let away = || Blocker::new(Reason::Unreachable, "coderd does not answer");
        DaemonListing {
            daemons: listed.collect(),
            jobs: Some(jobs.collect()),
            blocker: self.is_away.then(away),
            outdated: false,
        }
    }

    fn decide(&self, listing: &DaemonListing) -> Vec<ScaleDecision> {
        let pods: Vec<Vec<DaemonPod>> = (0..self.pools.len()).map(|pool| self.pods_of(pool)).collect();
        let each = self.pools.iter().zip(&self.trace.pools).zip(&pods);
        let observed = each.map(|((pool, traced), pods)| ObservedPool {
            name: &traced.name,
            tags: &traced.tags,
            policy: &pool.policy,
            replicas: pool.replicas,
            keys: &pool.key,
            pods: Some(pods),
            refused: false,
        });
        let observed: Vec<_> = observed.collect();
        let now = self.trace.time(self.now);
        let census = observe(Some(listing), self.trace.time(self.answered), &self.times, &observed, now);
        decide(&census.queue, &census.pools, now)
    }

    fn pods_of(&self, pool: usize) -> Vec<DaemonPod> {
        let of_pool = self.pods.values().filter(|pod| pod.pool == pool && !pod.is_gone());
        let seen = of_pool.map(|pod| {
            let fails = match pod.state {
                PodState::Starting { fails } => Some(fails <= self.now),
                _ => None,
            };
            DaemonPod {
                name: pod.name.clone(),
                daemon: Some(pod.name.clone()),
                created: Some(self.trace.time(pod.created)),
                fails: fails == Some(true),
                ready_since: fails.is_none().then(|| self.trace.time(pod.created)),
                is_deleting: pod.is_stopping,
                ..DaemonPod::default()
            }
        });
        seen.collect()
    }

    /// Sets the replicas of a pool, and does what its ReplicaSet does then.
    pub(super) fn act(&mut self, pool: usize, desired: u32) {
        let Some(replicas) = self.pools.get(pool).map(|pool| pool.replicas) else { return };
        let mut staying: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.pool == pool && !pod.is_gone() && !pod.is_stopping)
            .map(|(id, pod)| (pod.rank(), Reverse(pod.created), *id))
            .collect();
        staying.sort_unstable();
        // A daemon that is busy by now stays.
        let busy = staying.iter().filter(|(rank, _, _)| *rank == BUSY).count();
        let desired = desired.max(u32::try_from(busy).unwrap_or(u32::MAX));
        if desired != replicas {
            *self.outcome.changes.entry(self.now / HOUR).or_default() += 1;
        }
        let surplus = staying.len().saturating_sub(desired as usize);
        for (_, _, id) in staying.iter().take(surplus) {
            self.schedule(self.now + STOP, Event::Stop(*id));
        }
        for _ in staying.len()..desired as usize {
            self.create(pool);
        }
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.replicas = desired;
        }
        let living = self.pods.values().filter(|pod| !pod.is_gone()).count();
        self.outcome.most = self.outcome.most.max(living);
    }

    fn create(&mut self, pool: usize) {
        let range = if self.rng.u32(0..100) < NEW_NODE_PERCENT { NEW_NODE } else { POD_START };
        let mut connects = self.now + self.rng.i64(range.0..range.1);
        let mut fails = Millis::MAX;
        for fault in self.trace.faults.iter().filter(|fault| (fault.from..fault.to).contains(&self.now)) {
            match fault.kind {
                FaultKind::StartsFail(percent) => {
                    let mut delay = 10 * SECOND;
                    while connects < fault.to && self.rng.u32(0..100) < percent {
                        fails = fails.min(connects);
                        connects += delay;
                        delay = (2 * delay).min(CRASH_LOOP);
                    }
                }
                FaultKind::NodesFail(percent) if self.rng.u32(0..100) < percent => {
                    fails = connects;
                    connects = fault.to + self.rng.i64(0..CRASH_LOOP);
                }
                FaultKind::NodesFail(_) => {}
                FaultKind::CoderdAway => fails = self.now + 15 * SECOND,
            }
        }
        let id = self.next_pod;
        self.next_pod += 1;
        self.outcome.started = self.next_pod;
        let name = self.trace.pools.get(pool).map_or_else(String::new, |pool| format!("{}-{id}", pool.name));
        let state = PodState::Starting { fails };
        self.pods.insert(id, SimulatedPod { name, pool, created: self.now, state, is_stopping: false });
        self.schedule(connects, Event::Connect(id));
    }
}
/// The rank of a busy pod, which leaves last.
const BUSY: u8 = 2;

impl SimulatedPod {
    /// The order in which a ReplicaSet deletes pods.
    fn rank(&self) -> u8 {
        match self.state {
            PodState::Starting { .. } | PodState::Gone { .. } => 0,
            PodState::Idle | PodState::Lost => 1,
            PodState::Busy { .. } => BUSY,
        }
    }
}
