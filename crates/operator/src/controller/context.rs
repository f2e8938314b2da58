//! What every reconcile has at hand.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use coder_k8s_api::Reason;
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
    cache::ObjectKey,
    client,
    events::Events,
    failure,
    fence::Fence,
    index::ReferenceIndex,
    metrics::{Metrics, ReconcileOutcome},
    queue::{Action, Queue},
    status::{self, StatusWrite},
};
use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    caches::Caches,
    kinds::{CoderKind, CoderResource},
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

/// How soon to read again an object of others that has the name of a child: no watch shows it.
const REQUEUE_FOREIGN: Duration = Duration::from_secs(5);

/// How soon to reconcile again after this process wrote the object itself. The watch is quicker as a rule.
const REQUEUE_OWN_WRITE: Duration = Duration::from_millis(50);

/// What this process wrote to an object last.
#[derive(Default)]
struct LastWritten {
    /// Hash of the status, so that our own writes are not taken for news.
    status: Option<u64>,
    /// The version of the object that it was written onto. A view of that version is outdated.
    onto: Option<String>,
}

/// Clients of servers outside the cluster.
pub(crate) struct ExternalClients {
    pub(crate) connector: Connector,
    pub(crate) postgres: Postgres,
}

/// What whoever runs the operator decided by flags.
pub(crate) struct Policy {
    /// How long clean-up outside the cluster may delay a deletion.
    pub(crate) cleanup_timeout: Duration,
    /// How long after it was sent a request to coderd may still have an effect whose answer was lost.
    pub(crate) late_effect_window: SignedDuration,
    /// The namespaces that are watched.
    pub(crate) scope: Scope,
    /// Addresses of coderd to which credentials of `bootstrap` may be sent.
    pub(crate) allowed_urls: Vec<String>,
    /// Whether `rbac.extraRules` may grant Secrets, RBAC and tokens.
    pub(crate) privileged_rules: bool,
}

impl Policy {
    fn new(options: &Options) -> Self {
        Self {
            cleanup_timeout: options.cleanup_timeout,
            late_effect_window: late_effect_window(options.coderd_timeout),
            scope: Scope::new(&options.watch_namespaces),
            allowed_urls: options.allowed_coder_urls.clone(),
            privileged_rules: options.allow_privileged_workspace_rules,
        }
    }
}

/// What every reconcile has at hand.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) applier: Applier,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether this process may write.
    pub(crate) fence: Fence,
    pub(crate) external: ExternalClients,
    pub(crate) policy: Policy,

    pub(crate) caches: Caches,
    /// Which objects refer to which.
    pub(crate) references: ReferenceIndex,
    /// What is known of Secrets, ConfigMaps and Namespaces that objects refer to.
    pub(crate) referenced: ReferencedObjects,
    /// Whether the cluster has the Gateway API.
    pub(crate) gateway_api: AtomicBool,

    /// Reconciles of control planes.
    pub(crate) queue: Queue,
    pub(crate) failures: Failures,
    pub(crate) coderd_sync: CoderdSync,
    /// Reconciles of pools and proxies.
    pub(crate) verify_schedule: VerifySchedule,
    pub(crate) daemon_poller: DaemonPoller,
    /// What was last written to each object.
    last_written: Mutex<HashMap<ObjectKey, LastWritten>>,
}

impl Context {
    /// A context with empty caches.
    pub(crate) fn new(
        client: Client,
        instance: String,
        external: ExternalClients,
        metrics: Arc<Metrics>,
        fence: Fence,
        options: &Options,
    ) -> Self {
        let intervals =
            Intervals { entitlements: options.entitlements_interval, verify: options.verify_interval };
        Self {
            applier: Applier::new(client.clone()),
            events: Events::new(client.clone(), instance),
            fence,
            external,
            policy: Policy::new(options),
            caches: Caches::default(),
            references: ReferenceIndex::default(),
            referenced: ReferencedObjects::default(),
            gateway_api: AtomicBool::new(false),
            queue: Queue::new(metrics.clone()),
            failures: Failures::default(),
            coderd_sync: CoderdSync::new(intervals),
            verify_schedule: VerifySchedule::new(metrics.clone(), options.verify_interval),
            daemon_poller: DaemonPoller::new(options.daemons_interval, options.daemons_patience),
            last_written: Mutex::default(),
            metrics,
            client,
        }
    }

    /// The queue of a kind. Reconciles of pools and proxies call coderd, and so have a wide queue of their own.
    pub(crate) fn queue_of(&self, kind: CoderKind) -> &Queue {
        match kind {
            CoderKind::ControlPlane => &self.queue,
            CoderKind::Provisioner | CoderKind::WorkspaceProxy => &self.verify_schedule.schedule.queue,
        }
    }

    /// Enqueues an object of ours. Keys of other kinds are ignored.
    pub(crate) fn enqueue(&self, key: ObjectKey) {
        if let Some(kind) = CoderKind::named(key.kind) {
            self.queue_of(kind).enqueue(key);
        }
    }

    /// The time.
    #[expect(clippy::unused_self, reason = "time is part of what a reconcile is given")]
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// The cached object. The error is the requeue: the object is gone, or the cache is older than what this process itself
    /// wrote.
    pub(crate) fn cached<K: Resource>(&self, cache: &Cache<K>, key: &ObjectKey) -> Result<Arc<K>, Action> {
        let Some(object) = cache.get(&key.namespace, &key.name) else {
            self.forget(key);
            return Err(Action::AwaitChange);
        };
        let version = object.meta().resource_version.as_ref();
        let is_stale = self
            .last_written
            .lock()
            .get(key)
            .is_some_and(|written| version.is_some() && written.onto.as_ref() == version);
        if is_stale { Err(self.requeue_own_write()) } else { Ok(object) }
    }

    /// The requeue of an object that this reconcile has written, so that what it observed is outdated.
    #[expect(clippy::unused_self, reason = "intervals are part of what a reconcile is given")]
    pub(crate) fn requeue_own_write(&self) -> Action {
        Action::RequeueAfter(REQUEUE_OWN_WRITE)
    }

    /// Whether a status is what this process wrote last.
    pub(crate) fn is_own_status<S: Serialize>(&self, key: &ObjectKey, status: Option<&S>) -> bool {
        self.last_written.lock().get(key).is_some_and(|written| written.status == Some(hash(status)))
    }

    /// Remembers that something other than the status of an object was written: the cached object is outdated.
    pub(super) fn mark_stale<K: CoderResource>(&self, object: &K) {
        let mut all = self.last_written.lock();
        all.entry(ObjectKey::of(K::KIND.as_str(), object))
            .or_default()
            .onto
            .clone_from(&object.meta().resource_version);
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

    /// Whether the deletion of an object has passed its deadline. None: it is not being deleted.
    pub(crate) fn deletion<K: Resource>(&self, object: &K) -> Option<Deletion> {
        let since = object.meta().deletion_timestamp.as_ref()?;
        let limit = SignedDuration::try_from(self.policy.cleanup_timeout).unwrap_or(SignedDuration::MAX);
        Some(Deletion { overdue: self.now().duration_since(since.0) >= limit })
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.last_written.lock().remove(key);
        self.failures.forget(key);
        self.referenced.forget(key);
        self.coderd_sync.remove(key);
        self.verify_schedule.forget(key);
        self.daemon_poller.remove(key);
    }

    /// Writes a status in the middle of a reconcile, before an effect that must not happen unrecorded. What was observed is
    /// outdated afterwards.
    pub(crate) async fn record_status<K: CoderResource>(
        &self,
        key: &ObjectKey,
        object: &K,
        next: &K::Status,
    ) -> kube::Result<StatusWrite> {
        let written = status::write(&self.client, object, object.status(), next).await?;
        if written == StatusWrite::Changed {
            let onto = object.meta().resource_version.clone();
            self.last_written
                .lock()
                .insert(key.clone(), LastWritten { status: Some(hash(Some(next))), onto });
        }
        Ok(written)
    }

    /// Ends a reconcile: writes the status if it changed, publishes an event for each transition, and returns the requeue.
    pub(crate) async fn finish<K: CoderResource>(
        &self,
        key: &ObjectKey,
        object: &K,
        next: &K::Status,
        mut done: ActResult,
        started: Instant,
    ) -> Action {
        if done.failures.iter().any(|failure| failure.reason == Reason::NotLeading) {
            // A deposed leader writes nothing: the process is about to end.
            return Action::RequeueAfter(Duration::from_secs(1));
        }
        let is_outdated =
            !done.failures.is_empty() && done.failures.iter().all(|failure| failure.retry == Retry::Soon);
        if is_outdated && !self.failures.any(key) {
            // The cache was outdated, as happens: reconciled again without a word on the status.
            return Action::RequeueAfter(self.failures.failed(key, Retry::Soon));
        }
        self.last_written
            .lock()
            .insert(key.clone(), LastWritten { status: Some(hash(Some(next))), onto: None });
        match status::write(&self.client, object, object.status(), next).await {
            Ok(StatusWrite::Unchanged) => {}
            // Computed from an outdated object. The event that shows the newer one may enqueue nobody.
            Ok(StatusWrite::Outdated) => {
                self.metrics.reconciled(
                    key.kind,
                    ReconcileOutcome::Waiting,
                    Reason::Outdated,
                    started.elapsed(),
                );
                return Action::RequeueAfter(self.failures.failed(key, Retry::Soon));
            }
            Ok(StatusWrite::Changed) => {
                let onto = object.meta().resource_version.clone();
                self.last_written
                    .lock()
                    .insert(key.clone(), LastWritten { status: Some(hash(Some(next))), onto });
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
                self.metrics.reconciled(
                    key.kind,
                    ReconcileOutcome::Waiting,
                    Reason::ForeignObject,
                    started.elapsed(),
                );
                return Action::RequeueAfter(self.failures.failed(key, Retry::After(REQUEUE_FOREIGN)));
            }
            self.failures.forget(key);
            self.metrics.reconciled(
                key.kind,
                ReconcileOutcome::Settled,
                Reason::Reconciled,
                started.elapsed(),
            );
            return Action::AwaitChange;
        };
        self.metrics.reconciled(key.kind, ReconcileOutcome::Failed, first.reason, started.elapsed());
        let delay = self.failures.failed(key, done.retry().unwrap_or(first.retry));
        if first.retry == Retry::Soon {
            tracing::debug!(reason = %first.reason, ?delay, "{}", first.message);
        } else {
            tracing::warn!(reason = %first.reason, ?delay, "{}", first.message);
        }
        Action::RequeueAfter(delay)
    }
}

/// Twelve times the timeout of a call: two minutes by default.
fn late_effect_window(deadline: Duration) -> SignedDuration {
    SignedDuration::try_from(deadline.saturating_mul(12)).unwrap_or(SignedDuration::MAX)
}

fn hash<S: Serialize>(status: Option<&S>) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
