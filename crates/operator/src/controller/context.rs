//! What every reconcile has at hand.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, Reason};
use coder_k8s_coderd::{Connector, postgres::Postgres};
use coder_k8s_core::{
    condition::transitions,
    object::Deletion,
    outcome::{ActResult, Retry},
};
use coder_k8s_engine::{
    apply::Applier,
    backoff::Failures,
    cache::Cache,
    client,
    events::Events,
    failure,
    fence::Fence,
    index::References,
    key::Key,
    metrics::{Metrics, Outcome},
    queue::{Action, Queue},
    status::{self, Written},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    caches::{Caches, kind},
    options::Options,
    referenced::ReferencedObjects,
    watches::Scope,
};
use crate::{
    coderd::verify_schedule::VerifySchedule,
    controlplane::{
        coderd_sync::{CoderdSync, Intervals},
        daemon_poll::DaemonPoller,
    },
};

/// How soon to look again at an object of others that is in the way.
const FOREIGN: Duration = Duration::from_secs(5);

/// How soon to look again for what this process itself wrote.
const OWN_WRITE: Duration = Duration::from_millis(50);

/// What this process wrote to an object last.
#[derive(Default)]
struct Wrote {
    /// Hash of the status, so that our own writes are not taken for news.
    status: Option<u64>,
    /// The version of the object that it was written onto. A view of that version is outdated.
    onto: Option<String>,
}

/// The ways out of the cluster.
pub(crate) struct ExternalClients {
    pub(crate) connector: Connector,
    pub(crate) postgres: Postgres,
}

/// What every reconcile has at hand.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    pub(crate) references: References,
    pub(crate) applier: Applier,
    pub(crate) events: Events,
    pub(crate) failures: Failures,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) queue: Queue,
    /// What is known of objects that ours refer to.
    pub(crate) referenced: ReferencedObjects,
    /// The sync of control planes with their coderd.
    pub(crate) coderd_sync: CoderdSync,
    /// Pools and proxies, whose passes talk to coderd themselves and so have a queue of their own.
    pub(crate) verify_schedule: VerifySchedule,
    /// Who of the daemons is there.
    pub(crate) daemon_poller: DaemonPoller,
    /// Makes clients of coderd.
    pub(crate) connector: Connector,
    /// The way into its database.
    pub(crate) postgres: Postgres,
    /// How long cleaning up outside the cluster may hold a deletion up.
    pub(crate) cleanup_timeout: Duration,
    /// How long a request to coderd may have an effect that nobody learned of.
    pub(crate) late_effect_window: SignedDuration,
    /// Whether this process may write.
    pub(crate) fence: Fence,
    /// Where the operator looks.
    pub(crate) scope: Scope,
    /// Addresses of coderd to which credentials of `bootstrap` may be sent.
    pub(crate) allowed_urls: Vec<String>,
    /// Whether workspaces may be given Secrets, RBAC and tokens.
    pub(crate) privileged_rules: bool,
    /// Whether the cluster has the Gateway API.
    pub(crate) gateway_api: AtomicBool,
    /// What was last written to each object.
    written: Mutex<HashMap<Key, Wrote>>,
}

/// An object with conditions on its status.
pub(crate) trait CoderResource:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
    /// The kind.
    const KIND: &'static str;

    /// Its status.
    type Status: Serialize + Debug + PartialEq;

    /// The status that it has.
    fn status(&self) -> Option<&Self::Status>;

    /// The conditions of a status.
    fn conditions(status: &Self::Status) -> &[Condition];
}

macro_rules! reported {
    ($($kind:ty => $called:expr, $status:ty;)+) => {$(
        impl CoderResource for $kind {
            const KIND: &'static str = $called;
            type Status = $status;

            fn status(&self) -> Option<&$status> {
                self.status.as_ref()
            }

            fn conditions(status: &$status) -> &[Condition] {
                &status.workload.conditions
            }
        }
    )+};
}

reported! {
    CoderControlPlane => kind::CONTROL_PLANE, coder_k8s_api::CoderControlPlaneStatus;
    CoderProvisioner => kind::PROVISIONER, coder_k8s_api::CoderProvisionerStatus;
    CoderWorkspaceProxy => kind::WORKSPACE_PROXY, coder_k8s_api::CoderWorkspaceProxyStatus;
}

impl Context {
    /// A context with nothing seen yet.
    pub(crate) fn new(
        client: Client,
        instance: String,
        outside: ExternalClients,
        metrics: Arc<Metrics>,
        fence: Fence,
        options: &Options,
    ) -> Self {
        let intervals =
            Intervals { entitlements: options.entitlements_interval, verify: options.verify_interval };
        Self {
            coderd_sync: CoderdSync::new(intervals),
            verify_schedule: VerifySchedule::new(metrics.clone(), options.verify_interval),
            daemon_poller: DaemonPoller::new(options.daemons_interval, options.daemons_patience),
            connector: outside.connector,
            postgres: outside.postgres,
            cleanup_timeout: options.cleanup_timeout,
            late_effect_window: late_effect_window(options.coderd_timeout),
            fence,
            referenced: ReferencedObjects::default(),
            scope: Scope::new(&options.watch_namespaces),
            allowed_urls: options.allowed_coder_urls.clone(),
            privileged_rules: options.allow_privileged_workspace_rules,
            gateway_api: AtomicBool::new(false),
            caches: Caches::default(),
            references: References::default(),
            applier: Applier::new(client.clone()),
            events: Events::new(client.clone(), instance),
            failures: Failures::default(),
            queue: Queue::new(metrics.clone()),
            written: Mutex::default(),
            metrics,
            client,
        }
    }

    /// Where an object waits.
    pub(crate) fn queue_of(&self, key: &Key) -> &Queue {
        if key.kind == kind::CONTROL_PLANE { &self.queue } else { &self.verify_schedule.schedule.queue }
    }

    /// Has an object looked at.
    pub(crate) fn enqueue(&self, key: Key) {
        self.queue_of(&key).enqueue(key);
    }

    /// The time.
    #[expect(clippy::unused_self, reason = "time is part of what a reconcile is given")]
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// The object to work on. Else when to come back: it is gone, or what was seen of it is older than what this
    /// process itself wrote.
    pub(crate) fn look<K: Resource>(&self, cache: &Cache<K>, key: &Key) -> Result<Arc<K>, Action> {
        let Some(object) = cache.get(&key.namespace, &key.name) else {
            self.forget(key);
            return Err(Action::AwaitChange);
        };
        let version = object.meta().resource_version.as_ref();
        let outdated = self
            .written
            .lock()
            .get(key)
            .is_some_and(|wrote| version.is_some() && wrote.onto.as_ref() == version);
        if outdated { Err(Action::RequeueAfter(OWN_WRITE)) } else { Ok(object) }
    }

    /// How soon to look again at an object that this pass itself has written. The watch is quicker as a rule.
    #[expect(clippy::unused_self, reason = "patience is part of what a reconcile is given")]
    pub(crate) fn own_write(&self) -> Duration {
        OWN_WRITE
    }

    /// Whether a status is what this process wrote last.
    pub(crate) fn wrote<S: Serialize>(&self, key: &Key, status: Option<&S>) -> bool {
        self.written.lock().get(key).is_some_and(|wrote| wrote.status == Some(hash(status)))
    }

    /// Remembers that something other than the status of an object was written: this view of it is outdated.
    pub(super) fn mark_stale<K: CoderResource>(&self, object: &K) {
        let mut all = self.written.lock();
        all.entry(Key::of(K::KIND, object)).or_default().onto.clone_from(&object.meta().resource_version);
    }

    /// Whether an object is still the one that was decided on, read live, and this process may still change anything.
    pub(crate) async fn is_current<K: CoderResource>(&self, object: &K) -> bool {
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let live = match api.get_metadata_opt(&object.name_any()).await {
            Ok(Some(live)) => live.resource_version() == object.resource_version(),
            Ok(None) | Err(_) => false,
        };
        live && self.fence.is_open()
    }

    /// Whether an object is still of the generation that was decided on, read live, and this process may still change
    /// anything. Unlike [`Self::is_current`] it allows for writes of the status, which other queues of this process make.
    pub(crate) async fn is_unedited<K: CoderResource>(&self, object: &K) -> bool {
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let is_same = match api.get_metadata_opt(&object.name_any()).await {
            Ok(Some(live)) => {
                let (live, seen) = (live.meta(), object.meta());
                (&live.uid, live.generation, &live.deletion_timestamp)
                    == (&seen.uid, seen.generation, &seen.deletion_timestamp)
            }
            Ok(None) | Err(_) => false,
        };
        is_same && self.fence.is_open()
    }

    /// How the deletion of an object stands. None: it is not being deleted.
    pub(crate) fn deletion<K: Resource>(&self, object: &K) -> Option<Deletion> {
        let since = object.meta().deletion_timestamp.as_ref()?;
        let limit = SignedDuration::try_from(self.cleanup_timeout).unwrap_or(SignedDuration::MAX);
        Some(Deletion { overdue: self.now().duration_since(since.0) >= limit })
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.written.lock().remove(key);
        self.failures.forget(key);
        self.referenced.forget(key);
        self.coderd_sync.remove(key);
        self.verify_schedule.forget(key);
        self.daemon_poller.remove(key);
    }

    /// Writes a status in the middle of a pass, before something that must not happen unrecorded. What was seen of the
    /// object no longer counts after it.
    pub(crate) async fn record_status<K: CoderResource>(
        &self,
        key: &Key,
        object: &K,
        next: &K::Status,
    ) -> kube::Result<Written> {
        let written = status::write(&self.client, object, object.status(), next).await?;
        if written == Written::Changed {
            let onto = object.meta().resource_version.clone();
            self.written.lock().insert(key.clone(), Wrote { status: Some(hash(Some(next))), onto });
        }
        Ok(written)
    }

    /// Ends a pass: writes the status if it changed, tells of transitions, and says when to come back.
    pub(crate) async fn finish<K: CoderResource>(
        &self,
        key: &Key,
        object: &K,
        next: &K::Status,
        mut done: ActResult,
        started: Instant,
    ) -> Action {
        if done.failures.iter().any(|failure| failure.reason == Reason::NotLeading) {
            // A deposed leader says nothing: the process is about to end.
            return Action::RequeueAfter(Duration::from_secs(1));
        }
        let outdated =
            !done.failures.is_empty() && done.failures.iter().all(|failure| failure.retry == Retry::Soon);
        if outdated && !self.failures.any(key) {
            // Our view was old, as happens. That is worth another look and not a word.
            return Action::RequeueAfter(self.failures.failed(key, Retry::Soon));
        }
        self.written.lock().insert(key.clone(), Wrote { status: Some(hash(Some(next))), onto: None });
        match status::write(&self.client, object, object.status(), next).await {
            Ok(Written::Unchanged) => {}
            // Computed from an old view. The event that shows the new one may be one that wakes nobody.
            Ok(Written::Outdated) => {
                self.metrics.reconciled(key.kind, Outcome::Waiting, Reason::Outdated, started.elapsed());
                return Action::RequeueAfter(self.failures.failed(key, Retry::Soon));
            }
            Ok(Written::Changed) => {
                let onto = object.meta().resource_version.clone();
                self.written.lock().insert(key.clone(), Wrote { status: Some(hash(Some(next))), onto });
                let before = object.status().map_or(&[][..], K::conditions);
                for note in transitions(before, K::conditions(next)) {
                    tracing::info!(reason = %note.reason, "{}", note.message);
                    self.events.publish(&object.object_ref(&()), &note).await;
                }
            }
            Err(error) if client::is_not_leading(&error) => {
                return Action::RequeueAfter(Duration::from_secs(1));
            }
            Err(error) => done.failures.push(failure::from_kube("write the status", &error)),
        }
        let Some(first) = done.failures.first() else {
            if !done.foreign.is_empty() {
                // No watch shows what belongs to others: look again now and then.
                self.metrics.reconciled(key.kind, Outcome::Waiting, Reason::ForeignObject, started.elapsed());
                return Action::RequeueAfter(self.failures.failed(key, Retry::After(FOREIGN)));
            }
            self.failures.forget(key);
            self.metrics.reconciled(key.kind, Outcome::Settled, Reason::Reconciled, started.elapsed());
            return Action::AwaitChange;
        };
        self.metrics.reconciled(key.kind, Outcome::Failed, first.reason, started.elapsed());
        let delay = self.failures.failed(key, done.retry().unwrap_or(first.retry));
        if first.retry == Retry::Soon {
            tracing::debug!(reason = %first.reason, ?delay, "{}", first.message);
        } else {
            tracing::warn!(reason = %first.reason, ?delay, "{}", first.message);
        }
        Action::RequeueAfter(delay)
    }
}

/// Twelve times the deadline of a call, after which nobody waits for it any more: two minutes unless told otherwise.
fn late_effect_window(deadline: Duration) -> SignedDuration {
    SignedDuration::try_from(deadline.saturating_mul(12)).unwrap_or(SignedDuration::MAX)
}

fn hash<S: Serialize>(status: Option<&S>) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
