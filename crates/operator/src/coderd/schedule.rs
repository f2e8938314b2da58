//! When the next call to a coderd is due: one queue, one backoff, and the due times of one kind of work ([`Schedule`]); and when
//! the keys of pools and the registrations of proxies are verified ([`DependentSchedule`]).
//!
//! Three kinds of work have one each: the sync of control planes, the verification of keys and registrations, and the daemon
//! poll. The queues are separate, so that a server that hangs delays its own work alone. Due times are in memory only; after
//! a restart each kind of work derives them from the status.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use coder_k8s_core::{object, outcome::Retry};
use coder_k8s_engine::{
    backoff::{Backoff, Failures, jitter},
    cache::ObjectKey,
    metrics::Metrics,
    queue::{Action, Queue, due_in},
};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::controller::CoderResource;
use crate::intervals::REQUEUE_CONTINUE;

/// A call to coderd that repeats at an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// Verify the operator token and license, the key, or the registration.
    Verify,
    /// Read the entitlements.
    Entitlements,
}

/// When each task of an object is due. None: it was never scheduled.
#[derive(Clone, Copy, Debug, Default)]
struct DueTimes {
    verify: Option<Instant>,
    entitlements: Option<Instant>,
}

impl DueTimes {
    fn of(&mut self, task: Task) -> &mut Option<Instant> {
        match task {
            Task::Verify => &mut self.verify,
            Task::Entitlements => &mut self.entitlements,
        }
    }
}

/// The schedule of one kind of work.
pub(crate) struct Schedule {
    pub(crate) queue: Queue,
    failures: Failures,
    due: Mutex<HashMap<ObjectKey, DueTimes>>,
}

impl Schedule {
    /// Creates an empty schedule. `metrics` are those that its queue is part of.
    pub(crate) fn new(metrics: Option<Arc<Metrics>>) -> Self {
        let queue = metrics.map_or_else(Queue::uncounted, Queue::new);
        Self { queue, failures: Failures::default(), due: Mutex::default() }
    }

    /// Schedules a task after a delay; zero makes it due at once.
    pub(crate) fn set_due(&self, key: &ObjectKey, task: Task, delay: Duration) {
        *self.due.lock().entry(key.clone()).or_default().of(task) = Some(due_in(delay));
    }

    /// Whether a task is due. A task that was never scheduled is due.
    pub(crate) fn is_due(&self, key: &ObjectKey, task: Task) -> bool {
        let mut due = self.due.lock();
        due.get_mut(key).and_then(|times| *times.of(task)).is_none_or(|at| at <= Instant::now())
    }

    /// How long until the next task. None: nothing is scheduled.
    pub(crate) fn next_due(&self, key: &ObjectKey) -> Option<Duration> {
        let DueTimes { verify, entitlements } = *self.due.lock().get(key)?;
        let next = verify.into_iter().chain(entitlements).min()?;
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

/// The schedule of all pools and proxies of the process.
///
/// A verification runs when the spec or a Secret changes, and at an interval. After a restart of the operator the
/// verifications of objects that are well are spread over one interval. What was created in coderd and was not stored or not
/// accepted is created again only after a growing delay ([`Creations`]).
pub(crate) struct DependentSchedule {
    /// Its queue is the one in which pools and proxies are reconciled: they call coderd while they are.
    pub(crate) schedule: Schedule,
    states: Mutex<HashMap<ObjectKey, DependentState>>,
    /// Objects that refer to a Secret which changed since their last reconcile.
    changed: Mutex<HashSet<ObjectKey>>,
    interval: Duration,
}

/// What the process knows of one object between reconciles.
#[derive(Default)]
struct DependentState {
    uid: Option<String>,
    generation: Option<i64>,
    creations: Creations,
    /// The name that this process announced and has not asked coderd for yet.
    announced: Option<String>,
}

impl DependentSchedule {
    /// Creates an empty schedule. Verifications repeat at `interval`, a tenth more or less.
    pub(crate) fn new(metrics: Arc<Metrics>, interval: Duration) -> Self {
        Self {
            schedule: Schedule::new(Some(metrics)),
            states: Mutex::default(),
            changed: Mutex::default(),
            interval,
        }
    }

    /// Makes the verification due, because a Secret that the object refers to changed, or coderd no longer lists a
    /// daemon. Does not enqueue the object.
    pub(crate) fn make_due(&self, key: &ObjectKey) {
        self.changed.lock().insert(key.clone());
    }

    /// Makes the verification due, because the watch of Secrets missed events. An object that was not reconciled yet has
    /// missed nothing: else a restart would verify every object at once.
    pub(crate) fn watch_gap(&self, key: &ObjectKey) {
        if self.states.lock().contains_key(key) {
            self.make_due(key);
        }
    }

    /// Forgets an object that no longer exists.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.states.lock().remove(key);
        self.changed.lock().remove(key);
        self.schedule.forget(key);
    }

    /// Whether an object is to be verified. `condition` is the one that is True while its credential is well. Consumes the
    /// note of a changed Secret, so that a reconcile calls this once.
    pub(crate) fn is_due<K: CoderResource>(&self, key: &ObjectKey, object: &K, condition: &str) -> bool {
        let secret_changed = self.changed.lock().remove(key);
        let mut all = self.states.lock();
        let state = all.get_mut(key).filter(|state| state.uid == object.uid());
        let Some(state) = state else {
            // The first reconcile of this process: the status says whether a verification can wait.
            let wait =
                if is_verified(object, condition) { self.interval.mul_f64(jitter()) } else { Duration::ZERO };
            let (uid, generation) = (object.uid(), object.meta().generation);
            all.insert(key.clone(), DependentState { uid, generation, ..DependentState::default() });
            self.schedule.set_due(key, Task::Verify, wait);
            return wait.is_zero() || secret_changed;
        };
        let edited = state.generation != object.meta().generation;
        if secret_changed || edited {
            self.schedule.set_due(key, Task::Verify, Duration::ZERO);
        }
        if edited {
            // An edit may have removed the cause.
            state.creations = Creations::default();
        }
        state.generation = object.meta().generation;
        self.schedule.is_due(key, Task::Verify)
    }

    /// Notes that this process announces a name on the status, before it asks coderd for it.
    pub(crate) fn note_announced(&self, key: &ObjectKey, name: &str) {
        if let Some(state) = self.states.lock().get_mut(key) {
            state.announced = Some(name.to_owned());
        }
    }

    /// Notes that coderd is asked for what was announced.
    pub(crate) fn note_asked(&self, key: &ObjectKey) {
        if let Some(state) = self.states.lock().get_mut(key) {
            state.announced = None;
        }
    }

    /// Whether coderd was never asked for an announced name: this process announced it, and has not asked.
    pub(crate) fn is_unasked(&self, key: &ObjectKey, name: &str) -> bool {
        self.states.lock().get(key).is_some_and(|state| state.announced.as_deref() == Some(name))
    }

    /// Records that something was created in coderd, or may have been. Whatever enqueues the object, the next creation waits
    /// for a growing delay, until coderd accepts what was created or the object is edited.
    pub(crate) fn created(&self, key: &ObjectKey) {
        if let Some(state) = self.states.lock().get_mut(key) {
            state.creations.created();
        }
    }

    /// Records that the credential is stored, and that coderd accepts it.
    pub(crate) fn accepted(&self, key: &ObjectKey) {
        if let Some(state) = self.states.lock().get_mut(key) {
            state.creations = Creations::default();
        }
    }

    /// How long nothing may be created in coderd yet. None: something may.
    pub(crate) fn creation_backoff(&self, key: &ObjectKey) -> Option<Duration> {
        self.states.lock().get(key)?.creations.backoff()
    }

    /// The requeue after a reconcile that failed and wrote no final status.
    pub(crate) fn failed(&self, key: &ObjectKey, retry: Retry) -> Action {
        Action::RequeueAfter(self.delay(key, retry))
    }

    fn delay(&self, key: &ObjectKey, retry: Retry) -> Duration {
        self.schedule.failed(key, retry)
    }

    /// The requeue after a reconcile: the soonest of all that ask for one.
    ///
    /// `finished` is that of [`Context::finish`](crate::controller::Context::finish), `continues` says that the protocol has
    /// more steps, `interval_factor` shortens the verify interval, `delays` come from the decisions, and `retry` from a
    /// failed call to coderd.
    pub(crate) fn requeue(
        &self,
        key: &ObjectKey,
        finished: Action,
        continues: bool,
        interval_factor: f64,
        delays: impl IntoIterator<Item = Option<Duration>>,
        retry: Option<Retry>,
    ) -> Action {
        if let Some(retry) = retry {
            return soonest(finished, [Some(self.delay(key, retry))]);
        }
        if let Some(backoff) = self.creation_backoff(key).filter(|_| continues) {
            return soonest(finished, [Some(backoff)].into_iter().chain(delays));
        }
        // A reconcile that continues has not succeeded yet: the delay of a step that fails each time must keep growing.
        if !continues {
            self.schedule.succeeded(key);
            if self.states.lock().contains_key(key) && self.schedule.is_due(key, Task::Verify) {
                let wait = jittered(self.interval).mul_f64(interval_factor);
                self.schedule.set_due(key, Task::Verify, wait);
            }
        }
        let verify = self.schedule.next_due(key);
        soonest(finished, [continues.then_some(REQUEUE_CONTINUE), verify].into_iter().chain(delays))
    }
}

#[cfg(test)]
mod tests {
    use coder_k8s_api::{CoderProvisioner, condition::condition_type};
    use serde_json::json;

    use super::*;

    /// The resolution of the paused clock.
    const TICK: Duration = Duration::from_millis(2);

    fn object(generation: i64) -> CoderProvisioner {
        serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": "pool", "namespace": "ns", "uid": "u", "generation": generation},
            "spec": {"controlPlaneRef": {"name": "coder"}}}))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_accepted_is_created_again_after_a_growing_delay_or_an_edit() {
        let (schedule, key) = (
            DependentSchedule::new(Metrics::new(), Duration::from_mins(5)),
            ObjectKey::new("Pool", "ns", "pool"),
        );
        schedule.is_due(&key, &object(1), condition_type::PROVISIONER_KEY_READY);
        // A failure that created nothing delays no creation.
        schedule.failed(&key, Retry::Backoff);
        assert_eq!(schedule.creation_backoff(&key), None);

        schedule.created(&key);
        let delay = schedule.creation_backoff(&key).expect("the next one waits");
        // Whatever enqueues it: it waits for the rest of the time, and its creations are not forgotten.
        let half = delay / 2;
        tokio::time::advance(half).await;
        schedule.make_due(&key);
        schedule.is_due(&key, &object(1), condition_type::PROVISIONER_KEY_READY);
        let next = schedule.requeue(&key, Action::AwaitChange, true, 1.0, [None], None);
        assert!(
            matches!(next, Action::RequeueAfter(left) if left.abs_diff(half) < TICK),
            "{next:?} is not {half:?}"
        );
        tokio::time::advance(half + TICK).await;
        assert_eq!(schedule.creation_backoff(&key), None);

        // The delay grows with each further one.
        schedule.created(&key);
        assert!(schedule.creation_backoff(&key).is_some_and(|longer| longer > delay));
        schedule.is_due(&key, &object(2), condition_type::PROVISIONER_KEY_READY);
        assert_eq!(schedule.creation_backoff(&key), None, "an edit is tried at once");
        schedule.created(&key);
        schedule.accepted(&key);
        assert_eq!(schedule.creation_backoff(&key), None, "what was accepted is no reason to wait");
    }

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
