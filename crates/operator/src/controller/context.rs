//! What every reconcile is given: clients, caches, queues and the policy of the flags; and how every reconcile ends.
//!
//! [`Context::finish`] writes the status on every path, publishes events for transitions, and turns failures into a requeue.
//! The context also remembers what this process wrote last, so that its own writes are neither mistaken for changes nor
//! overwritten from an outdated cache. It decides nothing about Coder.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use coder_k8s_api::Reason;
use coder_k8s_coderd::{Connector, postgres::Postgres};
use coder_k8s_core::{
    cleanup::Cleanup,
    condition::transitions,
    object,
    outcome::{ActResult, EventNote, Retry},
    workspace_access::GrantPolicy,
};
use coder_k8s_engine::{
    apply::Applier,
    backoff::Failures,
    cache::{Cache, ObjectKey, ReferenceIndex},
    client,
    fence::Fence,
    metrics::{Metrics, ReconcileOutcome},
    outage::Outage,
    queue::{Action, Queue},
    status::{self, Events, StatusWrite},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource, ResourceExt, api::ObjectMeta};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    cleanup::{CleanupAttempt, Cleanups},
    kinds::{Caches, CoderResource},
    options::Options,
    referenced::ReferencedObjects,
    watches::Scope,
};
use crate::{
    coderd::{license_gate::SharedAnswers, schedule::DependentSchedule},
    controlplane::{
        coderd_sync::{CoderdSync, Intervals},
        daemon_poll::DaemonPoller,
    },
    intervals::{REQUEUE_DELETED_CHILD, REQUEUE_FOREIGN, REQUEUE_NOT_LEADING, REQUEUE_OWN_WRITE},
    provisioner::{KnownGenerations, ListedPods},
};

/// What this process wrote to an object last.
#[derive(Default)]
struct LastWritten {
    /// Hash of the status, by which the watch's echo of our own write is recognised.
    status: Option<u64>,
    /// The version that was written onto. A cached object of that version is outdated.
    onto: Option<String>,
}

/// Clients of servers outside the cluster.
pub(crate) struct ExternalClients {
    pub(crate) connector: Connector,
    pub(crate) postgres: Postgres,
}

/// What the flags of the operator decide.
pub(crate) struct Policy {
    /// How long clean-up outside the cluster may delay a deletion.
    pub(crate) cleanup_timeout: Duration,
    /// How long after it was sent a request to coderd may still have an effect whose answer was lost.
    pub(crate) late_effect_window: SignedDuration,
    /// The namespaces that are watched.
    pub(crate) scope: Scope,
    /// Addresses to which credentials may be sent, besides the Services of control planes in the namespace.
    pub(crate) allowed_urls: Vec<String>,
    /// What workspaces may be granted.
    pub(crate) grants: GrantPolicy,
    /// How often the consent of watched namespaces is read where it cannot be watched.
    pub(crate) consent_interval: Duration,
}

impl Policy {
    fn new(options: &Options) -> Self {
        let scope = Scope::new(&options.watch_namespaces);
        Self {
            cleanup_timeout: options.cleanup_timeout,
            late_effect_window: late_effect_window(options.coderd_timeout),
            grants: GrantPolicy {
                privileged_rules: options.allow_privileged_workspace_rules,
                named_namespaces: matches!(scope, Scope::Namespaces(_)),
            },
            consent_interval: options.consent_interval,
            scope,
            allowed_urls: options.allowed_coder_urls.clone(),
        }
    }
}

/// Shared by all reconciles of the process.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) applier: Applier,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    /// Open while this process leads. The client refuses writes while it is closed.
    pub(crate) fence: Fence,
    /// Whether the API server is away, as the client finds it.
    pub(crate) outage: Outage,
    pub(crate) external: ExternalClients,
    pub(crate) policy: Policy,

    pub(crate) caches: Caches,
    /// Which objects refer to which.
    pub(crate) references: ReferenceIndex,
    pub(crate) referenced: ReferencedObjects,
    /// Whether the Gateway API is installed.
    pub(crate) gateway_api: AtomicBool,

    /// Reconciles of control planes.
    pub(crate) queue: Queue,
    /// The backoff of failed Kubernetes writes. Failed calls to coderd have their own in each schedule.
    pub(crate) failures: Failures,
    pub(crate) coderd_sync: CoderdSync,
    /// Entitlements of control planes that do not ask by themselves.
    pub(crate) shared_answers: SharedAnswers,
    /// Reconciles of pools and proxies.
    pub(crate) dependents: DependentSchedule,
    pub(crate) daemon_poller: DaemonPoller,
    pub(crate) listed_pods: ListedPods,
    pub(crate) known_generations: KnownGenerations,
    pub(crate) cleanups: Cleanups,
    last_written: Mutex<HashMap<ObjectKey, LastWritten>>,
    /// Objects of which a child was deleted, and which may have been deleted as well.
    pub(super) perhaps_deleted: Mutex<HashSet<ObjectKey>>,
}

impl Context {
    /// A context with empty caches.
    pub(crate) fn new(
        client: Client,
        instance: String,
        external: ExternalClients,
        metrics: Arc<Metrics>,
        fence: Fence,
        outage: Outage,
        options: &Options,
    ) -> Self {
        let intervals =
            Intervals { entitlements: options.entitlements_interval, verify: options.verify_interval };
        Self {
            applier: Applier::new(client.clone()),
            events: Events::new(client.clone(), instance),
            fence,
            outage,
            external,
            policy: Policy::new(options),
            caches: Caches::default(),
            references: ReferenceIndex::default(),
            referenced: ReferencedObjects::default(),
            gateway_api: AtomicBool::new(false),
            queue: Queue::new(metrics.clone()),
            failures: Failures::default(),
            coderd_sync: CoderdSync::new(intervals),
            shared_answers: SharedAnswers::new(options.entitlements_interval),
            dependents: DependentSchedule::new(metrics.clone(), options.verify_interval),
            daemon_poller: DaemonPoller::new(
                options.daemons_interval,
                options.autoscaling_interval,
                options.daemons_patience,
            ),
            listed_pods: ListedPods::default(),
            known_generations: KnownGenerations::default(),
            cleanups: Cleanups::new(options.cleanup_timeout),
            last_written: Mutex::default(),
            perhaps_deleted: Mutex::default(),
            metrics,
            client,
        }
    }

    #[expect(clippy::unused_self, reason = "time is part of what a reconcile is given")]
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// The object to reconcile, from the cache. The error is the requeue: the object no longer exists, or the cache is
    /// outdated.
    pub(crate) async fn current<K: CoderResource>(
        &self,
        cache: &Cache<K>,
        key: &ObjectKey,
    ) -> Result<Arc<K>, Action> {
        let object = self.cached(cache, key)?;
        if self.perhaps_deleted.lock().contains(key) {
            if object.meta().deletion_timestamp.is_none() && !self.is_unedited(&*object).await {
                return Err(Action::RequeueAfter(REQUEUE_DELETED_CHILD));
            }
            self.perhaps_deleted.lock().remove(key);
        }
        Ok(object)
    }

    /// The cached object, unless the cache is older than this process's own last write.
    fn cached<K: Resource>(&self, cache: &Cache<K>, key: &ObjectKey) -> Result<Arc<K>, Action> {
        let Some(object) = cache.get(&key.namespace, &key.name) else {
            self.forget(key);
            return Err(Action::AwaitChange);
        };
        let version = object.meta().resource_version.as_ref();
        let all = self.last_written.lock();
        let is_outdated = all.get(key).is_some_and(|last| version.is_some() && last.onto.as_ref() == version);
        if is_outdated { Err(self.requeue_own_write()) } else { Ok(object) }
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

    /// Records a write of something other than the status: the cached object of this version is outdated.
    pub(super) fn mark_outdated<K: CoderResource>(&self, object: &K) {
        let mut all = self.last_written.lock();
        all.entry(ObjectKey::of(K::KIND.as_str(), object))
            .or_default()
            .onto
            .clone_from(&object.meta().resource_version);
    }

    /// Whether the object is still of the version that was decided on, read live, and this process still leads. A failed
    /// read counts as no, so that nothing irreversible is done.
    pub(crate) async fn is_current<K: CoderResource>(&self, object: &K) -> bool {
        self.live_matches(object, |live| live.resource_version == object.meta().resource_version).await
    }

    /// As [`Self::is_current`], for the generation that was decided on. It allows for writes of the status, which other
    /// queues of this process make.
    pub(crate) async fn is_unedited<K: CoderResource>(&self, object: &K) -> bool {
        let of = |meta: &ObjectMeta| (meta.uid.clone(), meta.generation, meta.deletion_timestamp.clone());
        self.live_matches(object, |live| of(live) == of(object.meta())).await
    }

    async fn live_matches<K: CoderResource>(
        &self,
        object: &K,
        is_same: impl FnOnce(&ObjectMeta) -> bool,
    ) -> bool {
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let live = api.get_metadata_opt(&object.name_any()).await;
        live.is_ok_and(|live| live.is_some_and(|live| is_same(&live.metadata))) && self.fence.is_open()
    }

    /// Counts an attempt to clean up after an object that is being deleted. The first one is when its deadline starts.
    /// None: the object is not being deleted, or does not have the finalizer.
    pub(crate) fn begin_cleanup<K: CoderResource>(
        &self,
        key: &ObjectKey,
        object: &K,
        finalizer: &str,
    ) -> Option<CleanupAttempt> {
        self.cleanup_attempt(key, object, finalizer, true)
    }

    /// The clean-up of an object that is being deleted and has the finalizer, for those who clean up in the cluster. It has
    /// the same deadline, and begins now if it has not begun.
    pub(crate) fn cleanup<K: CoderResource>(&self, object: &K, finalizer: &str) -> Option<Cleanup> {
        let key = ObjectKey::of(K::KIND.as_str(), object);
        self.cleanup_attempt(&key, object, finalizer, false).map(|attempt| attempt.cleanup)
    }

    fn cleanup_attempt<K: CoderResource>(
        &self,
        key: &ObjectKey,
        object: &K,
        finalizer: &str,
        counts: bool,
    ) -> Option<CleanupAttempt> {
        let deleted = object.meta().deletion_timestamp.as_ref()?.0;
        if !object::has_finalizer(object, finalizer) {
            self.cleanups.forget(key);
            return None;
        }
        let recorded = object.status().and_then(|status| K::workload(status).cleanup_start_time.as_ref());
        let recorded = recorded.map(|time| time.0);
        Some(self.cleanups.attempt(key, object.uid(), recorded, deleted, self.now(), counts))
    }

    /// When clean-up after an object began, for its status. None: it has not begun.
    pub(crate) fn cleanup_start<K: CoderResource>(&self, key: &ObjectKey, object: &K) -> Option<Time> {
        let recorded = object.status().and_then(|status| K::workload(status).cleanup_start_time.clone());
        object.meta().deletion_timestamp.as_ref()?;
        recorded.or_else(|| self.cleanups.start(key, self.now()))
    }

    /// Forgets an object that no longer exists. Everything that the process keeps by key is dropped here.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.last_written.lock().remove(key);
        self.perhaps_deleted.lock().remove(key);
        self.failures.forget(key);
        self.referenced.forget(key);
        self.coderd_sync.remove(key);
        self.shared_answers.remove(key);
        self.cleanups.forget(key);
        self.dependents.forget(key);
        self.daemon_poller.remove(key);
        self.listed_pods.forget(key);
        self.known_generations.forget(key);
    }

    /// Writes a status in the middle of a reconcile, to record the intent before an irreversible effect. The observed object
    /// is outdated afterwards.
    pub(crate) async fn record_status<K: CoderResource>(
        &self,
        key: &ObjectKey,
        object: &K,
        next: &K::Status,
    ) -> kube::Result<StatusWrite> {
        let written = status::write(&self.client, object, object.status(), next).await?;
        if written == StatusWrite::Changed {
            self.remember_status(key, next, object.meta().resource_version.clone());
        }
        Ok(written)
    }

    fn remember_status<S: Serialize>(&self, key: &ObjectKey, status: &S, onto: Option<String>) {
        let written = LastWritten { status: Some(hash(Some(status))), onto };
        self.last_written.lock().insert(key.clone(), written);
    }

    /// Ends a reconcile: writes the status if it changed, publishes an event for each transition, counts the reconcile, and
    /// returns the requeue.
    pub(crate) async fn finish<K: CoderResource>(
        &self,
        key: &ObjectKey,
        object: &K,
        next: &K::Status,
        mut done: ActResult,
        started: Instant,
    ) -> Action {
        if done.failures.iter().any(|failure| failure.reason == Reason::NotLeading) {
            // A deposed leader writes nothing, and the process is about to end.
            return Action::RequeueAfter(REQUEUE_NOT_LEADING);
        }
        // One conflict means only that the cache was outdated: retried once without a trace on the status.
        let only_conflicts =
            !done.failures.is_empty() && done.failures.iter().all(|failure| failure.retry == Retry::Soon);
        if only_conflicts && !self.failures.any(key) {
            return Action::RequeueAfter(self.failures.failed(key, Retry::Soon));
        }
        // Before the write, because the watch may show it before the response arrives.
        self.remember_status(key, next, None);
        let written = match status::write(&self.client, object, object.status(), next).await {
            Err(error) if client::is_not_leading(&error) => {
                return Action::RequeueAfter(REQUEUE_NOT_LEADING);
            }
            Err(error) => {
                done.failures.push(client::blocker("write the status", &error));
                StatusWrite::Unchanged
            }
            Ok(written) => written,
        };
        if written == StatusWrite::Changed {
            self.remember_status(key, next, object.meta().resource_version.clone());
            let before = object.status().map_or(&[][..], K::conditions);
            for note in transitions(before, K::conditions(next)) {
                note_logged(&note);
                self.events.publish(&object.object_ref(&()), &note).await;
            }
        }
        let (outcome, reason, retry) = if written == StatusWrite::Outdated {
            // Computed from an outdated object. Retried, because the event that shows the newer object may enqueue nothing.
            (ReconcileOutcome::Waiting, Reason::Outdated, Some(Retry::Soon))
        } else if let Some(first) = done.failures.first() {
            (ReconcileOutcome::Failed, first.reason, Some(done.retry().unwrap_or(first.retry)))
        } else if !done.foreign.is_empty() {
            (ReconcileOutcome::Waiting, Reason::ForeignObject, Some(Retry::After(REQUEUE_FOREIGN)))
        } else {
            (ReconcileOutcome::Settled, Reason::Reconciled, None)
        };
        self.metrics.reconciled(key.kind, outcome, reason, started.elapsed());
        let Some(retry) = retry else {
            self.failures.forget(key);
            return Action::AwaitChange;
        };
        let delay = self.failures.failed(key, retry);
        match done.failures.first().filter(|_| outcome == ReconcileOutcome::Failed) {
            // A conflict passes by itself, and an API server that is away has its own line.
            Some(first) if first.retry == Retry::Soon || self.is_outage(first.reason) => {
                tracing::debug!(reason = %first.reason, ?delay, "{}", first.message);
            }
            Some(first) => {
                let seconds = delay.as_secs_f64();
                tracing::warn!(reason = %first.reason, "{}; the next attempt is in {seconds:.1} s", first.message);
            }
            None => {}
        }
        Action::RequeueAfter(delay)
    }

    /// Whether a failure with this reason is that of an API server that is away, or has just come back.
    fn is_outage(&self, reason: Reason) -> bool {
        let may_be = [Reason::Timeout, Reason::Forbidden, Reason::ApiServerError].contains(&reason);
        reason == Reason::ApiServerUnreachable || (may_be && self.outage.is_recent())
    }
}

/// Logs what is published as an event.
fn note_logged(note: &EventNote) {
    if note.warning {
        tracing::warn!(reason = %note.reason, "{}", note.message);
    } else {
        tracing::info!(reason = %note.reason, "{}", note.message);
    }
}

/// Twelve times the timeout of a call, two minutes by default: a request that timed out here may still be carried out by
/// coderd.
fn late_effect_window(deadline: Duration) -> SignedDuration {
    SignedDuration::try_from(deadline.saturating_mul(12)).unwrap_or(SignedDuration::MAX)
}

fn hash<S: Serialize>(status: Option<&S>) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
