//! The addresses that coderd believes to have.
//!
//! What users set wins, wherever they set it. Else the exposed host; else, unless switched off, the Service.

use coder_k8s_api::{CoderControlPlane, Expose, PodSettings, ServiceSettings};
use k8s_openapi::api::core::v1::EnvVar;
use kube::ResourceExt;

use crate::{
    exposure,
    pod::{find_variable, variable},
    service,
    sources::{Defined, SourceContents, definition},
};

/// The address for people.
pub const ACCESS_URL: &str = "CODER_ACCESS_URL";
/// The pattern of addresses of workspace applications.
pub const WILDCARD_ACCESS_URL: &str = "CODER_WILDCARD_ACCESS_URL";

/// The addresses of a control plane or a proxy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// The operator's entries of the environment.
    pub env: Vec<EnvVar>,
    /// The address for people, if it can be told without looking into a Secret.
    pub shown: Option<String>,
}

/// The variables that `envFrom` may define and that the operator would set otherwise.
pub fn inspected(object: &CoderControlPlane) -> Vec<&'static str> {
    defaults(object).inspected(&object.spec.pod)
}

/// The addresses, given what the sources of the environment say.
pub fn addresses(object: &CoderControlPlane, found: &SourceContents) -> Addresses {
    defaults(object).resolved(&object.spec.pod, found)
}

fn defaults(object: &CoderControlPlane) -> Defaults {
    let spec = &object.spec;
    let exposed = exposed(spec.expose.as_ref());
    let of_service = || {
        spec.env_use_cluster_access_url
            .then(|| of_service(&service_host(object), &spec.service, has_tls(object)))
    };
    let wildcard = exposed.as_ref().and_then(|exposed| exposed.wildcard.clone());
    Defaults { url: exposed.map(|exposed| exposed.url).or_else(of_service), wildcard }
}

/// The addresses that hold where users set none in the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// For people.
    pub url: Option<String>,
    /// For workspace applications.
    pub wildcard: Option<String>,
}

impl Defaults {
    /// The variables that `envFrom` may define and that the operator would set otherwise.
    pub fn inspected(&self, pod: &PodSettings) -> Vec<&'static str> {
        let candidates = [(ACCESS_URL, &self.url), (WILDCARD_ACCESS_URL, &self.wildcard)];
        candidates
            .into_iter()
            .filter(|(name, default)| default.is_some() && find_variable(&pod.extra_env, name).is_none())
            .map(|(name, _)| name)
            .collect()
    }

    /// The addresses, given what the sources of the environment say.
    pub fn resolved(self, pod: &PodSettings, found: &SourceContents) -> Addresses {
        let mut env = Vec::new();
        let mut settle = |name: &str, default: Option<String>| {
            if let Some(entry) = find_variable(&pod.extra_env, name) {
                // `$(NAME)` is expanded by the kubelet, so that the value is not known here.
                return entry.value.clone().filter(|value| !value.is_empty() && !value.contains("$("));
            }
            match definition(&pod.env_from, name, found) {
                Defined::As(value) => Some(value),
                Defined::FromSecret => None,
                Defined::No => {
                    env.extend(default.iter().map(|value| variable(name, value.clone())));
                    default
                }
            }
        };
        let shown = settle(ACCESS_URL, self.url);
        settle(WILDCARD_ACCESS_URL, self.wildcard);
        Addresses { env, shown }
    }
}

/// The address of the Service inside the cluster, with its port.
pub fn cluster_url(object: &CoderControlPlane) -> String {
    // coderd serves HTTPS on 443 alone; `service.port` is then that of HTTP.
    if has_tls(object) { https_url(object) } else { http_url(object) }
}

/// The Service by HTTP: what the operator calls unless the spec has `apiURL` or `caSecretRef`.
pub fn http_url(object: &CoderControlPlane) -> String {
    let port = service::http_port(&object.spec.service, has_tls(object));
    format!("http://{}:{port}", service_host(object))
}

/// The address at which coderd itself serves HTTPS.
pub fn https_url(object: &CoderControlPlane) -> String {
    format!("https://{}:443", service_host(object))
}

fn has_tls(object: &CoderControlPlane) -> bool {
    !object.spec.tls.secret_names.is_empty()
}

fn service_host(object: &CoderControlPlane) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("{}.{namespace}.svc.{}", object.name_any(), object.spec.cluster_domain)
}

/// The address of a Service inside the cluster, without a port that goes without saying.
pub fn of_service(host: &str, settings: &ServiceSettings, tls: bool) -> String {
    match (tls, settings.port) {
        (true, _) => format!("https://{host}"),
        (false, 80) => format!("http://{host}"),
        (false, port) => format!("http://{host}:{port}"),
    }
}

/// The addresses of an exposure, if they are to become those of what is exposed.
pub fn exposed(expose: Option<&Expose>) -> Option<exposure::ExposedAddresses> {
    exposure::addresses(expose.filter(|expose| expose.set_access_url)?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sources::{Source, SourceContent};

    fn plane(spec: Value) -> CoderControlPlane {
        let mut object = CoderControlPlane::new("coder", serde_json::from_value(spec).unwrap());
        object.metadata.namespace = Some("ns".into());
        object
    }

    fn url(spec: Value) -> (Option<String>, Option<String>) {
        let all = addresses(&plane(spec), &SourceContents::new());
        let set = all.env.iter().find(|entry| entry.name == ACCESS_URL).and_then(|entry| entry.value.clone());
        (set, all.shown)
    }

    #[test]
    fn the_first_of_user_exposure_and_service_gives_the_address() {
        let both = |text: &str| (Some(text.to_owned()), Some(text.to_owned()));
        assert_eq!(url(json!({})), both("http://coder.ns.svc.cluster.local"));
        assert_eq!(url(json!({"service": {"port": 8080}})), both("http://coder.ns.svc.cluster.local:8080"));
        assert_eq!(url(json!({"clusterDomain": "corp.test"})), both("http://coder.ns.svc.corp.test"));
        let tls = json!({"tls": {"secretNames": ["s"]}, "service": {"port": 8080}});
        assert_eq!(url(tls), both("https://coder.ns.svc.cluster.local"));
        assert_eq!(url(json!({"envUseClusterAccessURL": false})), (None, None));
        let exposed =
            json!({"expose": {"ingress": {"host": "coder.example.com"}}, "envUseClusterAccessURL": false});
        assert_eq!(url(exposed), both("http://coder.example.com"));
        let opted_out = json!({"expose": {"setAccessURL": false, "ingress": {"host": "coder.example.com"}}});
        assert_eq!(url(opted_out), both("http://coder.ns.svc.cluster.local"));
        let user = json!({"extraEnv": [{"name": "CODER_ACCESS_URL", "value": "https://mine"}],
            "expose": {"ingress": {"host": "coder.example.com"}}});
        assert_eq!(url(user), (None, Some("https://mine".into())));
        let hidden = json!({"extraEnv": [{"name": "CODER_ACCESS_URL", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]});
        assert_eq!(url(hidden), (None, None));
    }

    #[test]
    fn a_source_of_the_environment_wins_over_the_default() {
        let object = plane(json!({"envFrom": [{"configMapRef": {"name": "m"}}]}));
        let data = |key: &str| SourceContent::Data {
            digest: String::new(),
            keys: [key.to_owned()].into(),
            values: [(key.to_owned(), "https://map".to_owned())].into(),
        };
        let of = |found: SourceContent| addresses(&object, &[(Source::ConfigMap("m".into()), found)].into());
        assert_eq!(of(data(ACCESS_URL)), Addresses { env: vec![], shown: Some("https://map".into()) });
        assert_eq!(of(data("OTHER")).env.len(), 1);
        assert_eq!(of(SourceContent::Absent).env.len(), 1);
    }

    #[test]
    fn the_wildcard_host_feeds_its_own_variable() {
        let exposed =
            json!({"expose": {"ingress": {"host": "c.example.com", "wildcardHost": "*--apps.example.com"}}});
        let all = addresses(&plane(exposed.clone()), &SourceContents::new());
        assert_eq!(all.env[1], variable(WILDCARD_ACCESS_URL, "*--apps.example.com"));
        assert_eq!(inspected(&plane(exposed)), [ACCESS_URL, WILDCARD_ACCESS_URL]);
        assert_eq!(inspected(&plane(json!({"envUseClusterAccessURL": false}))), [""; 0]);
    }

    #[test]
    fn the_address_inside_the_cluster_spells_its_port_out() {
        let all = |spec: Value| (cluster_url(&plane(spec.clone())), http_url(&plane(spec)));
        let host = "coder.ns.svc.cluster.local";
        assert_eq!(all(json!({})), (format!("http://{host}:80"), format!("http://{host}:80")));
        let tls = json!({"tls": {"secretNames": ["s"]}, "service": {"port": 443}});
        assert_eq!(all(tls), (format!("https://{host}:443"), format!("http://{host}:80")));
        let tls = json!({"tls": {"secretNames": ["s"]}, "service": {"port": 8080}});
        assert_eq!(all(tls), (format!("https://{host}:443"), format!("http://{host}:8080")));
    }
}
