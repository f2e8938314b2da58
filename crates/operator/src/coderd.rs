//! The one way to talk to coderd: targets and clients, errors, the driver of decisions, and the schedules.
//!
//! `core` decides about coderd: ask this, do this, or done. [`run_protocol`] drives the decisions about operator tokens and
//! licenses; [`credential`] those about keys and registrations, which write the status and Secrets between two steps.
//!
//! Only [`targets`] makes a server of an address. Tokens are attached in four places: by its `Connections`, by the
//! sync of a control plane (`Plane::client`; `first_user.rs` for a session that the server has just begun), and by the
//! daemon poll (`query.rs`). A credential can be attached only to
//! a server that has answered which deployment it is (`coder_k8s_coderd::IdentifiedServer`), so that no caller can
//! send one elsewhere by mistake.

pub(crate) mod credential;
pub(crate) mod license_gate;
pub(crate) mod schedule;
pub(crate) mod targets;

use std::ops::ControlFlow;

use coder_k8s_api::Reason;
use coder_k8s_coderd::{CoderdError, Entitlement, ErrorKind, Feature, RetryAdvice, postgres};
use coder_k8s_core::{
    controlplane::coderd::Step,
    license_gate::FeatureState,
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

/// A decision of `core`, with the code that answers its queries and performs its effects.
pub(crate) trait Protocol {
    type Query;
    type Effect;
    type Done;

    /// The next step for what is known so far.
    fn decide(&mut self) -> Step<Self::Query, Self::Effect, Self::Done>;

    /// Answers a query and records the answer for the next decision. A failure is an answer too.
    async fn ask(&mut self, query: Self::Query);

    /// Performs an effect and records the outcome for the next decision. Breaks if the object changed meanwhile.
    async fn act(&mut self, effect: Self::Effect) -> ControlFlow<Self::Done>;
}

/// The most steps of one run. Every step adds to what is known, so that a decision that needs more has a bug.
const MAX_STEPS: usize = 64;

/// Runs a protocol to its end: answers queries and performs effects until the decision is done. None: it exceeded the bound;
/// the caller retries later.
pub(crate) async fn run_protocol<P: Protocol>(protocol: &mut P) -> Option<P::Done> {
    for _ in 0..MAX_STEPS {
        match protocol.decide() {
            Step::Ask(query) => protocol.ask(query).await,
            Step::Act(effect) => {
                if let ControlFlow::Break(done) = protocol.act(effect).await {
                    return Some(done);
                }
            }
            Step::Done(done) => return Some(done),
        }
    }
    tracing::error!("bug: a decision about coderd did not end after {MAX_STEPS} steps");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless(usize);

    impl Protocol for Endless {
        type Query = ();
        type Effect = ();
        type Done = usize;

        fn decide(&mut self) -> Step<(), (), usize> {
            if self.0 < 3 { Step::Ask(()) } else { Step::Act(()) }
        }

        async fn ask(&mut self, (): ()) {
            self.0 += 1;
        }

        async fn act(&mut self, (): ()) -> ControlFlow<usize> {
            self.0 += 1;
            if self.0 == 5 { ControlFlow::Break(self.0) } else { ControlFlow::Continue(()) }
        }
    }

    #[tokio::test]
    async fn an_effect_can_end_the_run_and_the_run_ends_in_any_case() {
        assert_eq!(run_protocol(&mut Endless(0)).await, Some(5));
        assert_eq!(run_protocol(&mut Endless(6)).await, None);
    }
}
