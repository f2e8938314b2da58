//! Before a pool is made smaller: coderd is asked which daemons are at work, and their pods are marked, so that the
//! ReplicaSet takes the others first. What goes nevertheless has its grace period to finish.

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

/// Marks the pods whose daemons are at work, if fewer pods are desired than there are. Nothing that fails here holds up
/// what was asked for.
pub(super) async fn prepare(
    observed: &Observed,
    desired: &Deployment,
    held: Option<&Deployment>,
    ctx: &Context,
) {
    let replicas = |deployment: &Deployment| deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let Some(held) = held else { return };
    let (Some(asked), Some(have)) = (replicas(desired), replicas(held)) else { return };
    // Whoever sets the cost by hand has an order of their own; and of none at all nothing is to be chosen.
    if asked >= have || asked == 0 || observed.object.spec.pod.pod_annotations.contains_key(cost::ANNOTATION)
    {
        return;
    }
    let daemons = match crate::controlplane::daemon_poll::daemons_now(&observed.object, ctx).await {
        Some(daemons) => daemons,
        None => match observed.daemons.listing.as_ref().filter(|roll| !roll.outdated) {
            Some(roll) => roll.daemons.clone(),
            None => return,
        },
    };
    let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object);
    let Some(pods) = daemons::pods(&key, held, ctx).await else { return };
    for mark in cost::marks(&pods, &daemons) {
        set(&key, &mark, ctx).await;
        ctx.verify_schedule.forget_pods(&key);
    }
}

async fn set(key: &ObjectKey, mark: &Mark, ctx: &Context) {
    let Mark { pod, uid, cost } = mark;
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    // With its UID, so that a pod that has taken the name since is left alone.
    let patch = json!({"metadata": {"uid": uid, "annotations": {cost::ANNOTATION: cost}}});
    match api.patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => tracing::info!(pod, busy = cost.is_some(), "marked a pod before the pool shrinks"),
        Err(error) => tracing::warn!("cannot mark pod {pod}: {}", client::describe(&error)),
    }
}
