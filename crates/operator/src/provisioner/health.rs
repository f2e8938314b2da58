//! The daemons of a pool: what is known of them, and pods that are started anew because theirs has given up.

use std::sync::Arc;

use coder_k8s_api::CoderProvisioner;
use coder_k8s_core::{
    outcome::Note,
    provisioner::{
        Seen,
        daemons::{self, Health, Pod},
    },
    rollout::Rollout,
};
use coder_k8s_engine::{client, key::Key};
use k8s_openapi::api::{apps::v1::Deployment, core::v1};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};

use crate::{
    controller::{Context, kind},
    controlplane::rollcall::{organization, plane_of},
};

/// What is known of the daemons, and the pods where that is of any use. Pods are listed again when their Deployment has
/// changed, as it does with every pod that comes, goes or turns ready.
pub(super) async fn look(
    key: &Key,
    object: &CoderProvisioner,
    deployment: Option<&Deployment>,
    ctx: &Context,
) -> daemons::Seen {
    let calls = &ctx.roll_calls;
    let roll = organization(object).and_then(|id| calls.roll(&plane_of(object), &id));
    let mut seen = daemons::Seen { roll, pods: None, patience: calls.patience };
    let (Some(roll), Some(deployment)) = (&seen.roll, deployment) else { return seen };
    let keys = object.status.as_ref().map(daemons::keys).unwrap_or_default();
    if Rollout::of(Some(deployment)).ready > 0 || !roll.part(&keys).is_empty() {
        seen.pods = pods(key, deployment, ctx).await;
    }
    seen
}

/// The pods of a pool. None: they cannot be listed.
pub(super) async fn pods(key: &Key, deployment: &Deployment, ctx: &Context) -> Option<Arc<Vec<Pod>>> {
    let version = deployment.resource_version().unwrap_or_default();
    if let Some(pods) = ctx.pools.pods(key, &version) {
        return Some(pods);
    }
    let selector = deployment.spec.as_ref()?.selector.match_labels.as_ref()?;
    let labels = selector.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let api: Api<v1::Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    match api.list(&ListParams::default().labels(&labels)).await {
        Ok(list) => {
            let pods = Arc::new(list.iter().filter_map(Pod::of).collect());
            ctx.pools.keep_pods(key, version, &pods);
            Some(pods)
        }
        Err(error) => {
            tracing::warn!("cannot list the pods: {}", client::describe(&error));
            None
        }
    }
}

/// Starts pods anew whose daemons have given up. They serve nobody, so that no disruption budget speaks for them; what
/// may still be going on in them has its grace period.
pub(super) async fn repair(health: &Health, seen: &Seen, ctx: &Context) {
    let namespace = seen.object.namespace().unwrap_or_default();
    let api: Api<v1::Pod> = Api::namespaced(ctx.client.clone(), &namespace);
    let mut gone = Vec::new();
    for pod in &health.restart {
        let this = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        match api.delete(&pod.name, &DeleteParams::default().preconditions(this)).await {
            Ok(_) => gone.push(pod.name.as_str()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => tracing::warn!("cannot delete pod {}: {}", pod.name, client::describe(&error)),
        }
    }
    if !gone.is_empty() {
        ctx.pools.forget_pods(&Key::of(kind::PROVISIONER, &*seen.object));
        let message = format!(
            "{} start anew: their daemons were refused for want of a license and do not try again",
            gone.join(", ")
        );
        tracing::info!("{message}");
        let note = Note { warning: false, reason: "DaemonsRestarted".to_owned(), message };
        ctx.events.publish(&seen.object.object_ref(&()), &note).await;
    }
}
