//! Whether the license covers a feature, for the pools and proxies that need it.
//!
//! As a rule the answer is on the status of the control plane, which asks coderd once for all of its pools and proxies.
//! Where the control plane does not ask (it is paused, or its operator access is disabled), coderd is asked here, once for
//! all of them. What follows is decided in `core::license_gate`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_coderd::{CoderdError, ErrorKind, Server};
use coder_k8s_core::{
    intervals::{ENTITLEMENT_FRESH, REQUEUE_ENTITLEMENT},
    license_gate::{self, EntitlementAnswer, Feature, FeatureState, LicenseGate, Published},
    object,
    workload::Rollout,
};
use coder_k8s_engine::{cache::ObjectKey, queue::due_in};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::targets;
use crate::controller::Context;

/// What coderd answered for control planes that do not ask by themselves: one answer for all pools and proxies of each.
pub(crate) struct SharedAnswers {
    /// How long an answer counts.
    lifetime: Duration,
    of_planes: Mutex<HashMap<ObjectKey, Arc<tokio::sync::Mutex<Option<SharedAnswer>>>>>,
}

struct SharedAnswer {
    /// UID and generation of the control plane: another address may be that of another server.
    plane: (Option<String>, Option<i64>),
    until: Instant,
    /// For provisioners and for proxies.
    answers: [EntitlementAnswer; 2],
}

impl SharedAnswers {
    /// Creates an empty store. An answer counts for `lifetime`, a failure for no longer than an unknown entitlement does.
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self { lifetime, of_planes: Mutex::default() }
    }

    /// Forgets a control plane that no longer exists.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        self.of_planes.lock().remove(key);
    }

    /// The answer, and how long it counts. Callers of one control plane wait for the same call.
    async fn get(
        &self,
        feature: Feature,
        plane: &CoderControlPlane,
        ctx: &Context,
    ) -> (EntitlementAnswer, Duration) {
        let key = ObjectKey::of("CoderControlPlane", plane);
        let shared = self.of_planes.lock().entry(key).or_default().clone();
        let mut shared = shared.lock().await;
        let asked = (plane.uid(), plane.meta().generation);
        let now = Instant::now();
        if let Some(known) = shared.as_ref().filter(|known| known.plane == asked && known.until > now) {
            return (known.of(feature), known.until.duration_since(now));
        }
        let answers = match targets::server_of(plane, ctx).await {
            Ok(server) => ask(&server).await,
            Err(blocker) => [(); 2].map(|()| EntitlementAnswer::Failed(blocker.message.clone())),
        };
        let is_known = answers.iter().all(|answer| {
            matches!(answer, EntitlementAnswer::Entitlement(_) | EntitlementAnswer::NotSupported)
        });
        let lifetime = if is_known { self.lifetime } else { self.lifetime.min(REQUEUE_ENTITLEMENT) };
        let known = SharedAnswer { plane: asked, until: due_in(lifetime), answers };
        let answer = known.of(feature);
        *shared = Some(known);
        (answer, lifetime)
    }
}

impl SharedAnswer {
    fn of(&self, feature: Feature) -> EntitlementAnswer {
        let [provisioners, proxies] = &self.answers;
        match feature {
            Feature::Provisioners => provisioners.clone(),
            Feature::Proxies => proxies.clone(),
        }
    }
}

/// Whether the license of a control plane covers a feature.
pub(crate) async fn of_plane(
    feature: Feature,
    plane: Option<&CoderControlPlane>,
    ctx: &Context,
) -> LicenseGate {
    let Some(plane) = plane else {
        return LicenseGate::awaited("waiting for the control plane of spec.controlPlaneRef to be created");
    };
    let (namespace, name) = (plane.namespace().unwrap_or_default(), plane.name_any());
    let key = ObjectKey::of("CoderControlPlane", plane);
    let deployment = ctx.caches.deployments.get(&namespace, &name);
    let is_serving = Rollout::of(deployment.as_deref()).ready > 0;
    let asks = !plane.spec.operator_access.disabled && !object::is_paused(plane);
    let failure = ctx.coderd_sync.entitlements_failure(&key, plane.uid().as_ref()).filter(|_| asks);
    let is_refreshed = asks && is_serving && failure.is_none();
    if let Some(gate) = license_gate::decide(feature, &published(feature, plane, is_refreshed), ctx.now()) {
        return gate;
    }
    if !is_serving && plane.spec.operator_access.api_url.is_none() {
        let message =
            format!("waiting for a ready pod of CoderControlPlane {name}, to ask what its license covers");
        return LicenseGate::awaited(message);
    }
    // The control plane has just asked, and asks again: that is answer enough for all of its dependents.
    if let Some(failure) = failure {
        return license_gate::answered(feature, &failure);
    }
    let (answer, counts_for) = ctx.shared_answers.get(feature, plane, ctx).await;
    let gate = license_gate::answered(feature, &answer);
    // Nothing but its own requeue brings a dependent to the next answer.
    let again = gate.again.map_or(ENTITLEMENT_FRESH.unsigned_abs(), |again| again.min(counts_for));
    LicenseGate { again: Some(again), ..gate }
}

/// Asks a server whether its license covers a feature.
pub(crate) async fn of_server(feature: Feature, server: &Server) -> LicenseGate {
    let [provisioners, proxies] = ask(server).await;
    let answer = match feature {
        Feature::Provisioners => provisioners,
        Feature::Proxies => proxies,
    };
    license_gate::answered(feature, &answer)
}

/// Asks a server what its license covers: for provisioners and for proxies.
async fn ask(server: &Server) -> [EntitlementAnswer; 2] {
    let asked = server.entitlements().await;
    [Feature::Provisioners, Feature::Proxies].map(|feature| match &asked {
        Ok(all) => {
            let state = all.features.get(feature.name());
            EntitlementAnswer::Entitlement(state.map_or(FeatureState::Unknown, super::feature_state))
        }
        Err(error) => failed_answer(error),
    })
}

/// What a failed query of entitlements means. An AGPL server has none, which is not a failure.
pub(crate) fn failed_answer(error: &CoderdError) -> EntitlementAnswer {
    match error.kind {
        ErrorKind::NotSupported => EntitlementAnswer::NotSupported,
        ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. } => EntitlementAnswer::Forbidden,
        _ => EntitlementAnswer::Failed(error.to_string()),
    }
}

/// What the status of a control plane publishes about a feature.
fn published(feature: Feature, plane: &CoderControlPlane, is_refreshed: bool) -> Published {
    let Some(status) = &plane.status else { return Published { is_refreshed, ..Published::default() } };
    let is_checked = status.entitlements_last_checked.is_some();
    let provisioners = status.external_provisioner_daemons_entitlement.as_deref();
    let provisioners = provisioners.map(FeatureState::parse).unwrap_or_default();
    let entitlement = match feature {
        Feature::Provisioners => provisioners,
        // The status lists only features that are granted: once checked, one that is missing is not entitled.
        Feature::Proxies if is_checked => {
            let features = status.entitlements.as_ref().map(|entitlements| &entitlements.features);
            let granted = features.and_then(|features| features.get(feature.name()));
            granted.map_or(FeatureState::NotEntitled, |state| FeatureState::parse(state))
        }
        Feature::Proxies => FeatureState::Unknown,
    };
    // A status without details is that of an AGPL server only if it has a version: the Go operator writes neither.
    let is_unsupported = is_checked
        && status.entitlements.is_none()
        && status.version.is_some()
        && provisioners == FeatureState::NotEntitled;
    Published {
        entitlement,
        is_unsupported,
        checked: status.entitlements_last_checked.as_ref().map(|time| time.0),
        is_refreshed,
    }
}
