//! A coderd, a cluster and an operator in virtual time, of which the operator's decision is the real one.
//!
//! The delays are assumptions, stated at their constants. coderd gives a job to a random idle daemon
//! that may run it, lists a daemon for 90 seconds after it left, and fails a job that waits for 30 minutes. A ReplicaSet
//! deletes pods that are not ready first, and then idle ones, because the operator gives busy ones a deletion cost.

mod operator;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use coder_k8s_core::{
    autoscaling::{DaemonTimes, ScalingPolicy},
    daemon_listing::DaemonTags,
    intervals::DAEMON_GRACE_SECONDS,
    jobs::{can_run, normal},
};
use fastrand::Rng;

use crate::{
    Millis,
    setting::Setting,
    trace::{FaultKind, MINUTE, SECOND, Trace, TraceJob},
};

/// How long coderd lists a daemon that left.
const LISTED_AFTER: Millis = 90 * SECOND;
/// How long a job waits until coderd fails it.
const REAPED_AFTER: Millis = 30 * MINUTE;
/// How long the kubelet waits at most before it starts a container again.
const CRASH_LOOP: Millis = 5 * MINUTE;
/// How long a daemon takes at most to reach coderd again.
const REDIAL: Millis = 10 * SECOND;

/// What came of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pool and wait of each job.
    pub waits: Vec<(usize, Millis)>,
    /// The sum of the lifetimes of all pods.
    pub daemon_time: Millis,
    /// When the last build ended, at least the length of the trace.
    pub length: Millis,
    /// Changes of the replicas of all pools, by hour.
    pub changes: BTreeMap<Millis, u32>,
    /// The most pods at any time.
    pub most: usize,
    /// Pods that were created.
    pub started: usize,
    /// Decisions about a pool.
    pub decisions: u64,
    /// Daemons that took a job right before they were told to stop. They finish it first.
    pub stopped_busy: u32,
    /// Builds that their grace period did not suffice for.
    pub killed: u32,
    /// Jobs that waited until coderd failed them.
    pub reaped: u32,
}

impl Outcome {
    /// How long the jobs of a pool waited.
    pub fn waits_of(&self, pool: usize) -> Vec<Millis> {
        self.waits.iter().filter(|(of, _)| *of == pool).map(|(_, wait)| *wait).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next job of the trace.
    Arrive,
    Connect(usize),
    Finish(usize),
    /// The grace period of a daemon ends.
    GraceEnds(usize),
    Stop(usize),
    Act {
        pool: usize,
        desired: u32,
    },
    Poll,
    CoderdLeaves,
    CoderdReturns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodState {
    /// Since `fails`, the kubelet says that it does not start.
    Starting {
        fails: Millis,
    },
    Idle,
    Busy {
        until: Millis,
    },
    /// Connected before, and coderd does not see it.
    Lost,
    /// It left, and coderd may still list it.
    Gone {
        at: Millis,
        was_connected: bool,
    },
}

#[derive(Clone, Debug)]
struct SimulatedPod {
    name: String,
    pool: usize,
    created: Millis,
    state: PodState,
    /// It was told to stop.
    is_stopping: bool,
}

struct SimulatedPool {
    policy: ScalingPolicy,
    key: [String; 1],
    tags: DaemonTags,
    replicas: u32,
}

/// The state of a simulation.
pub struct World<'a> {
    trace: &'a Trace,
    rng: Rng,
    now: Millis,
    events: BinaryHeap<Reverse<(Millis, u64, Event)>>,
    scheduled: u64,
    /// Index of the next job of the trace.
    next_job: usize,
    /// Jobs that wait, by the pool with their tags, the oldest first.
    waiting: Vec<VecDeque<TraceJob>>,
    pools: Vec<SimulatedPool>,
    /// Those that left and are listed no longer are removed.
    pods: BTreeMap<usize, SimulatedPod>,
    next_pod: usize,
    is_away: bool,
    answered: Millis,
    times: DaemonTimes,
    outcome: Outcome,
}

impl<'a> World<'a> {
    /// Lives through a trace until its last build ends.
    pub fn run(trace: &'a Trace, setting: Setting, seed: u64) -> Outcome {
        Self::new(trace, setting, seed).live()
    }

    fn new(trace: &'a Trace, setting: Setting, seed: u64) -> Self {
        let pools = trace.pools.iter().map(|pool| SimulatedPool {
            policy: setting.policy(pool.reference),
            key: [format!("key-{}", pool.name)],
            tags: normal(&pool.tags),
            replicas: 0,
        });
        let mut world = Self {
            trace,
            rng: Rng::with_seed(seed),
            now: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            next_job: 0,
            waiting: vec![VecDeque::new(); trace.pools.len()],
            pools: pools.collect(),
            pods: BTreeMap::new(),
            next_pod: 0,
            is_away: false,
            answered: 0,
            times: DaemonTimes::new(trace.time(0)),
            outcome: Outcome::default(),
        };
        world.schedule(0, Event::Poll);
        for fault in trace.faults.iter().filter(|fault| fault.kind == FaultKind::CoderdAway) {
            world.schedule(fault.from, Event::CoderdLeaves);
            world.schedule(fault.to, Event::CoderdReturns);
        }
        if let Some(first) = trace.jobs.first() {
            world.schedule(first.at, Event::Arrive);
        }
        world
    }

    fn live(mut self) -> Outcome {
        while self.step() {}
        self.finish()
    }

    /// Lets the next event happen. False: nothing is left to simulate.
    fn step(&mut self) -> bool {
        let Some(Reverse((at, _, event))) = self.events.pop() else { return false };
        if at >= self.trace.length && self.is_done() {
            return false;
        }
        self.now = at;
        self.happen(event);
        true
    }

    fn is_done(&self) -> bool {
        let is_busy = |pod: &SimulatedPod| matches!(pod.state, PodState::Busy { .. });
        self.next_job == self.trace.jobs.len()
            && self.waiting.iter().all(VecDeque::is_empty)
            && !self.pods.values().any(is_busy)
    }

    fn finish(mut self) -> Outcome {
        self.outcome.length = self.now.max(self.trace.length);
        for pod in self.pods.values().filter(|pod| !pod.is_gone()) {
            self.outcome.daemon_time += self.outcome.length - pod.created;
        }
        self.outcome
    }

    fn schedule(&mut self, at: Millis, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive => self.arrive(),
            Event::Connect(pod) => self.connect(pod),
            Event::Finish(pod) => self.finish_build(pod),
            Event::GraceEnds(pod) => self.end_grace(pod),
            Event::Stop(pod) => self.stop(pod),
            Event::Act { pool, desired } => self.act(pool, desired),
            Event::Poll => self.poll(),
            Event::CoderdLeaves => self.coderd_leaves(),
            Event::CoderdReturns => self.coderd_returns(),
        }
    }

    fn arrive(&mut self) {
        let Some(job) = self.trace.jobs.get(self.next_job).copied() else { return };
        self.next_job += 1;
        if let Some(next) = self.trace.jobs.get(self.next_job) {
            self.schedule(next.at, Event::Arrive);
        }
        if let Some(waiting) = self.waiting.get_mut(job.pool) {
            waiting.push_back(job);
        }
        let may_run = |pod: &SimulatedPod| {
            pod.state == PodState::Idle && !pod.is_stopping && self.may_run(job.pool, pod.pool)
        };
        let idle: Vec<_> = self.pods.iter().filter(|(_, pod)| may_run(pod)).map(|(id, _)| *id).collect();
        if let Some(pod) = self.rng.choice(idle) {
            self.take_job(pod);
        }
    }

    /// Whether a daemon of a pool may run the jobs with the tags of another.
    fn may_run(&self, jobs: usize, daemon: usize) -> bool {
        match (self.pools.get(jobs), self.pools.get(daemon)) {
            (Some(jobs), Some(daemon)) => can_run(&jobs.tags, &daemon.tags),
            _ => false,
        }
    }

    /// An idle daemon takes the oldest job that it may run.
    fn take_job(&mut self, id: usize) {
        self.reap();
        let Some(pool) = self.pods.get(&id).filter(|pod| !pod.is_stopping).map(|pod| pod.pool) else {
            return;
        };
        let oldest = (0..self.waiting.len()).filter(|jobs| self.may_run(*jobs, pool));
        let oldest = oldest.filter_map(|jobs| Some((self.waiting.get(jobs)?.front()?.at, jobs))).min();
        let job = oldest.and_then(|(_, jobs)| self.waiting.get_mut(jobs)?.pop_front());
        let Some((pod, job)) = self.pods.get_mut(&id).zip(job) else { return };
        let until = self.now + job.takes;
        pod.state = PodState::Busy { until };
        self.outcome.waits.push((job.pool, self.now - job.at));
        self.schedule(until, Event::Finish(id));
    }

    /// coderd fails jobs that nobody took.
    fn reap(&mut self) {
        for waiting in &mut self.waiting {
            while let Some(job) = waiting.pop_front_if(|job| self.now - job.at >= REAPED_AFTER) {
                self.outcome.waits.push((job.pool, REAPED_AFTER));
                self.outcome.reaped += 1;
            }
        }
    }

    fn connect(&mut self, id: usize) {
        if self.is_away {
            // Its return connects those that have not left by then.
            return;
        }
        let Some(pod) = self.pods.get_mut(&id) else { return };
        match pod.state {
            PodState::Starting { .. } | PodState::Lost => {
                pod.state = PodState::Idle;
                self.take_job(id);
            }
            PodState::Idle | PodState::Busy { .. } | PodState::Gone { .. } => {}
        }
    }

    fn finish_build(&mut self, id: usize) {
        let returns = self.returns();
        let delay = self.rng.i64(0..REDIAL);
        let Some(pod) = self.pods.get_mut(&id) else { return };
        match (pod.state, returns) {
            // A daemon keeps the result until coderd takes it.
            (PodState::Busy { until }, Some(returns)) if until <= self.now => {
                pod.state = PodState::Busy { until: returns + delay };
                self.schedule(returns + delay, Event::Finish(id));
            }
            (PodState::Busy { until }, None) if until <= self.now => {
                pod.state = PodState::Idle;
                if pod.is_stopping { self.leave(id) } else { self.take_job(id) }
            }
            _ => {}
        }
    }

    /// When coderd returns, if it is away.
    fn returns(&self) -> Option<Millis> {
        let faults = self.trace.faults.iter().filter(|fault| fault.kind == FaultKind::CoderdAway);
        faults
            .filter(|_| self.is_away)
            .find(|fault| (fault.from..fault.to).contains(&self.now))
            .map(|fault| fault.to)
    }

    fn stop(&mut self, id: usize) {
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.is_stopping = true;
        match pod.state {
            PodState::Busy { .. } => {
                self.outcome.stopped_busy += 1;
                self.schedule(self.now + DAEMON_GRACE_SECONDS * SECOND, Event::GraceEnds(id));
            }
            PodState::Starting { .. } | PodState::Idle | PodState::Lost => self.leave(id),
            PodState::Gone { .. } => {}
        }
    }

    fn end_grace(&mut self, id: usize) {
        if self.pods.get(&id).is_some_and(|pod| matches!(pod.state, PodState::Busy { .. })) {
            self.outcome.killed += 1;
            self.leave(id);
        }
    }

    fn leave(&mut self, id: usize) {
        let Some(pod) = self.pods.get_mut(&id) else { return };
        self.outcome.daemon_time += self.now - pod.created;
        let was_connected = !matches!(pod.state, PodState::Starting { .. });
        pod.state = PodState::Gone { at: self.now, was_connected };
    }

    fn coderd_leaves(&mut self) {
        self.is_away = true;
        let idle = self.pods.values_mut().filter(|pod| pod.state == PodState::Idle);
        idle.for_each(|pod| pod.state = PodState::Lost);
        for pod in self.pods.values_mut() {
            // A daemon whose key nobody verifies exits, and its container is started again and again.
            if let PodState::Starting { fails } = &mut pod.state {
                *fails = (*fails).min(self.now + 15 * SECOND);
            }
        }
    }

    fn coderd_returns(&mut self) {
        self.is_away = false;
        let ids: Vec<_> = self.pods.iter().map(|(id, pod)| (*id, pod.state)).collect();
        for (id, state) in ids {
            let within = match state {
                PodState::Starting { .. } => CRASH_LOOP,
                PodState::Lost => REDIAL,
                PodState::Idle | PodState::Busy { .. } | PodState::Gone { .. } => continue,
            };
            let at = self.now + self.rng.i64(0..within);
            self.schedule(at, Event::Connect(id));
        }
    }
}

impl SimulatedPod {
    fn is_gone(&self) -> bool {
        matches!(self.state, PodState::Gone { .. })
    }
}

#[cfg(test)]
mod tests;
