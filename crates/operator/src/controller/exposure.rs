//! Applies the Ingress or HTTPRoute that exposes an object, and replaces one by the other.
//!
//! The replacement is make-before-break: an Ingress is removed only after the route is accepted by its Gateway, and a route
//! only after the Ingress is written. What to expose is decided in `core::exposure`.

use std::sync::Arc;

use coder_k8s_core::{
    exposure::{
        DesiredExposure, Exposure,
        route::{Acceptance, HTTPRoute, acceptance},
    },
    outcome::ActResult,
};
use coder_k8s_engine::apply::Owner;
use k8s_openapi::api::networking::v1::Ingress;

use super::{
    Context,
    children::{apply, remove},
};

/// Applies the desired exposure. `ingress` and `route` are the cached children, of which at most one is still desired.
pub(crate) async fn expose(
    desired: &DesiredExposure,
    ingress: Option<Arc<Ingress>>,
    route: Option<Arc<HTTPRoute>>,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
) -> Exposure {
    if desired.gateway_api_missing {
        return Exposure::GatewayApiMissing;
    }
    let failures = done.failures.len();
    if let Some(desired) = &desired.ingress {
        let written = apply(ctx, owner, desired.clone(), ingress, done).await;
        if written.is_none() || done.failures.len() > failures {
            return Exposure::Unwritten;
        }
        if let Some(route) = route {
            remove(ctx, owner, &*route, done).await;
        }
        return Exposure::Ingress;
    }
    if let Some(desired) = &desired.route {
        let written = apply(ctx, owner, desired.clone(), route, done).await;
        let Some(written) = written.filter(|_| done.failures.len() == failures) else {
            return Exposure::Unwritten;
        };
        // Until a Gateway accepts the route, the Ingress is the only way in.
        let accepted = acceptance(&written);
        if let (Acceptance::Accepted, Some(ingress)) = (&accepted, ingress) {
            remove(ctx, owner, &*ingress, done).await;
        }
        return Exposure::Route(accepted);
    }
    if let Some(ingress) = ingress {
        remove(ctx, owner, &*ingress, done).await;
    }
    if let Some(route) = route {
        remove(ctx, owner, &*route, done).await;
    }
    Exposure::NotRequested
}
