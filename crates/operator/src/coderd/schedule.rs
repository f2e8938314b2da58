//! When the next call to a coderd is due: one queue, one backoff, and the due times of one kind of work.
//!
//! Three kinds of work have one each: the sync of control planes, the verification of keys and registrations, and the daemon
//! poll. The queues are separate, so that a server that hangs delays its own work alone. Due times are in memory only; after
//! a restart each kind of work derives them from the status.

use std::{collections::HashMap, sync::Arc, time::Duration};

use coder_k8s_core::{object, outcome::Retry};
use coder_k8s_engine::{
    backoff::{Backoff, Failures, jitter},
    cache::ObjectKey,
    metrics::Metrics,
    queue::{Action, Queue, due_in},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::controller::CoderResource;

/// A call to coderd that repeats at an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Verify the operator token and license, the key, or the registration.
    Verify,
    /// Read the entitlements.
    Entitlements,
}

/// The schedule of one kind of work.
pub(crate) struct Schedule {
    pub(crate) queue: Queue,
    failures: Failures,
    due: Mutex<HashMap<ObjectKey, HashMap<Task, Instant>>>,
}

impl Schedule {
    /// Creates an empty schedule. `metrics` are those that its queue is part of.
    pub(crate) fn new(metrics: Option<Arc<Metrics>>) -> Self {
        let queue = metrics.map_or_else(Queue::uncounted, Queue::new);
        Self { queue, failures: Failures::default(), due: Mutex::default() }
    }

    /// Schedules a task after a delay; zero makes it due at once.
    pub(crate) fn set_due(&self, key: &ObjectKey, task: Task, delay: Duration) {
        self.due.lock().entry(key.clone()).or_default().insert(task, due_in(delay));
    }

    /// Whether a task is due. A task that was never scheduled is due.
    pub(crate) fn is_due(&self, key: &ObjectKey, task: Task) -> bool {
        let due = self.due.lock();
        due.get(key).and_then(|tasks| tasks.get(&task)).is_none_or(|at| *at <= Instant::now())
    }

    /// How long until the next task. None: nothing is scheduled.
    pub(crate) fn next_due(&self, key: &ObjectKey) -> Option<Duration> {
        let due = self.due.lock();
        let next = due.get(key)?.values().min().copied()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub(crate) fn failed(&self, key: &ObjectKey, retry: Retry) -> Duration {
        self.failures.failed(key, retry)
    }

    /// Forgets earlier failures: the next one starts with the shortest delay.
    pub(crate) fn succeeded(&self, key: &ObjectKey) {
        self.failures.forget(key);
    }

    /// Forgets the due times and failures of an object, but leaves it in the queue: see [`Self::remove`].
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.due.lock().remove(key);
        self.failures.forget(key);
    }

    /// Forgets an object that no longer exists, and removes it from the queue.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        self.forget(key);
        self.queue.forget(key);
    }

    /// Requeues at the next due time, or waits for a change.
    pub(crate) fn at_next_due(&self, key: &ObjectKey) -> Action {
        self.next_due(key).map_or(Action::AwaitChange, Action::RequeueAfter)
    }
}

/// What was created in coderd for one object since coderd last accepted it.
///
/// The delay before the next creation grows with each, whoever enqueues the object: what coderd does not accept, and what
/// cannot be stored, must not fill coderd with keys, tokens and registrations. An edit of the spec starts anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Creations {
    count: u32,
    /// Nothing is created before this time.
    after: Option<Instant>,
}

impl Creations {
    /// Counts a creation that coderd carried out, or may have.
    pub(crate) fn created(&mut self) {
        self.count = self.count.saturating_add(1);
        self.after = Some(due_in(Backoff::default().delay(self.count, None, jitter())));
    }

    /// How long nothing may be created yet. None: something may.
    pub(crate) fn backoff(&self) -> Option<Duration> {
        let left = self.after?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }
}

/// Whether the condition is True for the present generation, and the object is not being deleted. After a restart the
/// verification of such an object can wait.
pub(crate) fn is_verified<K: CoderResource>(object: &K, condition: &str) -> bool {
    let mut conditions = object.status().into_iter().flat_map(K::conditions);
    let is_true = conditions.any(|c| {
        c.type_ == condition && c.status == "True" && c.observed_generation == object.meta().generation
    });
    is_true && !object::is_deleting(object)
}

/// The interval, a tenth more or less, so that objects that start together do not call coderd together for ever.
pub(crate) fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * jitter())
}

/// The earliest of an action and some delays.
pub(crate) fn soonest(action: Action, others: impl IntoIterator<Item = Option<Duration>>) -> Action {
    let own = match action {
        Action::AwaitChange => None,
        Action::RequeueAfter(delay) => Some(delay),
    };
    others.into_iter().flatten().chain(own).min().map_or(Action::AwaitChange, Action::RequeueAfter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_come_due_one_by_one_and_unknown_ones_are_due_at_once() {
        let (schedule, key) = (Schedule::new(None), ObjectKey::new("CoderControlPlane", "ns", "coder"));
        assert!(schedule.is_due(&key, Task::Verify));
        assert_eq!(schedule.next_due(&key), None);
        schedule.set_due(&key, Task::Verify, Duration::from_mins(10));
        schedule.set_due(&key, Task::Entitlements, Duration::from_secs(100));
        assert_eq!(schedule.next_due(&key), Some(Duration::from_secs(100)));
        tokio::time::advance(Duration::from_secs(100)).await;
        assert!(schedule.is_due(&key, Task::Entitlements) && !schedule.is_due(&key, Task::Verify));
        schedule.forget(&key);
        assert!(schedule.is_due(&key, Task::Verify));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_accepted_is_created_a_bounded_number_of_times_an_hour() {
        let (mut creations, start, mut made) = (Creations::default(), Instant::now(), Vec::new());
        while start.elapsed() < Duration::from_hours(1) {
            // Somebody enqueues the object all the time.
            if creations.backoff().is_none() {
                creations.created();
                made.push(start.elapsed());
            }
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        let soon = made.iter().filter(|at| at.as_secs() < 10).count();
        assert!((3..=6).contains(&soon), "{made:?}");
        assert!(made.len() <= 30, "{} in an hour", made.len());
        assert_eq!(Creations::default().backoff(), None, "the first one is not delayed");
    }

    #[test]
    fn the_soonest_requeue_counts() {
        let second = Duration::from_secs;
        assert_eq!(soonest(Action::AwaitChange, [None]), Action::AwaitChange);
        assert_eq!(soonest(Action::AwaitChange, [Some(second(3)), None]), Action::RequeueAfter(second(3)));
        assert_eq!(
            soonest(Action::RequeueAfter(second(1)), [Some(second(3))]),
            Action::RequeueAfter(second(1))
        );
    }
}
