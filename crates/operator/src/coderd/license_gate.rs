//! Whether the license covers a feature, for the pools and proxies that need it.
//!
//! As a rule the answer is on the status of the control plane, which asks coderd once for all of its pools and proxies.
//! coderd is asked here only where no control plane publishes it. What follows is decided in `core::license_gate`.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_coderd::{Entitlements, Error, ErrorKind};
use coder_k8s_core::{
    entitlements::FeatureState,
    license_gate::{self, EntitlementAnswer, Feature, GateDecision, LicenseGate, Published},
};

use super::targets;
use crate::controller::Context;

/// Whether the license of a control plane covers a feature.
pub(crate) async fn of_plane(
    feature: Feature,
    plane: Option<&CoderControlPlane>,
    ctx: &Context,
) -> LicenseGate {
    let published = published(feature, plane);
    match license_gate::decide(feature, &published, None, ctx.now()) {
        GateDecision::Know(gate) => gate,
        GateDecision::Ask => {
            let answer = ask(feature, plane, ctx).await;
            answered(feature, &published, &answer, ctx)
        }
    }
}

async fn ask(feature: Feature, plane: Option<&CoderControlPlane>, ctx: &Context) -> EntitlementAnswer {
    let Some(plane) = plane else {
        return EntitlementAnswer::Failed("the control plane of controlPlaneRef does not exist".to_owned());
    };
    match targets::server_of(plane, ctx).await {
        Ok(server) => answer(feature, server.entitlements().await),
        Err(blocker) => EntitlementAnswer::Failed(blocker.message),
    }
}

/// The gate, given the answer of coderd.
pub(crate) fn answered(
    feature: Feature,
    published: &Published,
    answer: &EntitlementAnswer,
    ctx: &Context,
) -> LicenseGate {
    match license_gate::decide(feature, published, Some(answer), ctx.now()) {
        GateDecision::Know(gate) => gate,
        GateDecision::Ask => LicenseGate::unknown("coderd was not asked"),
    }
}

/// The answer of coderd for one feature. An AGPL server has no entitlements and is not a failure.
pub(crate) fn answer(feature: Feature, entitlements: Result<Entitlements, Error>) -> EntitlementAnswer {
    match entitlements {
        Ok(all) => {
            let state = all.features.get(feature.name());
            EntitlementAnswer::Entitlement(state.map_or(FeatureState::Unknown, super::feature_state))
        }
        Err(error) => match error.kind {
            ErrorKind::NotSupported => EntitlementAnswer::NotSupported,
            ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. } => EntitlementAnswer::Forbidden,
            _ => EntitlementAnswer::Failed(error.to_string()),
        },
    }
}

/// What the status of a control plane publishes about a feature.
fn published(feature: Feature, plane: Option<&CoderControlPlane>) -> Published {
    let status = plane.and_then(|plane| plane.status.as_ref());
    let entitlement = match feature {
        Feature::Provisioners => {
            status.and_then(|status| status.external_provisioner_daemons_entitlement.as_deref())
        }
        // The status lists only features that are granted: once checked, one that is missing is not entitled.
        Feature::Proxies => {
            status.filter(|status| status.entitlements_last_checked.is_some()).map(|status| {
                let features = status.entitlements.as_ref().map(|entitlements| &entitlements.features);
                let granted = features.and_then(|features| features.get(feature.name()));
                granted.map_or(FeatureState::NotEntitled.as_str(), String::as_str)
            })
        }
    };
    Published {
        entitlement: entitlement.map(FeatureState::parse).unwrap_or_default(),
        checked: status.and_then(|status| status.entitlements_last_checked.as_ref()).map(|time| time.0),
        kept: plane.is_some_and(|plane| !plane.spec.operator_access.disabled),
    }
}
