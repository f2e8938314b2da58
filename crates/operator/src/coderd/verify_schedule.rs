//! When the keys and registrations of pools and proxies are verified.
//!
//! A verification runs when the spec or a Secret changes, and at an interval. A restart of the operator verifies nothing
//! before its time. What was created in coderd and then lost is created again only after a growing delay.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::{CoderProvisioner, condition::kind};
use coder_k8s_core::{
    object,
    outcome::Retry,
    provisioner::{daemons::Pod, keys::Decision},
};
use coder_k8s_engine::{backoff::jitter, cache::ObjectKey, metrics::Metrics, queue::Action};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::schedule::{Schedule, Task, jittered, soonest};
use crate::controller::CoderResource;

/// How soon the next reconcile continues with the steps that one reconcile began.
const REQUEUE_CONTINUE: Duration = Duration::from_millis(50);

/// The schedule of all pools and proxies of the process.
pub(crate) struct VerifySchedule {
    pub(crate) schedule: Schedule,
    known: Mutex<HashMap<ObjectKey, Known>>,
    /// Objects of which a Secret changed since their last reconcile.
    changed: Mutex<HashSet<ObjectKey>>,
    /// The pods of each pool as of a version of its Deployment.
    pods: Mutex<HashMap<ObjectKey, Listed>>,
    interval: Duration,
}

/// Pods, and the version of the Deployment at which they were listed.
type Listed = (String, Arc<Vec<Pod>>);

struct Known {
    uid: Option<String>,
    generation: Option<i64>,
    /// Whether the last reconcile created something in coderd that it could not store.
    lost: bool,
    /// Nothing is created in coderd before this time.
    hold: Option<Instant>,
}

impl VerifySchedule {
    /// Creates an empty schedule that verifies at this interval.
    pub(crate) fn new(metrics: Arc<Metrics>, interval: Duration) -> Self {
        Self {
            schedule: Schedule::counted(metrics),
            known: Mutex::default(),
            changed: Mutex::default(),
            pods: Mutex::default(),
            interval,
        }
    }

    /// Verifies at the next reconcile, because a Secret that the object refers to changed.
    pub(crate) fn secret_changed(&self, key: &ObjectKey) {
        self.changed.lock().insert(key.clone());
    }

    /// Verifies at the next reconcile, because the watch missed events and Secrets may have changed. An object that was
    /// not reconciled yet has missed nothing.
    pub(crate) fn watch_gap(&self, key: &ObjectKey) {
        if self.known.lock().contains_key(key) {
            self.secret_changed(key);
        }
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.known.lock().remove(key);
        self.changed.lock().remove(key);
        self.pods.lock().remove(key);
        self.schedule.forget(key);
    }

    /// The pods of a pool, if they were listed at this version of its Deployment.
    pub(crate) fn pods(&self, key: &ObjectKey, version: &str) -> Option<Arc<Vec<Pod>>> {
        self.pods.lock().get(key).filter(|(listed, _)| listed == version).map(|(_, pods)| pods.clone())
    }

    /// Lists the pods of a pool again at the next reconcile, because this process deleted some.
    pub(crate) fn forget_pods(&self, key: &ObjectKey) {
        self.pods.lock().remove(key);
    }

    /// Keeps the pods of a pool as of a version of its Deployment.
    pub(crate) fn keep_pods(&self, key: &ObjectKey, version: String, pods: &Arc<Vec<Pod>>) {
        self.pods.lock().insert(key.clone(), (version, pods.clone()));
    }

    /// Whether the key is to be verified: on a change, and at an interval. A restart alone verifies in its time.
    pub(crate) fn verify_due(&self, key: &ObjectKey, object: &CoderProvisioner) -> bool {
        self.is_due(key, object, kind::PROVISIONER_KEY_READY)
    }

    /// The same of any kind. `good` is the condition that says that all is well.
    pub(crate) fn is_due<K: CoderResource>(&self, key: &ObjectKey, object: &K, good: &str) -> bool {
        let now = Instant::now();
        let secret_changed = self.changed.lock().remove(key);
        let mut all = self.known.lock();
        let known = all.get_mut(key).filter(|known| known.uid == object.uid());
        let Some(known) = known else {
            let wait = if is_steady(object, good) { self.interval.mul_f64(jitter()) } else { Duration::ZERO };
            let generation = object.meta().generation;
            all.insert(key.clone(), Known { uid: object.uid(), generation, lost: false, hold: None });
            self.schedule.set_due(key, Task::Verify, now + wait);
            return wait.is_zero() || secret_changed;
        };
        let edited = known.generation != object.meta().generation;
        if secret_changed || edited {
            self.schedule.set_due(key, Task::Verify, now);
        }
        if edited {
            known.hold = None;
        }
        known.generation = object.meta().generation;
        self.schedule.is_due(key, Task::Verify)
    }

    /// Notes that a reconcile created something in coderd that it could not store. Whatever enqueues the object, the next
    /// one is created only when the delay is over, or the object was edited.
    pub(crate) fn lost(&self, key: &ObjectKey) {
        if let Some(known) = self.known.lock().get_mut(key) {
            known.lost = true;
        }
    }

    /// How long nothing may be created in coderd yet. None: something may.
    pub(crate) fn hold(&self, key: &ObjectKey) -> Option<Duration> {
        let hold = self.known.lock().get(key)?.hold?;
        Some(hold.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// The requeue after a reconcile that failed half-way.
    pub(crate) fn failed(&self, key: &ObjectKey, retry: Retry) -> Action {
        Action::RequeueAfter(self.delay(key, retry))
    }

    fn delay(&self, key: &ObjectKey, retry: Retry) -> Duration {
        let delay = self.schedule.failed(key, retry);
        if let Some(known) = self.known.lock().get_mut(key).filter(|known| known.lost) {
            known.lost = false;
            known.hold = Some(Instant::now() + delay);
        }
        delay
    }

    /// The requeue after the reconcile of a pool.
    pub(crate) fn next(
        &self,
        key: &ObjectKey,
        concluded: Action,
        decision: &Decision,
        again: [Option<Duration>; 2],
        retry: Option<Retry>,
    ) -> Action {
        let [gate, health] = again;
        self.come_back(key, concluded, decision.next.goes_on(), 1.0, [decision.again, gate, health], retry)
    }

    /// The requeue after a reconcile of any kind: whether it continues at once, and which part of the interval passes before
    /// the next verification.
    pub(crate) fn come_back(
        &self,
        key: &ObjectKey,
        concluded: Action,
        goes_on: bool,
        patience: f64,
        again: impl IntoIterator<Item = Option<Duration>>,
        retry: Option<Retry>,
    ) -> Action {
        if let Some(retry) = retry {
            return soonest(concluded, [Some(self.delay(key, retry))]);
        }
        if let Some(hold) = self.hold(key).filter(|_| goes_on) {
            return soonest(concluded, [Some(hold)].into_iter().chain(again));
        }
        // A reconcile that continues has not succeeded yet: the delay of a step that fails each time must keep growing.
        if !goes_on {
            self.schedule.succeeded(key);
            if self.known.lock().contains_key(key) && self.schedule.is_due(key, Task::Verify) {
                let wait = jittered(self.interval).mul_f64(patience);
                self.schedule.set_due(key, Task::Verify, Instant::now() + wait);
            }
        }
        let verify = self.schedule.next_due(key);
        soonest(concluded, [goes_on.then_some(REQUEUE_CONTINUE), verify].into_iter().chain(again))
    }
}

/// Whether a status says that all is well with the generation that there is.
fn is_steady<K: CoderResource>(object: &K, good: &str) -> bool {
    let mut conditions = object.status().into_iter().flat_map(K::conditions);
    let ready = conditions
        .any(|c| c.type_ == good && c.status == "True" && c.observed_generation == object.meta().generation);
    ready && !object::is_deleting(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a clock that stands may differ by.
    const TICK: Duration = Duration::from_millis(2);

    fn object(generation: i64) -> CoderProvisioner {
        serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": "pool", "namespace": "ns", "uid": "u", "generation": generation},
            "spec": {"controlPlaneRef": {"name": "coder"}}}))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_is_made_again_after_the_delay_or_an_edit() {
        let (pools, key) = (
            VerifySchedule::new(Metrics::new(), Duration::from_mins(5)),
            ObjectKey::new("Pool", "ns", "pool"),
        );
        pools.verify_due(&key, &object(1));
        // A failure that cost nothing holds nothing up.
        pools.failed(&key, Retry::Backoff);
        assert_eq!(pools.hold(&key), None);

        pools.lost(&key);
        let Action::RequeueAfter(delay) = pools.failed(&key, Retry::Backoff) else { panic!("it comes back") };
        assert!(pools.hold(&key).is_some_and(|left| left.abs_diff(delay) < TICK));
        // Whoever wakes it: it waits for the rest of the time, and its failures are not forgotten.
        let half = delay / 2;
        tokio::time::advance(half).await;
        pools.secret_changed(&key);
        pools.verify_due(&key, &object(1));
        let next = pools.come_back(&key, Action::AwaitChange, true, 1.0, [None], None);
        assert!(
            matches!(next, Action::RequeueAfter(left) if left.abs_diff(half) < TICK),
            "{next:?} is not {half:?}"
        );
        tokio::time::advance(half + TICK).await;
        assert_eq!(pools.hold(&key), None);

        // Each time it is lost again it takes longer.
        pools.lost(&key);
        let Action::RequeueAfter(longer) = pools.failed(&key, Retry::Backoff) else {
            panic!("it comes back")
        };
        assert!(longer > delay);
        pools.verify_due(&key, &object(2));
        assert_eq!(pools.hold(&key), None, "an edit is tried at once");
    }
}
