//! Whether the license covers a feature, for the pools and proxies that need it.
//!
//! As a rule the answer is on the status of the control plane, which asks coderd once for all of its pools and proxies.
//! coderd is asked here only where no control plane publishes it. What follows is decided in `core::license_gate`.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_coderd::{ErrorKind, Server};
use coder_k8s_core::{
    entitlements::FeatureState,
    license_gate::{self, EntitlementAnswer, Feature, LicenseGate, Published},
};

use super::targets;
use crate::controller::Context;

/// Whether the license of a control plane covers a feature.
pub(crate) async fn of_plane(
    feature: Feature,
    plane: Option<&CoderControlPlane>,
    ctx: &Context,
) -> LicenseGate {
    if let Some(gate) = license_gate::decide(feature, &published(feature, plane), ctx.now()) {
        return gate;
    }
    let failed = |why: String| license_gate::answered(feature, &EntitlementAnswer::Failed(why));
    let Some(plane) = plane else {
        return failed("the control plane of controlPlaneRef does not exist".to_owned());
    };
    match targets::server_of(plane, ctx).await {
        Ok(server) => of_server(feature, &server).await,
        Err(blocker) => failed(blocker.message),
    }
}

/// Asks a server whether its license covers a feature. An AGPL server has no entitlements and is not a failure.
pub(crate) async fn of_server(feature: Feature, server: &Server) -> LicenseGate {
    let answer = match server.entitlements().await {
        Ok(all) => {
            let state = all.features.get(feature.name());
            EntitlementAnswer::Entitlement(state.map_or(FeatureState::Unknown, super::feature_state))
        }
        Err(error) => match error.kind {
            ErrorKind::NotSupported => EntitlementAnswer::NotSupported,
            ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. } => EntitlementAnswer::Forbidden,
            _ => EntitlementAnswer::Failed(error.to_string()),
        },
    };
    license_gate::answered(feature, &answer)
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
