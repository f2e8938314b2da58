//! What the process remembers of pools and proxies: when their keys and tokens are to be verified.

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
use coder_k8s_engine::{
    backoff::{Failures, jitter},
    key::Key,
    metrics::Metrics,
    queue::{Action, Queue},
};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::controller::CoderResource;

/// How soon to go on with what one pass has begun.
const ON: Duration = Duration::from_millis(50);

/// All pools and proxies of the process.
pub(crate) struct VerifySchedule {
    /// Which one is looked at next.
    pub(crate) queue: Queue,
    failures: Failures,
    known: Mutex<HashMap<Key, Known>>,
    object_written: Mutex<HashSet<Key>>,
    /// The pods of each as of a version of its Deployment.
    pods: Mutex<HashMap<Key, Listed>>,
    verify: Duration,
}

/// Pods, and the version of the Deployment at which they were listed.
type Listed = (String, Arc<Vec<Pod>>);

struct Known {
    uid: Option<String>,
    generation: Option<i64>,
    verify_at: Instant,
    /// Whether the last pass made something that it could not keep.
    lost: bool,
    /// Nothing is made again before this.
    hold: Option<Instant>,
}

impl VerifySchedule {
    /// Nobody was looked at yet.
    pub(crate) fn new(metrics: Arc<Metrics>, verify: Duration) -> Self {
        Self {
            queue: Queue::new(metrics),
            failures: Failures::default(),
            known: Mutex::default(),
            object_written: Mutex::default(),
            pods: Mutex::default(),
            verify,
        }
    }

    /// A Secret that one refers to has changed.
    pub(crate) fn touch(&self, key: &Key) {
        self.object_written.lock().insert(key.clone());
    }

    /// Secrets may have changed unseen. Whoever was not looked at yet has missed nothing.
    pub(crate) fn gap(&self, key: &Key) {
        if self.known.lock().contains_key(key) {
            self.touch(key);
        }
    }

    /// Forgets one that is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.known.lock().remove(key);
        self.object_written.lock().remove(key);
        self.pods.lock().remove(key);
        self.failures.forget(key);
    }

    /// The pods of a pool, if they were listed at this version of its Deployment.
    pub(crate) fn pods(&self, key: &Key, version: &str) -> Option<Arc<Vec<Pod>>> {
        self.pods.lock().get(key).filter(|(listed, _)| listed == version).map(|(_, pods)| pods.clone())
    }

    /// Has the pods of a pool listed again: they were changed.
    pub(crate) fn forget_pods(&self, key: &Key) {
        self.pods.lock().remove(key);
    }

    /// Keeps the pods of a pool as of a version of its Deployment.
    pub(crate) fn keep_pods(&self, key: &Key, version: String, pods: &Arc<Vec<Pod>>) {
        self.pods.lock().insert(key.clone(), (version, pods.clone()));
    }

    /// Whether the key is to be verified: on a change, and at an interval. A restart alone verifies in its time.
    pub(crate) fn verify_due(&self, key: &Key, object: &CoderProvisioner) -> bool {
        self.is_due(key, object, kind::PROVISIONER_KEY_READY)
    }

    /// The same of any kind. `good` is the condition that says that all is well.
    pub(crate) fn is_due<K: CoderResource>(&self, key: &Key, object: &K, good: &str) -> bool {
        let now = Instant::now();
        let object_written = self.object_written.lock().remove(key);
        let mut all = self.known.lock();
        let known = all.get_mut(key).filter(|known| known.uid == object.uid());
        let Some(known) = known else {
            let wait = if is_steady(object, good) { self.verify.mul_f64(jitter()) } else { Duration::ZERO };
            let generation = object.meta().generation;
            let known =
                Known { uid: object.uid(), generation, verify_at: now + wait, lost: false, hold: None };
            all.insert(key.clone(), known);
            return wait.is_zero() || object_written;
        };
        let edited = known.generation != object.meta().generation;
        if object_written || edited {
            known.verify_at = now;
        }
        if edited {
            known.hold = None;
        }
        known.generation = object.meta().generation;
        known.verify_at <= now
    }

    /// A pass has made something in coderd that it could not keep. Whoever wakes the object, the next is made only when
    /// the delay is over, or the object was edited.
    pub(crate) fn lost(&self, key: &Key) {
        if let Some(known) = self.known.lock().get_mut(key) {
            known.lost = true;
        }
    }

    /// How long nothing is to be made yet.
    pub(crate) fn hold(&self, key: &Key) -> Option<Duration> {
        let hold = self.known.lock().get(key)?.hold?;
        Some(hold.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// When to come back after a pass that failed half-way.
    pub(crate) fn failed(&self, key: &Key, retry: Retry) -> Action {
        Action::RequeueAfter(self.delay(key, retry))
    }

    fn delay(&self, key: &Key, retry: Retry) -> Duration {
        let delay = self.failures.failed(key, retry);
        if let Some(known) = self.known.lock().get_mut(key).filter(|known| known.lost) {
            known.lost = false;
            known.hold = Some(Instant::now() + delay);
        }
        delay
    }

    /// When to come back after a pass.
    pub(crate) fn next(
        &self,
        key: &Key,
        concluded: Action,
        decision: &Decision,
        again: [Option<Duration>; 2],
        retry: Option<Retry>,
    ) -> Action {
        let [gate, health] = again;
        self.come_back(key, concluded, decision.next.goes_on(), 1.0, [decision.again, gate, health], retry)
    }

    /// The same of any kind: whether it goes on at once, and how much of the interval passes before the next
    /// verification.
    pub(crate) fn come_back(
        &self,
        key: &Key,
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
        // What goes on has not succeeded yet: a step that fails each time is not to begin at once again each time.
        if !goes_on {
            self.failures.forget(key);
        }
        let now = Instant::now();
        let verify = {
            let mut all = self.known.lock();
            all.get_mut(key).map(|known| {
                if !goes_on && known.verify_at <= now {
                    known.verify_at = now + self.verify.mul_f64(patience * (0.9 + 0.2 * jitter()));
                }
                known.verify_at.saturating_duration_since(now)
            })
        };
        soonest(concluded, [goes_on.then_some(ON), verify].into_iter().chain(again))
    }
}

/// Whether a status says that all is well with the generation that there is.
fn is_steady<K: CoderResource>(object: &K, good: &str) -> bool {
    let mut conditions = object.status().into_iter().flat_map(K::conditions);
    let ready = conditions
        .any(|c| c.type_ == good && c.status == "True" && c.observed_generation == object.meta().generation);
    ready && !object::is_deleting(object)
}

fn soonest(next: Action, others: impl IntoIterator<Item = Option<Duration>>) -> Action {
    let asked = match next {
        Action::AwaitChange => None,
        Action::RequeueAfter(delay) => Some(delay),
    };
    others.into_iter().flatten().chain(asked).min().map_or(Action::AwaitChange, Action::RequeueAfter)
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
        let (pools, key) =
            (VerifySchedule::new(Metrics::new(), Duration::from_mins(5)), Key::new("Pool", "ns", "pool"));
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
        pools.touch(&key);
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
