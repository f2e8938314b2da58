//! Before a pool is scaled down: asks coderd which daemons are busy and sets the deletion cost of their pods, so that the
//! ReplicaSet deletes idle ones first.
//!
//! This is a best effort. Nothing that fails here delays the scale-down, and a busy daemon whose pod is deleted nevertheless
//! has its grace period to finish.

use coder_k8s_core::provisioner::{
    Observed,
    daemons::cost::{self, Mark},
};
use coder_k8s_engine::{cache::ObjectKey, client};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::daemons;
use crate::controller::{CoderKind, Context};

/// Sets the deletion cost of pods if fewer are desired than there are.
pub(super) async fn prepare(
    observed: &Observed,
    desired: &Deployment,
    cached: Option<&Deployment>,
    ctx: &Context,
) {
    let replicas = |deployment: &Deployment| deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let Some(cached) = cached else { return };
    let (Some(target), Some(current)) = (replicas(desired), replicas(cached)) else { return };
    // With zero replicas every pod is deleted, and a cost in the spec is the user's own order.
    if target >= current
        || target == 0
        || observed.object.spec.pod.pod_annotations.contains_key(cost::ANNOTATION)
    {
        return;
    }
    let daemons = match crate::controlplane::daemon_poll::daemons_now(&observed.object, ctx).await {
        Some(daemons) => daemons,
        None => match observed.daemons.listing.as_ref().filter(|listing| !listing.outdated) {
            Some(listing) => listing.daemons.clone(),
            None => return,
        },
    };
    let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object);
    let Some(pods) = daemons::pods(&key, cached, ctx).await else { return };
    for mark in cost::marks(&pods, &daemons) {
        set_cost(&key, &mark, ctx).await;
        ctx.listed_pods.forget(&key);
    }
}

async fn set_cost(key: &ObjectKey, mark: &Mark, ctx: &Context) {
    let Mark { pod, uid, cost } = mark;
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    // The API server rejects another UID, so that a pod that has taken the name since is left alone.
    let patch = json!({"metadata": {"uid": uid, "annotations": {cost::ANNOTATION: cost}}});
    match api.patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => {
            tracing::info!(pod, busy = cost.is_some(), "set the deletion cost of a pod before scaling down");
        }
        Err(error) => {
            tracing::warn!("cannot set the deletion cost of pod {pod}: {}", client::describe(&error));
        }
    }
}
