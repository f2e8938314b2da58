//! The daemons of a pool: reads what is known of them, and restarts pods whose daemons have given up.
//!
//! Daemons come from the last daemon poll of the control plane, pods from the API server. Which pods to restart is decided
//! in `core::provisioner::daemons`.

use std::{collections::HashMap, sync::Arc};

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
use parking_lot::Mutex;

use crate::{
    controller::{CoderKind, Context},
    controlplane::daemon_poll::{organization, plane_of},
};

/// The daemons of the last poll, and the pods if there are daemons to compare them with.
pub(super) async fn observe(
    key: &ObjectKey,
    object: &CoderProvisioner,
    deployment: Option<&Deployment>,
    ctx: &Context,
) -> daemons::ObservedDaemons {
    let poller = &ctx.daemon_poller;
    let listing = organization(object).and_then(|id| poller.listing(&plane_of(object), &id));
    let mut observed = daemons::ObservedDaemons { listing, pods: None, patience: poller.patience };
    let (Some(listing), Some(deployment)) = (&observed.listing, deployment) else { return observed };
    let keys = object.status.as_ref().map(daemons::keys).unwrap_or_default();
    if Rollout::of(Some(deployment)).ready > 0 || !listing.part(&keys).is_empty() {
        observed.pods = pods(key, deployment, ctx).await;
    }
    observed
}

/// The pods of each pool, and the version of its Deployment at which they were listed.
#[derive(Default)]
pub(crate) struct ListedPods(Mutex<HashMap<ObjectKey, (String, Arc<Vec<Pod>>)>>);

impl ListedPods {
    /// Lists the pods of a pool again at the next reconcile: this process changed some, or the pool no longer exists.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

/// The pods of a pool. None: they cannot be listed.
///
/// Listed once for each version of the Deployment: its status changes with every pod that is created, deleted or turns
/// ready, so that no watch of pods is needed.
pub(super) async fn pods(key: &ObjectKey, deployment: &Deployment, ctx: &Context) -> Option<Arc<Vec<Pod>>> {
    let version = deployment.resource_version().unwrap_or_default();
    if let Some((_, pods)) = ctx.listed_pods.0.lock().get(key).filter(|(listed, _)| *listed == version) {
        return Some(pods.clone());
    }
    let selector = deployment.spec.as_ref()?.selector.match_labels.as_ref()?;
    let labels = selector.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let api: Api<v1::Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    match api.list(&ListParams::default().labels(&labels)).await {
        Ok(list) => {
            let pods = Arc::new(list.iter().filter_map(Pod::of).collect());
            ctx.listed_pods.0.lock().insert(key.clone(), (version, Arc::clone(&pods)));
            Some(pods)
        }
        Err(error) => {
            tracing::warn!(
                "cannot list the pods of Deployment {}: {}",
                deployment.name_any(),
                client::describe(&error)
            );
            None
        }
    }
}

/// Deletes pods whose daemons have given up, so that the ReplicaSet replaces them. Such a pod runs no jobs, so that it is
/// deleted without regard to the disruption budget, with its normal grace period.
pub(super) async fn restart_stopped(health: &Health, observed: &Observed, ctx: &Context) {
    let namespace = observed.object.namespace().unwrap_or_default();
    let api: Api<v1::Pod> = Api::namespaced(ctx.client.clone(), &namespace);
    let mut deleted = Vec::new();
    for pod in &health.restart {
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
