//! Which object is reconciled next.
//!
//! An object waits at most once, runs at most once at a time, and is run again when it was woken while it ran.
//! A wake-up never postpones anything; a delay is only the latest moment of the next run. Waking is cheap and
//! never blocks, so that a follower's queue holds each object once until it leads.
//!
//! Not kube's `Controller`: this one spans kinds and namespaces with one bound on concurrency, can be asked how
//! long it is, and drains.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{key::Key, metrics::Metrics};

/// When an object wants to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// When something wakes it.
    AwaitChange,
    /// After this time at the latest.
    RequeueAfter(Duration),
}

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    /// None: nobody counts.
    metrics: Option<Arc<Metrics>>,
}

impl Shared {
    fn depth(&self, depth: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.queue_depth(depth);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Objects that may run now, in order.
    ready: VecDeque<Key>,
    /// What each known object is doing. An object at rest is not listed.
    doing: HashMap<Key, Doing>,
    /// Moments at which delayed objects become ready. Entries that were overtaken are skipped.
    delays: BinaryHeap<Reverse<(Instant, Key)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Waiting { since: Instant },
    Running { enqueued: bool },
    Sleeping { until: Instant },
}

impl Queue {
    /// An empty queue.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self::counted(Some(metrics))
    }

    /// An empty queue whose length nobody asks for.
    pub fn uncounted() -> Self {
        Self::counted(None)
    }

    fn counted(metrics: Option<Arc<Metrics>>) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), changed: Notify::new(), metrics }) }
    }

    /// Runs the object as soon as possible.
    pub fn enqueue(&self, key: Key) {
        let mut state = self.shared.state.lock();
        match state.doing.get_mut(&key) {
            Some(Doing::Waiting { .. }) => return,
            Some(Doing::Running { enqueued }) => {
                *enqueued = true;
                return;
            }
            Some(Doing::Sleeping { .. }) | None => state.make_ready(key, Instant::now()),
        }
        self.shared.depth(state.ready.len());
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Runs the object after `delay` at the latest. One that runs now is run again when it has ended.
    pub fn enqueue_within(&self, key: Key, delay: Duration) {
        let until = Instant::now() + delay;
        let mut state = self.shared.state.lock();
        match state.doing.get_mut(&key) {
            Some(Doing::Waiting { .. }) => return,
            Some(Doing::Running { enqueued }) => {
                *enqueued = true;
                return;
            }
            Some(Doing::Sleeping { until: sooner }) if *sooner <= until => return,
            Some(Doing::Sleeping { .. }) | None => {
                state.doing.insert(key.clone(), Doing::Sleeping { until });
                state.delays.push(Reverse((until, key)));
            }
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Drops an object that is gone, so that nothing of it is kept. One that runs is left to end.
    pub fn forget(&self, key: &Key) {
        let mut state = self.shared.state.lock();
        match state.doing.get_mut(key) {
            Some(Doing::Running { enqueued }) => *enqueued = false,
            Some(Doing::Waiting { .. } | Doing::Sleeping { .. }) => {
                state.doing.remove(key);
                state.ready.retain(|waiting| waiting != key);
            }
            None => {}
        }
        self.shared.depth(state.ready.len());
    }

    /// How many objects wait to run.
    pub fn depth(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Runs objects until `stop`, at most `concurrency` at a time; then waits up to `drain` for those that run.
    ///
    /// Returns whether all of them ended in time.
    pub async fn run<F, Fut>(
        &self,
        concurrency: usize,
        stop: CancellationToken,
        drain: Duration,
        work: F,
    ) -> bool
    where
        F: Fn(Key) -> Fut,
        Fut: Future<Output = Action> + Send + 'static,
    {
        self.start_the_clock();
        let mut running = JoinSet::new();
        loop {
            while running.len() < concurrency.max(1)
                && let Some(key) = self.take()
            {
                let (queue, done) = (self.clone(), Ended { queue: self.clone(), key: Some(key.clone()) });
                let span = tracing::info_span!("reconcile", object = %key);
                let job = work(key.clone());
                running.spawn(
                    async move {
                        let next = job.await;
                        done.disarm();
                        queue.finish(key, next);
                    }
                    .instrument(span),
                );
            }
            let alarm = self.next_alarm();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = running.join_next() => {}
                () = self.shared.changed.notified(), if running.len() < concurrency.max(1) => {}
                () = async { if let Some(at) = alarm { sleep_until(at).await } }, if alarm.is_some() && running.len() < concurrency.max(1) => {}
            }
        }
        timeout(drain, async { while running.join_next().await.is_some() {} }).await.is_ok()
    }

    /// Until now nobody was to work: only from now on does an object wait for a worker.
    fn start_the_clock(&self) {
        let now = Instant::now();
        for doing in self.shared.state.lock().doing.values_mut() {
            if let Doing::Waiting { since } = doing {
                *since = now;
            }
        }
    }

    fn take(&self) -> Option<Key> {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        state.promote(now);
        let key = state.ready.pop_front()?;
        let before = state.doing.insert(key.clone(), Doing::Running { enqueued: false });
        if let (Some(Doing::Waiting { since }), Some(metrics)) = (before, &self.shared.metrics) {
            metrics.queue_wait(now.saturating_duration_since(since));
        }
        self.shared.depth(state.ready.len());
        Some(key)
    }

    fn finish(&self, key: Key, next: Action) {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let enqueued = matches!(state.doing.remove(&key), Some(Doing::Running { enqueued: true }));
        match next {
            _ if enqueued => state.make_ready(key, now),
            Action::AwaitChange => {}
            Action::RequeueAfter(delay) => {
                let until = now + delay;
                state.doing.insert(key.clone(), Doing::Sleeping { until });
                state.delays.push(Reverse((until, key)));
            }
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    fn next_alarm(&self) -> Option<Instant> {
        self.shared.state.lock().delays.peek().map(|Reverse((at, _))| *at)
    }
}

impl State {
    fn make_ready(&mut self, key: Key, since: Instant) {
        self.doing.insert(key.clone(), Doing::Waiting { since });
        self.ready.push_back(key);
    }

    /// Moves delayed objects whose moment has come to the ready ones.
    fn promote(&mut self, now: Instant) {
        while self.delays.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((at, key))) = self.delays.pop() else { return };
            if self.doing.get(&key) == Some(&Doing::Sleeping { until: at }) {
                self.make_ready(key, now);
            }
        }
    }
}

/// A job that panicked is retried, instead of being taken for running for ever. One that is dropped at the end of the
/// process is not.
struct Ended {
    queue: Queue,
    key: Option<Key>,
}

impl Ended {
    fn disarm(mut self) {
        self.key = None;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(key) = self.key.take().filter(|_| std::thread::panicking()) {
            tracing::error!(object = %key, "the reconcile panicked; it is tried again in 60 s");
            self.queue.finish(key, Action::RequeueAfter(Duration::from_mins(1)));
        }
    }
}

#[cfg(test)]
mod tests;
