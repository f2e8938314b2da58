//! HTTPRoute of the Gateway API: the part that the operator writes and reads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The desired state of a route.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "HTTPRoute",
    plural = "httproutes",
    namespaced,
    schema = "disabled",
    status = "HTTPRouteStatus",
    derive = "PartialEq",
    doc = "A route of the Gateway API."
)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteSpec {
    /// Gateways to attach to.
    #[serde(default)]
    pub parent_refs: Vec<ParentRef>,
    /// Hosts that it serves.
    #[serde(default)]
    pub hostnames: Vec<String>,
    /// A target of requests.
    #[serde(default)]
    pub rules: Vec<RouteRule>,
}

/// A Gateway to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// Name of the Gateway.
    pub name: String,
    /// Its namespace; the route's own when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// One of its listeners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// Which requests go to which Services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRule {
    /// The requests.
    #[serde(default)]
    pub matches: Vec<Match>,
    /// The Services.
    #[serde(default)]
    pub backend_refs: Vec<BackendRef>,
}

/// A condition on requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    /// By their path.
    #[serde(default)]
    pub path: PathMatch,
}

/// A condition on the path of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMatch {
    /// `PathPrefix` or another way to compare.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// The path to compare with.
    #[serde(default)]
    pub value: String,
}

/// A target of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendRef {
    /// API group of the target.
    #[serde(default)]
    pub group: String,
    /// Its kind.
    #[serde(default)]
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its port.
    #[serde(default)]
    pub port: i32,
    /// Its share of the requests. The API server sets 1 where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

/// The status of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HTTPRouteStatus {
    /// One entry for each Gateway.
    #[serde(default)]
    pub parents: Vec<ParentStatus>,
}

/// The status of a route at one Gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The Gateway.
    pub parent_ref: ParentRef,
    /// `Accepted`, `ResolvedRefs` and others.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Whether Gateways accept a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// No Gateway has reported on this generation yet.
    Pending,
    /// At least one accepts it, with every Service that it names.
    Accepted,
    /// One refuses it and none accepts it, with its reason and message.
    Refused(String),
}

/// Whether Gateways accept the route as it is now.
pub fn acceptance(route: &HTTPRoute) -> Acceptance {
    let generation = route.metadata.generation;
    let parents = route.status.iter().flat_map(|status| &status.parents);
    let mut refusal = None;
    for parent in parents {
        let current = parent.conditions.iter().filter(|c| c.observed_generation >= generation);
        let accepted = current.clone().any(|c| c.type_ == "Accepted" && c.status == "True");
        let refused =
            current.clone().find(|c| matches!(&*c.type_, "Accepted" | "ResolvedRefs") && c.status == "False");
        match refused {
            Some(why) => {
                refusal =
                    Some(format!("Gateway {}: {}: {}", parent.parent_ref.name, why.reason, why.message));
            }
            None if accepted => return Acceptance::Accepted,
            None => {}
        }
    }
    refusal.map_or(Acceptance::Pending, Acceptance::Refused)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "so that tests read as tables")]
    fn route(generation: i64, parents: serde_json::Value) -> HTTPRoute {
        let mut route = HTTPRoute::new("coder", HTTPRouteSpec::default());
        route.metadata.generation = Some(generation);
        route.status = Some(serde_json::from_value(json!({"parents": parents})).unwrap());
        route
    }

    fn says(type_: &str, status: &str, generation: i64) -> serde_json::Value {
        json!({"type": type_, "status": status, "reason": "R", "message": "m", "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn only_what_is_said_of_this_generation_counts() {
        let parent =
            |conditions: serde_json::Value| json!([{"parentRef": {"name": "gw"}, "conditions": conditions}]);
        assert_eq!(acceptance(&route(2, json!([]))), Acceptance::Pending);
        assert_eq!(acceptance(&route(2, parent(json!([says("Accepted", "True", 1)])))), Acceptance::Pending);
        assert_eq!(acceptance(&route(2, parent(json!([says("Accepted", "True", 2)])))), Acceptance::Accepted);
        let refused = parent(json!([says("Accepted", "True", 2), says("ResolvedRefs", "False", 2)]));
        assert_eq!(acceptance(&route(2, refused)), Acceptance::Refused("Gateway gw: R: m".into()));
    }
}
