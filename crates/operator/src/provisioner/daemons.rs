//! The pods and daemons of a pool: reads them, restarts pods whose daemons have given up, protects busy daemons when the
//! pool is scaled down, and drains a pool that is being deleted.
//!
//! Daemons come from the last daemon poll of the control plane, pods from the API server. `core::provisioner::daemons`
//! decides which pods to restart and to protect. Nothing that fails here delays a rollout, nor a deletion past its deadline.

use std::{collections::HashMap, sync::Arc};

use coder_k8s_api::{CoderKind, CoderProvisioner, Reason};
use coder_k8s_core::{
    autoscaling::ScaleReason,
    daemon_listing::ListedDaemon,
    object,
    outcome::{ActResult, EventNote},
    provisioner::{
        Observed,
        daemons::{
            DELETION_COST, DaemonHealth, DaemonPod, DeletionCost, ObservedDaemons, busy_daemons,
            deletion_costs, keys,
        },
        keys::{Decision, leaving},
        names,
        scaling::ObservedScaling,
    },
    workload::Rollout,
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey, client};
use jiff::SignedDuration;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    controller::{Context, children},
    controlplane::daemon_poll::{daemons_now, organization, plane_of},
    intervals::REQUEUE_DRAINING,
};

/// The daemons of the last poll, and the pods if there are daemons to compare them with.
pub(super) async fn observe(
    key: &ObjectKey,
    object: &CoderProvisioner,
    deployment: Option<&Deployment>,
    ctx: &Context,
) -> ObservedDaemons {
    let poller = &ctx.daemon_poller;
    let listing = organization(object).and_then(|id| poller.listing(&plane_of(object), &id));
    let mut observed = ObservedDaemons { listing, pods: None, patience: poller.patience };
    let (Some(listing), Some(deployment)) = (&observed.listing, deployment) else { return observed };
    let keys = object.status.as_ref().map(keys).unwrap_or_default();
    if Rollout::of(Some(deployment)).ready > 0 || !listing.of_keys(&keys).is_empty() {
        observed.pods = pods(key, deployment, ctx).await;
    }
    observed
}

/// The generations of the Deployments of pools, where this process knows more than the cache may.
///
/// The cache lags behind when a watch does. What was written would be written again by each reconcile. For a scaled pool,
/// replicas from before the last decision would be taken for a decision of their own, and pods that the cache does not know
/// of yet, with the builds in them, would be deleted.
#[derive(Default)]
pub(crate) struct KnownGenerations(Mutex<HashMap<ObjectKey, i64>>);

impl KnownGenerations {
    /// A write of the Deployment may have happened or not, or the pool no longer exists.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    pub(super) fn record(&self, key: &ObjectKey, deployment: Option<&Deployment>) {
        self.0.lock().insert(key.clone(), generation(deployment));
    }

    /// Whether the cache is not behind. Of a scaled pool that this process has neither read nor written that is not known: the
    /// process before it may have scaled it.
    fn has_reached(&self, key: &ObjectKey, cached: Option<&Deployment>, is_scaled: bool) -> bool {
        let mut known = self.0.lock();
        let has_reached = known.get(key).map_or(!is_scaled, |known| generation(cached) >= *known);
        if has_reached && !is_scaled {
            known.remove(key);
        }
        has_reached
    }
}

fn generation(deployment: Option<&Deployment>) -> i64 {
    deployment.and_then(|deployment| deployment.metadata.generation).unwrap_or_default()
}

/// The Deployment of a pool, not older than this process's last write of it: the cached one, unless the cache is behind.
pub(crate) async fn current_deployment(
    key: &ObjectKey,
    object: &CoderProvisioner,
    ctx: &Context,
) -> kube::Result<Option<Arc<Deployment>>> {
    let name = names::deployment(&key.name);
    let cached = ctx.caches.deployments.get(&key.namespace, &name);
    if ctx.known_generations.has_reached(key, cached.as_deref(), object.spec.autoscaling.is_some()) {
        return Ok(cached);
    }
    let live = Api::<Deployment>::namespaced(ctx.client.clone(), &key.namespace).get_opt(&name).await?;
    ctx.known_generations.record(key, live.as_ref());
    // One of somebody else's is not cached either.
    Ok(live.filter(|live| ctx.caches.deployments.keeps(live)).map(Arc::new))
}

/// The version of a Deployment, and its pods as they were listed then.
type Listed = (String, Arc<Vec<DaemonPod>>);

/// The pods of each pool as of a version of its Deployment.
#[derive(Default)]
pub(crate) struct ListedPods(Mutex<HashMap<ObjectKey, Listed>>);

impl ListedPods {
    /// Lists the pods of a pool again at the next reconcile: this process changed some, or the pool no longer exists.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    fn of_version(&self, key: &ObjectKey, version: &str) -> Option<Arc<Vec<DaemonPod>>> {
        self.0.lock().get(key).filter(|(listed, _)| listed == version).map(|(_, pods)| pods.clone())
    }
}

/// The pods of a pool. None: they cannot be listed.
///
/// Listed once for each version of the Deployment: its status changes with every pod that is created, deleted or turns
/// ready, so that no watch of pods is needed.
async fn pods(key: &ObjectKey, deployment: &Deployment, ctx: &Context) -> Option<Arc<Vec<DaemonPod>>> {
    match ctx.listed_pods.of_version(key, &deployment.resource_version().unwrap_or_default()) {
        Some(pods) => Some(pods),
        None => list_pods(key, deployment, ctx).await,
    }
}

/// As [`pods`], and listed again while a pod is missing or not ready: whether it fails to start is not in the status of the
/// Deployment, and the status may be late.
pub(crate) async fn current_pods(
    key: &ObjectKey,
    deployment: &Deployment,
    ctx: &Context,
) -> Option<Arc<Vec<DaemonPod>>> {
    let listed = ctx.listed_pods.of_version(key, &deployment.resource_version().unwrap_or_default());
    let replicas = usize::try_from(Rollout::of(Some(deployment)).desired).unwrap_or(0);
    let is_complete = |pods: &Arc<Vec<DaemonPod>>| {
        pods.iter().filter(|pod| !pod.is_deleting).count() >= replicas
            && pods.iter().all(|pod| pod.ready_since.is_some())
    };
    match listed.filter(is_complete) {
        Some(pods) => Some(pods),
        None => list_pods(key, deployment, ctx).await,
    }
}

async fn list_pods(key: &ObjectKey, deployment: &Deployment, ctx: &Context) -> Option<Arc<Vec<DaemonPod>>> {
    let version = deployment.resource_version().unwrap_or_default();
    let labels = object::selector_text(deployment.spec.as_ref()?.selector.match_labels.as_ref()?);
    match api(&key.namespace, ctx).list(&ListParams::default().labels(&labels)).await {
        Ok(list) => {
            let pods = Arc::new(list.iter().filter_map(DaemonPod::of).collect());
            ctx.listed_pods.0.lock().insert(key.clone(), (version, Arc::clone(&pods)));
            Some(pods)
        }
        Err(error) => {
            let name = deployment.name_any();
            tracing::warn!("cannot list the pods of Deployment {name}: {}", client::describe(&error));
            None
        }
    }
}

fn api(namespace: &str, ctx: &Context) -> Api<Pod> {
    Api::namespaced(ctx.client.clone(), namespace)
}

/// Deletes pods whose daemons have given up, so that the ReplicaSet replaces them. Such a pod runs no jobs, so that it is
/// deleted without regard to the disruption budget, with its normal grace period.
pub(super) async fn restart_stopped(health: &DaemonHealth, observed: &Observed, ctx: &Context) {
    let api = api(&observed.object.namespace().unwrap_or_default(), ctx);
    let mut deleted = Vec::new();
    for pod in health.restart() {
        // A pod that has taken the name since is left alone.
        let only_this = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        match api.delete(&pod.name, &DeleteParams::default().preconditions(only_this)).await {
            Ok(_) => deleted.push(pod.name.as_str()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => tracing::warn!("cannot delete pod {}: {}", pod.name, client::describe(&error)),
        }
    }
    if !deleted.is_empty() {
        ctx.listed_pods.forget(&ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object));
        let message = format!(
            "restarted {}: coderd refused their daemons for want of a license, and a refused daemon does not retry",
            deleted.join(", ")
        );
        tracing::info!("{message}");
        let note = EventNote { warning: false, reason: Reason::DaemonsRestarted, message };
        ctx.events.publish(&observed.object.object_ref(&()), &note).await;
    }
}

/// Before fewer pods are desired than there are: asks coderd which daemons are busy and sets the deletion cost of their
/// pods, so that the ReplicaSet deletes idle ones first. A busy daemon whose pod is deleted nevertheless has its grace period
/// to finish.
///
/// A pool that is scaled keeps a pod for each busy daemon. It does not shrink if coderd does not answer, or if the pods of
/// busy daemons cannot be told from the others. It shrinks a poll after the costs were set: the controller of ReplicaSets
/// goes by its own cache, which may lag behind.
pub(super) async fn prepare_scale_down(
    observed: &Observed,
    desired: &mut Deployment,
    cached: Option<&Deployment>,
    ctx: &Context,
) {
    let Some(cached) = cached else { return };
    let (target, current) = (Rollout::of(Some(desired)).desired, Rollout::of(Some(cached)).desired);
    // The license may forbid all daemons, whatever was decided.
    let decision = observed.scaling.as_ref().and_then(ObservedScaling::decision);
    let decision = decision.filter(|decision| i32::try_from(decision.desired) == Ok(target));
    // With zero replicas every pod is deleted, unless the pool is scaled and one of them is busy.
    if target >= current || (target == 0 && decision.is_none()) {
        return;
    }
    let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object);
    let daemons = daemons_now(&observed.object, ctx).await;
    let pods = list_pods(&key, cached, ctx).await;
    let Some(decision) = decision else {
        let polled = || observed.daemons.listing.as_ref().filter(|listing| !listing.outdated);
        if let (Some(daemons), Some(pods)) =
            (daemons.or_else(|| polled().map(|listing| listing.daemons.clone())), pods)
        {
            mark_busy(&key, observed, &pods, &daemons, ctx).await;
        }
        return;
    };
    let keys = observed.object.status.as_ref().map(keys).unwrap_or_default();
    let listed = pods.as_ref().map(|pods| pods.as_slice());
    let busy = daemons.as_ref().map(|daemons| busy_daemons(listed, daemons, &keys));
    let least = decision.shrink(u32::try_from(current).unwrap_or(0), busy);
    let costs = match (&pods, &daemons) {
        _ if decision.busy == 0 && busy == Some(0) => DeletionCosts::Needless,
        (Some(pods), Some(daemons)) => mark_busy(&key, observed, pods, daemons, ctx).await,
        // coderd is away for long: only pods leave that are not ready, which a ReplicaSet deletes first.
        (_, None) if decision.reason == ScaleReason::QueueUnknown => DeletionCosts::Needless,
        _ => DeletionCosts::Failed,
    };
    let may_shrink = match costs {
        DeletionCosts::Needless => true,
        DeletionCosts::Set { changed } => !ctx.daemon_poller.postpone(&observed.object, changed),
        DeletionCosts::Failed => {
            ctx.daemon_poller.postpone(&observed.object, true);
            false
        }
        DeletionCosts::Impossible => false,
    };
    let replicas = if may_shrink { i32::try_from(least).unwrap_or(current) } else { current };
    if let Some(spec) = &mut desired.spec {
        spec.replicas = Some(replicas);
    }
}

/// Whether the deletion costs of pods say which daemons are busy.
enum DeletionCosts {
    /// None is busy, or no pod with a daemon leaves.
    Needless,
    /// They do, and whether some had to be changed for it.
    Set { changed: bool },
    /// Some could not be set, or it is not known which are busy.
    Failed,
    /// The spec sets them itself, or names the daemons.
    Impossible,
}

/// Sets the deletion costs of pods by whether their daemons are busy.
async fn mark_busy(
    key: &ObjectKey,
    observed: &Observed,
    pods: &[DaemonPod],
    daemons: &[ListedDaemon],
    ctx: &Context,
) -> DeletionCosts {
    // A cost in the spec is the user's own order.
    if observed.object.spec.pod.pod_annotations.contains_key(DELETION_COST) {
        return DeletionCosts::Impossible;
    }
    let is_named = pods.iter().all(|pod| pod.is_deleting || pod.daemon.is_some());
    let mut costs = if is_named { DeletionCosts::Set { changed: false } } else { DeletionCosts::Impossible };
    for DeletionCost { pod, uid, cost } in deletion_costs(pods, daemons) {
        // The API server rejects another UID, so that a pod that has taken the name since is left alone.
        let patch = json!({"metadata": {"uid": uid, "annotations": {DELETION_COST: cost}}});
        match api(&key.namespace, ctx).patch(&pod, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {
                let state = if cost.is_some() { "busy" } else { "idle" };
                tracing::info!(
                    "set the deletion cost of pod {pod}, whose daemon is {state}, before the pool shrinks"
                );
                if let DeletionCosts::Set { changed } = &mut costs {
                    *changed = true;
                }
            }
            // A pod that is gone needs no mark.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => {
                if is_named {
                    costs = DeletionCosts::Failed;
                }
                tracing::warn!("cannot set the deletion cost of pod {pod}: {}", client::describe(&error));
            }
        }
        ctx.listed_pods.forget(key);
    }
    costs
}

/// Removes the Deployment of a pool that is being deleted. Some: not all of its daemons have stopped yet, or that is not known,
/// and this is the decision to wait for them. They stop before the keys are deleted, because coderd ends the sessions of a
/// deleted key. An API server that fails delays the deletion until the clean-up deadline, and not longer.
pub(super) async fn drain(
    observed: &Observed,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
) -> Option<Decision> {
    let object = &*observed.object;
    if !object::is_deleting(object) {
        return None;
    }
    let unknown = || is_before_deadline(object, ctx).then(|| leaving(REQUEUE_DRAINING));
    if let Some(deployment) = observed.children.deployment.as_deref() {
        let failures = done.failures.len();
        children::remove(ctx, owner, deployment, done).await;
        if done.failures.len() > failures {
            return unknown();
        }
    }
    let labels = object::selector_text(&owner.labels);
    let Ok(pods) = api(&owner.namespace, ctx).list(&ListParams::default().labels(&labels)).await else {
        return unknown();
    };
    pods.iter().any(|pod| is_awaited(pod, object, ctx)).then(|| leaving(REQUEUE_DRAINING))
}

/// Whether the deletion of a pool began less than the clean-up deadline ago.
fn is_before_deadline(object: &CoderProvisioner, ctx: &Context) -> bool {
    let limit = SignedDuration::try_from(ctx.policy.cleanup_timeout).unwrap_or(SignedDuration::MAX);
    let since = object.metadata.deletion_timestamp.as_ref();
    since.is_some_and(|since| ctx.now().duration_since(since.0) < limit)
}

/// Whether a pod may still stop by itself: its grace period is not over; or garbage collection has not deleted it yet, and
/// the clean-up deadline has not passed.
fn is_awaited(pod: &Pod, object: &CoderProvisioner, ctx: &Context) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return false;
    }
    // The API server sets the timestamp to the end of the grace period.
    if let Some(end) = &pod.metadata.deletion_timestamp {
        return ctx.now() <= end.0;
    }
    is_before_deadline(object, ctx)
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;

    use super::*;

    fn deployment(generation: i64) -> Deployment {
        let metadata = ObjectMeta { generation: Some(generation), ..ObjectMeta::default() };
        Deployment { metadata, ..Deployment::default() }
    }

    #[test]
    fn a_cache_that_is_behind_this_processs_own_write_is_noticed() {
        let (known, key) = (KnownGenerations::default(), ObjectKey::new("CoderProvisioner", "ns", "pool"));
        for is_scaled in [false, true] {
            known.record(&key, Some(&deployment(3)));
            assert!(!known.has_reached(&key, None, is_scaled));
            assert!(!known.has_reached(&key, Some(&deployment(2)), is_scaled));
            assert!(known.has_reached(&key, Some(&deployment(3)), is_scaled));
            assert!(known.has_reached(&key, Some(&deployment(4)), is_scaled));
        }
        known.forget(&key);
        assert!(known.has_reached(&key, Some(&deployment(1)), false));
        assert!(
            !known.has_reached(&key, Some(&deployment(1)), true),
            "the process before may have scaled it"
        );
    }
}
