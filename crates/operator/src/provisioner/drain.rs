//! Drains a pool that is being deleted: its daemons end before its keys are deleted. Each finishes its build within its
//! grace period.

use std::time::Duration;

use coder_k8s_core::{
    object,
    outcome::ActResult,
    provisioner::{
        Observed,
        keys::{Decision, leaving},
    },
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

use super::act;
use crate::controller::{Context, children};

/// How soon to look again whether the pods are gone.
const REQUEUE_DRAINING: Duration = Duration::from_secs(1);

/// Drains the pool if it is being deleted. Some: not all daemons have ended yet.
pub(super) async fn first(observed: &Observed, ctx: &Context, done: &mut ActResult) -> Option<Decision> {
    let object = &*observed.object;
    let owner = act::owner(observed).filter(|_| object::is_deleting(object))?;
    if let Some(deployment) = observed.children.deployment.as_deref() {
        children::remove(ctx, &owner, deployment, done).await;
    }
    if !done.failures.is_empty() {
        return None;
    }
    let labels =
        observed.selector().iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    // Pods that cannot be listed do not delay the deletion.
    let pods = api.list(&ListParams::default().labels(&labels.join(","))).await.ok()?;
    pods.iter().any(|pod| is_awaited(pod, object, ctx)).then(|| leaving(REQUEUE_DRAINING))
}

/// Whether a pod may still end by itself: its grace period is not over, or it was not asked to stop yet and the clean-up
/// deadline has not passed.
fn is_awaited(pod: &Pod, object: &impl ResourceExt, ctx: &Context) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return false;
    }
    match &pod.metadata.deletion_timestamp {
        Some(end) => ctx.now() <= end.0,
        None => object.meta().deletion_timestamp.as_ref().is_some_and(|since| {
            ctx.now().duration_since(since.0).unsigned_abs() < ctx.policy.cleanup_timeout
        }),
    }
}
