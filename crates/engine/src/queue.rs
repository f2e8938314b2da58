//! The work queue: which object is reconciled next.
//!
//! An object is in the queue at most once, is reconciled by at most one worker at a time, and is reconciled again if
//! it was enqueued meanwhile. Enqueueing never postpones a reconcile: a delay is the latest time of the next one.
//! Enqueueing is cheap and never blocks, so that the queue of a follower holds each object once until it leads.
//!
//! Every object that was enqueued is due, delayed or being reconciled, until a reconcile leaves it to the next change or the
//! object is forgotten. No delay that somebody asks for can lose it: see [`due_in`].
//!
//! kube's `Controller` does not fit: this queue spans kinds and namespaces with one bound on concurrency, reports its
//! depth, and drains on shutdown.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    cache::ObjectKey,
    intervals::{HURRIED_PRECEDENCE, QUEUE_DELAY_MAX, REQUEUE_AFTER_PANIC},
    metrics::Metrics,
};

/// One in so many reconciles is of an object that was enqueued without hurry, so that the others cannot delay it for ever. It is
/// also the share of workers that such objects have while others are being reconciled, so that they cannot delay those.
const UNHURRIED_SHARE: usize = 8;

/// When an object is reconciled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// When something enqueues it.
    AwaitChange,
    /// After this time, or earlier if something enqueues it.
    RequeueAfter(Duration),
}

/// The time after a delay of at most [`QUEUE_DELAY_MAX`]. Sums of times panic when they overflow, and delays come from servers,
/// specs and flags.
pub fn due_in(delay: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(delay.min(QUEUE_DELAY_MAX)).unwrap_or(now)
}

/// The queue. Clones share its state.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    /// `None` for a queue that does not appear in the metrics.
    metrics: Option<Arc<Metrics>>,
}

impl Shared {
    fn report_depth(&self, depth: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.queue_depth(depth);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Objects that are due, in order.
    ready: VecDeque<ObjectKey>,
    /// Objects that are due once `ready` is empty, by the ticket that their phase has.
    unhurried: BTreeMap<u64, ObjectKey>,
    next_ticket: u64,
    /// How many objects were taken.
    taken: usize,
    running: usize,
    /// Of those that run, how many were taken from `unhurried`.
    running_unhurried: usize,
    /// Since when an object runs that was not.
    hurried_since: Option<Instant>,
    /// The phase of each queued or running object. An idle object has no entry.
    phases: HashMap<ObjectKey, Phase>,
    /// When delayed objects become due. An entry is stale, and skipped, unless the object's phase has the same time.
    delays: BinaryHeap<Reverse<(Instant, ObjectKey)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { since: Instant, ticket: Option<u64> },
    Running { enqueued_again: bool, is_unhurried: bool },
    Delayed { until: Instant },
}

impl Queue {
    /// Creates an empty queue whose depth and waiting times are counted.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self::with(Some(metrics))
    }

    /// Creates an empty queue that does not appear in the metrics.
    pub fn uncounted() -> Self {
        Self::with(None)
    }

    fn with(metrics: Option<Arc<Metrics>>) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), changed: Notify::new(), metrics }) }
    }

    /// Reconciles the object as soon as a worker is free, and once more if it is being reconciled now.
    pub fn enqueue(&self, key: ObjectKey) {
        self.enqueue_by(key, None);
    }

    /// Reconciles the object after those that wait now. For one that probably needs nothing, as at a start: an object that was
    /// edited while nothing ran should not wait for thousands that were not.
    pub fn enqueue_unhurried(&self, key: ObjectKey) {
        let mut state = self.shared.state.lock();
        match state.phases.get_mut(&key) {
            Some(Phase::Waiting { .. }) => return,
            Some(Phase::Running { enqueued_again, .. }) => {
                *enqueued_again = true;
                return;
            }
            Some(Phase::Delayed { .. }) | None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state
                    .phases
                    .insert(key.clone(), Phase::Waiting { since: Instant::now(), ticket: Some(ticket) });
                state.unhurried.insert(ticket, key);
            }
        }
        self.changed(state);
    }

    /// Reconciles the object after `delay` at the latest. One that is being reconciled now is reconciled again right
    /// after.
    pub fn enqueue_within(&self, key: ObjectKey, delay: Duration) {
        self.enqueue_by(key, Some(due_in(delay)));
    }

    fn enqueue_by(&self, key: ObjectKey, latest: Option<Instant>) {
        let mut state = self.shared.state.lock();
        match (state.phases.get_mut(&key), latest) {
            (Some(Phase::Waiting { since, ticket: Some(ticket) }), None) => {
                let (since, ticket) = (*since, *ticket);
                state.unhurried.remove(&ticket);
                state.make_ready(key, since);
            }
            (Some(Phase::Waiting { .. }), _) => return,
            (Some(Phase::Running { enqueued_again, .. }), _) => {
                *enqueued_again = true;
                return;
            }
            (Some(Phase::Delayed { until }), Some(latest)) if *until <= latest => return,
            (Some(Phase::Delayed { .. }) | None, Some(latest)) => state.delay(key, latest),
            (Some(Phase::Delayed { .. }) | None, None) => state.make_ready(key, Instant::now()),
        }
        self.changed(state);
    }

    fn changed(&self, state: MutexGuard<'_, State>) {
        self.shared.report_depth(state.depth());
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Removes an object that is gone. A reconcile that runs is left to end and is not repeated.
    pub fn forget(&self, key: &ObjectKey) {
        let mut state = self.shared.state.lock();
        match state.phases.get_mut(key) {
            Some(Phase::Running { enqueued_again, .. }) => *enqueued_again = false,
            Some(Phase::Waiting { ticket: Some(ticket), .. }) => {
                let ticket = *ticket;
                state.unhurried.remove(&ticket);
                state.phases.remove(key);
            }
            Some(Phase::Waiting { ticket: None, .. } | Phase::Delayed { .. }) => {
                state.phases.remove(key);
                state.ready.retain(|waiting| waiting != key);
            }
            None => {}
        }
        self.shared.report_depth(state.depth());
    }

    /// The number of objects that are due and wait for a worker.
    pub fn depth(&self) -> usize {
        self.shared.state.lock().depth()
    }

    /// Calls `reconcile` for each due object until `stop`, at most `concurrency` at a time; then waits up to `drain`
    /// for the reconciles that run.
    ///
    /// Returns whether all of them ended in time. Those that did not are cancelled.
    pub async fn run<F, Fut>(
        &self,
        concurrency: usize,
        stop: CancellationToken,
        drain: Duration,
        reconcile: F,
    ) -> bool
    where
        F: Fn(ObjectKey) -> Fut,
        Fut: Future<Output = Action> + Send + 'static,
    {
        let concurrency = concurrency.max(1);
        self.restart_waiting_times();
        let mut running = JoinSet::new();
        loop {
            while running.len() < concurrency
                && let Some(key) = self.take(concurrency)
            {
                let queue = self.clone();
                let span = tracing::info_span!("reconcile", object = %key);
                let job = AssertUnwindSafe(reconcile(key.clone())).catch_unwind();
                running.spawn(
                    async move {
                        // Without a catch, the phase of the object would stay `Running` for ever after a panic.
                        let next = job.await.unwrap_or_else(|_| {
                            let delay = REQUEUE_AFTER_PANIC;
                            tracing::error!(
                                "the reconcile panicked, and is retried in {} s",
                                delay.as_secs()
                            );
                            Action::RequeueAfter(delay)
                        });
                        queue.finish(key, next);
                    }
                    .instrument(span),
                );
            }
            let next_due = self.next_due(concurrency);
            tokio::select! {
                // The stop comes first, so that a queue that never empties stops too.
                biased;
                () = stop.cancelled() => break,
                Some(_) = running.join_next() => {}
                () = self.shared.changed.notified(), if running.len() < concurrency => {}
                () = async { if let Some(at) = next_due { sleep_until(at).await } }, if next_due.is_some() && running.len() < concurrency => {}
            }
        }
        timeout(drain, async { while running.join_next().await.is_some() {} }).await.is_ok()
    }

    /// Counts waiting times from now: while this process followed there were no workers to wait for.
    fn restart_waiting_times(&self) {
        let now = Instant::now();
        for phase in self.shared.state.lock().phases.values_mut() {
            if let Phase::Waiting { since, .. } = phase {
                *since = now;
            }
        }
    }

    fn take(&self, concurrency: usize) -> Option<ObjectKey> {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        state.promote(now);
        let (key, is_unhurried) = state.next(concurrency, now)?;
        state.running += 1;
        if is_unhurried {
            state.running_unhurried += 1;
        } else {
            state.hurried_since.get_or_insert(now);
        }
        let running = Phase::Running { enqueued_again: false, is_unhurried };
        let before = state.phases.insert(key.clone(), running);
        if let (Some(Phase::Waiting { since, .. }), Some(metrics)) = (before, &self.shared.metrics) {
            metrics.queue_wait(now.saturating_duration_since(since));
        }
        self.shared.report_depth(state.depth());
        Some(key)
    }

    fn finish(&self, key: ObjectKey, next: Action) {
        let mut state = self.shared.state.lock();
        let Some(Phase::Running { enqueued_again, is_unhurried }) = state.phases.remove(&key) else { return };
        state.running -= 1;
        state.running_unhurried -= usize::from(is_unhurried);
        if state.running == state.running_unhurried {
            state.hurried_since = None;
        }
        match next {
            _ if enqueued_again => state.make_ready(key, Instant::now()),
            Action::AwaitChange => {}
            Action::RequeueAfter(delay) => state.delay(key, due_in(delay)),
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// When another object may be taken, even if none is enqueued and none of those that run ends.
    fn next_due(&self, concurrency: usize) -> Option<Instant> {
        let state = self.shared.state.lock();
        let delayed = state.delays.peek().map(|Reverse((at, _))| *at);
        let awaits_share =
            !state.unhurried.is_empty() && state.running_unhurried < unhurried_share(concurrency);
        let share_begins =
            state.hurried_since.filter(|_| awaits_share).map(|since| since + HURRIED_PRECEDENCE);
        delayed.into_iter().chain(share_begins).min()
    }
}

/// How many of the workers objects without hurry have beside others.
fn unhurried_share(concurrency: usize) -> usize {
    concurrency.div_ceil(UNHURRIED_SHARE)
}

impl State {
    fn make_ready(&mut self, key: ObjectKey, since: Instant) {
        self.phases.insert(key.clone(), Phase::Waiting { since, ticket: None });
        self.ready.push_back(key);
    }

    fn depth(&self) -> usize {
        self.ready.len() + self.unhurried.len()
    }

    /// Takes the next object that is due, and says whether it was enqueued without hurry.
    fn next(&mut self, concurrency: usize, now: Instant) -> Option<(ObjectKey, bool)> {
        // At a start hundreds without hurry are due, which need the CPU alone, and the API server is often on the same one.
        let unhurried_limit = match self.hurried_since {
            None => concurrency,
            Some(since) if now.saturating_duration_since(since) < HURRIED_PRECEDENCE => 1,
            Some(_) => unhurried_share(concurrency),
        };
        let may_take_unhurried = self.running_unhurried < unhurried_limit;
        let is_turn = (self.taken + 1).is_multiple_of(UNHURRIED_SHARE) || self.ready.is_empty();
        let key = match self.unhurried.first_entry().filter(|_| is_turn && may_take_unhurried) {
            Some(entry) => (entry.remove(), true),
            None => (self.ready.pop_front()?, false),
        };
        self.taken += 1;
        Some(key)
    }

    fn delay(&mut self, key: ObjectKey, until: Instant) {
        self.phases.insert(key.clone(), Phase::Delayed { until });
        self.delays.push(Reverse((until, key)));
    }

    /// Makes delayed objects ready whose delay has ended.
    fn promote(&mut self, now: Instant) {
        while self.delays.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((at, key))) = self.delays.pop() else { return };
            if self.phases.get(&key) == Some(&Phase::Delayed { until: at }) {
                self.make_ready(key, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
