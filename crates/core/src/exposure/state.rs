//! What became of an exposure, and what is said of it.

use coder_k8s_api::{Expose, Reason, condition::kind};

use super::{addresses, route::Acceptance};
use crate::condition::{ConditionStatus, Conditions, Progress, Verdict};

/// What became of the exposure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// None is asked for.
    #[default]
    NotRequested,
    /// It could not be written; the failure is told elsewhere.
    Unwritten,
    /// The Ingress is written.
    Ingress,
    /// The route is written; what the Gateways say.
    Route(Acceptance),
    /// The cluster has no Gateway API.
    GatewayApiMissing,
}

const GATEWAY_API_MISSING: &str = "expose.gateway needs the Gateway API, which this cluster does not have; install its CRDs, or use expose.ingress";

impl Exposure {
    /// Why an object with this exposure is not ready yet. None: it does not stand in the way.
    pub fn verdict(&self) -> Option<Verdict> {
        let (reason, message) = match self {
            Self::GatewayApiMissing => (Reason::GatewayApiMissing, GATEWAY_API_MISSING),
            Self::Unwritten => (Reason::Pending, "the exposure is not written yet"),
            Self::NotRequested | Self::Ingress | Self::Route(_) => return None,
        };
        Some(Verdict { ready: false, progress: Progress::Working, reason, message: message.to_owned() })
    }

    /// Says it.
    pub fn set_conditions(&self, expose: Option<&Expose>, conditions: &mut Conditions<'_>) {
        let url = expose.and_then(addresses).map(|addresses| addresses.url).unwrap_or_default();
        let (state, reason, message) = match self {
            Self::NotRequested => (ConditionStatus::False, Reason::Disabled, "nothing is exposed".to_owned()),
            Self::Unwritten => {
                (ConditionStatus::False, Reason::Pending, "the exposure is not written yet".to_owned())
            }
            Self::Ingress => {
                (ConditionStatus::True, Reason::Exposed, format!("the Ingress for {url} is written"))
            }
            Self::Route(Acceptance::Accepted) => {
                (ConditionStatus::True, Reason::Exposed, format!("a Gateway accepts the route for {url}"))
            }
            Self::Route(Acceptance::Pending) => {
                (ConditionStatus::Unknown, Reason::Pending, format!("no Gateway has answered for {url} yet"))
            }
            Self::Route(Acceptance::Refused(why)) => {
                (ConditionStatus::False, Reason::RouteNotAccepted, why.clone())
            }
            Self::GatewayApiMissing => {
                (ConditionStatus::False, Reason::GatewayApiMissing, GATEWAY_API_MISSING.to_owned())
            }
        };
        conditions.set(kind::EXPOSED, state, reason, message);
    }
}
