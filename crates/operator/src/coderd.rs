//! The one way to talk to coderd: targets and clients, errors, the driver of decisions, and the schedules.
//!
//! Only [`targets`] makes clients. A credential can be attached only to a server that has answered which deployment it is
//! (`coder_k8s_coderd::IdentifiedServer`), so that no caller can send one elsewhere by mistake.

pub(crate) mod credential;
pub(crate) mod credentials;
pub(crate) mod driver;
pub(crate) mod license_gate;
pub(crate) mod schedule;
pub(crate) mod targets;
pub(crate) mod verify_schedule;

use coder_k8s_api::Reason;
use coder_k8s_coderd::{CoderdError, Entitlement, ErrorKind, Feature, RetryAdvice, postgres};
use coder_k8s_core::{
    entitlements::FeatureState,
    outcome::{Blocker, Retry},
};
use coder_k8s_engine::secret;

/// The blocker for a failed call to the coderd of a control plane.
pub(crate) fn blocker_of(error: &CoderdError) -> Blocker {
    blocker_at(error, "operatorAccess.apiURL")
}

/// The blocker for a failed call to coderd. `field` is the field of the spec that sets its address. The message is the same
/// for each attempt, so that a status does not change with every retry.
pub(crate) fn blocker_at(error: &CoderdError, field: &str) -> Blocker {
    let message = match &error.kind {
        ErrorKind::Redirected { to } => format!(
            "coderd redirects to {to}, where the operator never sends a token: set {field} to the address that answers, which \
             --allowed-coder-urls of the operator must list"
        ),
        _ => error.to_string(),
    };
    Blocker::new(error.reason(), message).with_retry(retry_of(error))
}

/// When to call again. A server may change while nothing in Kubernetes does, so that every failure is retried.
pub(crate) fn retry_of(error: &CoderdError) -> Retry {
    match error.retry() {
        RetryAdvice::After(wait) => Retry::After(wait),
        RetryAdvice::OnChange | RetryAdvice::Backoff => Retry::Backoff,
    }
}

/// The blocker for a failure in coderd's database.
#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
pub(crate) fn blocker_of_database(error: postgres::DatabaseError) -> Blocker {
    let retry = match error.retry() {
        RetryAdvice::OnChange => Retry::OnChange,
        RetryAdvice::Backoff | RetryAdvice::After(_) => Retry::Backoff,
    };
    Blocker::new(error.reason(), error.to_string()).with_retry(retry)
}

/// The blocker for a Secret that cannot be read or written.
#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
pub(crate) fn blocker_of_secret(error: secret::Error) -> Blocker {
    Blocker::new(Reason::Error, error.to_string())
}

/// Combines the retries of two failed calls: a delay that a server demands (Retry-After) is kept, and the longer one counts.
pub(crate) fn later(so_far: Option<Retry>, retry: Retry) -> Retry {
    match (so_far, retry) {
        (Some(Retry::After(one)), Retry::After(two)) => Retry::After(one.max(two)),
        (Some(Retry::After(wait)), _) => Retry::After(wait),
        (_, retry) => retry,
    }
}

/// The state of a feature as coderd reports it.
pub(crate) fn feature_state(feature: &Feature) -> FeatureState {
    match feature.entitlement {
        Entitlement::Entitled => FeatureState::Entitled,
        Entitlement::GracePeriod => FeatureState::GracePeriod,
        Entitlement::NotEntitled => FeatureState::NotEntitled,
        Entitlement::Other(_) => FeatureState::Unknown,
    }
}
