//! What became of an exposure, and what is said of it.

use coder_k8s_api::{
    Expose,
    condition::{kind, reason},
};

use super::{addresses, route::Acceptance};
use crate::condition::{Conditions, Progress, State, Verdict};

/// What became of the exposure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// None is asked for.
    #[default]
    Unasked,
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
            Self::GatewayApiMissing => (reason::GATEWAY_API_MISSING, GATEWAY_API_MISSING),
            Self::Unwritten => (reason::PENDING, "the exposure is not written yet"),
            Self::Unasked | Self::Ingress | Self::Route(_) => return None,
        };
        Some(Verdict { ready: false, progress: Progress::Working, reason, message: message.to_owned() })
    }

    /// Says it.
    pub fn tell(&self, expose: Option<&Expose>, conditions: &mut Conditions<'_>) {
        let url = expose.and_then(addresses).map(|addresses| addresses.url).unwrap_or_default();
        let (state, reason, message) = match self {
            Self::Unasked => (State::False, reason::DISABLED, "nothing is exposed".to_owned()),
            Self::Unwritten => (State::False, reason::PENDING, "the exposure is not written yet".to_owned()),
            Self::Ingress => (State::True, reason::EXPOSED, format!("the Ingress for {url} is written")),
            Self::Route(Acceptance::Accepted) => {
                (State::True, reason::EXPOSED, format!("a Gateway accepts the route for {url}"))
            }
            Self::Route(Acceptance::Pending) => {
                (State::Unknown, reason::PENDING, format!("no Gateway has answered for {url} yet"))
            }
            Self::Route(Acceptance::Refused(why)) => (State::False, reason::ROUTE_NOT_ACCEPTED, why.clone()),
            Self::GatewayApiMissing => {
                (State::False, reason::GATEWAY_API_MISSING, GATEWAY_API_MISSING.to_owned())
            }
        };
        conditions.set(kind::EXPOSED, state, reason, message);
    }
}
