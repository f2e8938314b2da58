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
pub enum Next {
    /// When something wakes it.
    OnChange,
    /// After this time at the latest.
    After(Duration),
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
    Running { woken: bool },
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
    pub fn wake(&self, key: Key) {
        let mut state = self.shared.state.lock();
        match state.doing.get_mut(&key) {
            Some(Doing::Waiting { .. }) => return,
            Some(Doing::Running { woken }) => {
                *woken = true;
                return;
            }
            Some(Doing::Sleeping { .. }) | None => state.make_ready(key, Instant::now()),
        }
        self.shared.depth(state.ready.len());
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Runs the object after `delay` at the latest. One that runs now is run again when it has ended.
    pub fn wake_within(&self, key: Key, delay: Duration) {
        let until = Instant::now() + delay;
        let mut state = self.shared.state.lock();
        match state.doing.get_mut(&key) {
            Some(Doing::Waiting { .. }) => return,
            Some(Doing::Running { woken }) => {
                *woken = true;
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
            Some(Doing::Running { woken }) => *woken = false,
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
        Fut: Future<Output = Next> + Send + 'static,
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
        let before = state.doing.insert(key.clone(), Doing::Running { woken: false });
        if let (Some(Doing::Waiting { since }), Some(metrics)) = (before, &self.shared.metrics) {
            metrics.queue_wait(now.saturating_duration_since(since));
        }
        self.shared.depth(state.ready.len());
        Some(key)
    }

    fn finish(&self, key: Key, next: Next) {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let woken = matches!(state.doing.remove(&key), Some(Doing::Running { woken: true }));
        match next {
            _ if woken => state.make_ready(key, now),
            Next::OnChange => {}
            Next::After(delay) => {
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
            self.queue.finish(key, Next::After(Duration::from_mins(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("Thing", "ns", name)
    }

    fn queue() -> Queue {
        Queue::new(Metrics::new())
    }

    /// Runs the queue for `time` with jobs that take `each`, and returns who ran when, in milliseconds.
    async fn run(queue: &Queue, time: Duration, each: Duration, next: Next) -> Vec<(String, u128)> {
        let (start, log) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let stop = CancellationToken::new();
        let jobs = queue.run(2, stop.clone(), Duration::from_secs(10), |key| {
            let log = log.clone();
            async move {
                log.lock().push((key.name, start.elapsed().as_millis()));
                tokio::time::sleep(each).await;
                next
            }
        });
        let ((), drained) = tokio::join!(
            async {
                tokio::time::sleep(time).await;
                stop.cancel();
            },
            jobs
        );
        assert!(drained);

        log.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_only_once() {
        let queue = queue();
        for _ in 0..5 {
            queue.wake(key("a"));
        }
        assert_eq!(queue.depth(), 1);
        let ran = run(&queue, Duration::from_secs(1), Duration::from_millis(10), Next::OnChange).await;
        assert_eq!(ran.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_woken_while_it_runs_runs_once_more() {
        let queue = queue();
        queue.wake(key("a"));
        let waker = queue.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            waker.wake(key("a"));
            waker.wake(key("a"));
        });
        let ran = run(&queue, Duration::from_secs(1), Duration::from_millis(100), Next::OnChange).await;
        assert_eq!(ran, [("a".to_owned(), 0), ("a".to_owned(), 100)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_up_with_patience_never_postpones_another() {
        let queue = queue();
        queue.wake_within(key("a"), Duration::from_secs(5));
        queue.wake_within(key("a"), Duration::from_secs(2));
        queue.wake_within(key("a"), Duration::from_secs(9));
        queue.wake_within(key("b"), Duration::from_secs(5));
        queue.wake(key("b"));
        let ran = run(&queue, Duration::from_secs(20), Duration::ZERO, Next::OnChange).await;
        assert_eq!(ran, [("b".to_owned(), 0), ("a".to_owned(), 2000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_an_object_that_is_gone() {
        let queue = queue();
        for name in ["a", "b"] {
            queue.wake(key(name));
        }
        queue.forget(&key("a"));
        assert_eq!((queue.depth(), queue.shared.state.lock().doing.len()), (1, 1));
        let ran = run(&queue, Duration::from_secs(1), Duration::ZERO, Next::OnChange).await;
        assert_eq!(ran.len(), 1);
        assert!(queue.shared.state.lock().doing.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_object_delays_no_other() {
        let queue = queue();
        for name in ["slow", "a", "b", "c"] {
            queue.wake(key(name));
        }
        let done = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let counted = done.clone();
        let jobs = queue.run(2, stop.clone(), Duration::ZERO, move |key| {
            let done = counted.clone();
            async move {
                if key.name == "slow" {
                    tokio::time::sleep(Duration::from_hours(1)).await;
                }
                done.fetch_add(1, Ordering::SeqCst);
                Next::OnChange
            }
        });
        let ((), drained) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                stop.cancel();
            },
            jobs
        );
        assert_eq!(done.load(Ordering::SeqCst), 3);
        assert!(!drained, "the slow one did not end within the drain");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_ends_early_when_the_object_is_woken() {
        let queue = queue();
        queue.wake(key("a"));
        let waker = queue.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            waker.wake(key("a"));
        });
        let ran =
            run(&queue, Duration::from_secs(75), Duration::ZERO, Next::After(Duration::from_mins(1))).await;
        let times: Vec<_> = ran.iter().map(|(_, at)| at / 1000).collect();
        assert_eq!(times, [0, 10, 70], "the alarm of the first delay was overtaken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_panics_is_tried_again() {
        let queue = queue();
        queue.wake(key("a"));
        let (count, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let counted = count.clone();
        let jobs = queue.run(1, stop.clone(), Duration::ZERO, move |_| {
            let count = counted.clone();
            async move {
                assert!(count.fetch_add(1, Ordering::SeqCst) > 0, "the first run fails");
                Next::OnChange
            }
        });
        tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(61)).await;
                stop.cancel();
            },
            jobs
        );
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}
