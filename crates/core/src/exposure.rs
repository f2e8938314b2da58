//! Exposure to the outside: the Ingress or route, the addresses that follow from it, and whether it is in force.

pub mod route;

use coder_k8s_api::{
    Expose, GatewayExposure, IngressExposure, ObjectName, Reason, Scheme, condition::condition_type,
};
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend,
    IngressSpec, IngressTLS, ServiceBackendPort,
};
use kube::core::ObjectMeta;

use self::route::{Acceptance, BackendRef, HTTPRoute, HTTPRouteSpec, Match, ParentRef, PathMatch, RouteRule};
use crate::{
    condition::{ConditionStatus, Conditions, Progress, Verdict},
    pod::{some, some_map},
};

/// The addresses that an exposure gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedAddresses {
    /// For people.
    pub url: String,
    /// For workspace applications, as coderd reads it.
    pub wildcard: Option<String>,
}

/// What is written for an exposure. At most one of the two.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredExposure {
    /// The Ingress.
    pub ingress: Option<Ingress>,
    /// The route. None also while the cluster has no Gateway API.
    pub route: Option<HTTPRoute>,
    /// Whether a route is asked for that cannot be made.
    pub gateway_api_missing: bool,
}

/// What is to be written, under one name, to the port of a Service.
pub fn desired(
    name: &str,
    expose: Option<&Expose>,
    service: &str,
    port: i32,
    gateway_api: bool,
) -> DesiredExposure {
    let ingress_of = |settings| ingress(name, settings, service, port);
    let route_of = |settings| http_route(name, settings, service, port);
    let route = expose.and_then(|expose| expose.gateway.as_ref()).map(route_of);
    DesiredExposure {
        ingress: expose.and_then(|expose| expose.ingress.as_ref()).map(ingress_of),
        gateway_api_missing: route.is_some() && !gateway_api,
        route: route.filter(|_| gateway_api),
    }
}

/// The addresses of an exposure. None: nothing is exposed.
pub fn addresses(expose: &Expose) -> Option<ExposedAddresses> {
    let (scheme, host, wildcard) = match (&expose.ingress, &expose.gateway) {
        (Some(ingress), _) => {
            let encrypted = ingress.tls.as_ref().is_some_and(|tls| tls.secret_name.is_some());
            let scheme = ingress.scheme.unwrap_or(if encrypted { Scheme::Https } else { Scheme::Http });
            (scheme, &ingress.host, &ingress.wildcard_host)
        }
        (None, Some(gateway)) => {
            (gateway.scheme.unwrap_or(Scheme::Https), &gateway.host, &gateway.wildcard_host)
        }
        (None, None) => return None,
    };
    let scheme = match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    Some(ExposedAddresses {
        url: format!("{scheme}://{host}"),
        wildcard: wildcard.as_ref().map(ToString::to_string),
    })
}

/// The Ingress to the port of a Service.
///
/// Without a class nothing is said about one: the API server gives the default class to a new Ingress, and it stays.
pub fn ingress(name: &str, settings: &IngressExposure, service: &str, port: i32) -> Ingress {
    let IngressExposure { class_name, host, wildcard_host, scheme: _, annotations, tls } = settings;
    let wildcard = wildcard_host.as_ref().map(|host| routable(host.as_str()));
    let backend = IngressServiceBackend {
        name: service.to_owned(),
        port: Some(ServiceBackendPort { number: Some(port), name: None }),
    };
    let rule = |host: &str| IngressRule {
        host: Some(host.to_owned()),
        http: Some(HTTPIngressRuleValue {
            paths: vec![HTTPIngressPath {
                path: Some("/".to_owned()),
                path_type: "Prefix".to_owned(),
                backend: IngressBackend { service: Some(backend.clone()), resource: None },
            }],
        }),
    };
    let certificate = |(secret, host): (&ObjectName, &str)| IngressTLS {
        secret_name: Some(secret.to_string()),
        hosts: Some(vec![host.to_owned()]),
    };
    let tls = tls.as_ref();
    let plain = tls.and_then(|tls| tls.secret_name.as_ref()).zip(Some(host.as_str()));
    let wild = tls.and_then(|tls| tls.wildcard_secret_name.as_ref()).zip(wildcard.as_deref());
    let certificates = plain.into_iter().chain(wild).map(certificate).collect();
    let spec = IngressSpec {
        ingress_class_name: class_name.as_ref().map(ToString::to_string),
        rules: Some(std::iter::once(host.as_str()).chain(wildcard.as_deref()).map(rule).collect()),
        tls: some(certificates),
        default_backend: None,
    };
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        annotations: some_map(annotations),
        ..ObjectMeta::default()
    };
    Ingress { metadata, spec: Some(spec), status: None }
}

/// The route to the port of a Service.
pub fn http_route(name: &str, settings: &GatewayExposure, service: &str, port: i32) -> HTTPRoute {
    let GatewayExposure { host, wildcard_host, scheme: _, annotations, parent_refs } = settings;
    let parents = parent_refs.iter().map(|parent| ParentRef {
        name: parent.name.to_string(),
        namespace: parent.namespace.as_ref().map(ToString::to_string),
        section_name: parent.section_name.as_ref().map(ToString::to_string),
    });
    let hostnames =
        std::iter::once(host.to_string()).chain(wildcard_host.iter().map(|host| routable(host.as_str())));
    let rule = RouteRule {
        matches: vec![Match { path: PathMatch { type_: "PathPrefix".to_owned(), value: "/".to_owned() } }],
        backend_refs: vec![BackendRef {
            group: String::new(),
            kind: "Service".to_owned(),
            name: service.to_owned(),
            port,
            weight: None,
        }],
    };
    let spec =
        HTTPRouteSpec { parent_refs: parents.collect(), hostnames: hostnames.collect(), rules: vec![rule] };
    let mut route = HTTPRoute::new(name, spec);
    route.metadata.annotations = some_map(annotations);
    route
}

/// Routes carry whole labels: the applications' pattern `*-apps.example.com` is served by `*.example.com`.
fn routable(host: &str) -> String {
    match host.split_once('.') {
        Some((first, rest)) if first.starts_with('*') => format!("*.{rest}"),
        _ => host.to_owned(),
    }
}

/// What became of the exposure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// None is asked for.
    #[default]
    NotRequested,
    /// It could not be written; the failure is on another condition.
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
            Self::Unwritten => (Reason::Pending, "waiting for the Ingress or HTTPRoute to be written"),
            Self::NotRequested | Self::Ingress | Self::Route(_) => return None,
        };
        Some(Verdict { ready: false, progress: Progress::Working, reason, message: message.to_owned() })
    }

    /// Sets the condition `Exposed`. An object that asks for no exposure has none.
    pub fn set_conditions(&self, expose: Option<&Expose>, conditions: &mut Conditions<'_>) {
        let url = expose.and_then(addresses).map(|addresses| addresses.url).unwrap_or_default();
        let not_yet = "waiting for the Ingress or HTTPRoute to be written".to_owned();
        let (state, reason, message) = match self {
            Self::NotRequested => return conditions.clear(condition_type::EXPOSED),
            Self::Unwritten => (ConditionStatus::False, Reason::Pending, not_yet),
            Self::Ingress => {
                (ConditionStatus::True, Reason::Exposed, format!("the Ingress for {url} is written"))
            }
            Self::Route(Acceptance::Accepted) => {
                (ConditionStatus::True, Reason::Exposed, format!("a Gateway accepts the route for {url}"))
            }
            Self::Route(Acceptance::Pending) => (
                ConditionStatus::Unknown,
                Reason::Pending,
                format!("waiting for a Gateway to accept the route for {url}"),
            ),
            Self::Route(Acceptance::Refused(why)) => {
                (ConditionStatus::False, Reason::RouteNotAccepted, why.clone())
            }
            Self::GatewayApiMissing => {
                (ConditionStatus::False, Reason::GatewayApiMissing, GATEWAY_API_MISSING.to_owned())
            }
        };
        conditions.set(condition_type::EXPOSED, state, reason, message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expose(spec: serde_json::Value) -> Expose {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_scheme_follows_the_certificate_and_can_be_overridden() {
        for (spec, url) in [
            (json!({"ingress": {"host": "a.b"}}), "http://a.b"),
            (json!({"ingress": {"host": "a.b", "tls": {"secretName": "s"}}}), "https://a.b"),
            (json!({"ingress": {"host": "a.b", "scheme": "https"}}), "https://a.b"),
            (json!({"gateway": {"host": "a.b", "parentRefs": [{"name": "g"}]}}), "https://a.b"),
            (
                json!({"gateway": {"host": "a.b", "scheme": "http", "parentRefs": [{"name": "g"}]}}),
                "http://a.b",
            ),
        ] {
            assert_eq!(addresses(&expose(spec)).unwrap().url, url);
        }
        assert_eq!(addresses(&expose(json!({}))), None);
        let with = expose(json!({"ingress": {"host": "a.b", "wildcardHost": "*--apps.b"}}));
        assert_eq!(addresses(&with).unwrap().wildcard.as_deref(), Some("*--apps.b"));
    }

    #[test]
    fn an_ingress_pairs_hosts_and_certificates() {
        let spec = json!({"host": "coder.example.com", "wildcardHost": "*-apps.example.com",
            "tls": {"secretName": "cert", "wildcardSecretName": "wild"}});
        let made = ingress("coder", &serde_json::from_value(spec).unwrap(), "coder", 80).spec.unwrap();
        let made = serde_json::to_value(made).unwrap();
        assert_eq!(made["ingressClassName"], serde_json::Value::Null);
        assert_eq!(made["rules"][0]["host"], "coder.example.com");
        assert_eq!(made["rules"][1]["host"], "*.example.com");
        let path = &made["rules"][1]["http"]["paths"][0];
        assert_eq!((path["path"].as_str(), path["pathType"].as_str()), (Some("/"), Some("Prefix")));
        assert_eq!(path["backend"]["service"], json!({"name": "coder", "port": {"number": 80}}));
        assert_eq!(
            made["tls"],
            json!([{"secretName": "cert", "hosts": ["coder.example.com"]}, {"secretName": "wild", "hosts": ["*.example.com"]}])
        );
    }

    #[test]
    fn a_route_names_its_gateways_and_the_service() {
        let spec = json!({"host": "coder.example.com", "wildcardHost": "*.apps.example.com",
            "parentRefs": [{"name": "gw", "namespace": "infra", "sectionName": "web"}, {"name": "plain"}]});
        let made = http_route("coder", &serde_json::from_value(spec).unwrap(), "coder", 80);
        assert_eq!(
            serde_json::to_value(made.spec).unwrap(),
            json!({
                "parentRefs": [{"name": "gw", "namespace": "infra", "sectionName": "web"}, {"name": "plain"}],
                "hostnames": ["coder.example.com", "*.apps.example.com"],
                "rules": [{
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": [{"group": "", "kind": "Service", "name": "coder", "port": 80}],
                }],
            })
        );
    }
}
