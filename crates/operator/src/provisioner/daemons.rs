//! The daemons of a pool: what is known of them, and pods that are started anew because theirs has given up.

use std::sync::Arc;

use coder_k8s_api::{CoderProvisioner, Reason};
use coder_k8s_core::{
    outcome::EventNote,
    provisioner::{
        Observed,
        daemons::{self, Health, Pod},
    },
    rollout::Rollout,
};
use coder_k8s_engine::{cache::ObjectKey, client};
use k8s_openapi::api::{apps::v1::Deployment, core::v1};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};

use crate::{
    controller::{CoderKind, Context},
    controlplane::daemon_poll::{organization, plane_of},
};

/// What is known of the daemons, and the pods where that is of any use. Pods are listed again when their Deployment has
/// changed, as it does with every pod that comes, goes or turns ready.
pub(super) async fn observe(
    key: &ObjectKey,
    object: &CoderProvisioner,
    deployment: Option<&Deployment>,
    ctx: &Context,
) -> daemons::ObservedDaemons {
    let calls = &ctx.daemon_poller;
    let listing = organization(object).and_then(|id| calls.listing(&plane_of(object), &id));
    let mut observed = daemons::ObservedDaemons { listing, pods: None, patience: calls.patience };
    let (Some(listing), Some(deployment)) = (&observed.listing, deployment) else { return observed };
    let keys = object.status.as_ref().map(daemons::keys).unwrap_or_default();
    if Rollout::of(Some(deployment)).ready > 0 || !listing.part(&keys).is_empty() {
        observed.pods = pods(key, deployment, ctx).await;
    }
    observed
}

/// The pods of a pool. None: they cannot be listed.
pub(super) async fn pods(key: &ObjectKey, deployment: &Deployment, ctx: &Context) -> Option<Arc<Vec<Pod>>> {
    let version = deployment.resource_version().unwrap_or_default();
    if let Some(pods) = ctx.verify_schedule.pods(key, &version) {
        return Some(pods);
    }
    let selector = deployment.spec.as_ref()?.selector.match_labels.as_ref()?;
    let labels = selector.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let api: Api<v1::Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    match api.list(&ListParams::default().labels(&labels)).await {
        Ok(list) => {
            let pods = Arc::new(list.iter().filter_map(Pod::of).collect());
            ctx.verify_schedule.keep_pods(key, version, &pods);
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
pub(super) async fn restart_stopped(health: &Health, observed: &Observed, ctx: &Context) {
    let namespace = observed.object.namespace().unwrap_or_default();
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
        ctx.verify_schedule.forget_pods(&ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object));
        let message = format!(
            "{} start anew: their daemons were refused for want of a license and do not try again",
            gone.join(", ")
        );
        tracing::info!("{message}");
        let note = EventNote { warning: false, reason: Reason::DaemonsRestarted, message };
        ctx.events.publish(&observed.object.object_ref(&()), &note).await;
    }
}
