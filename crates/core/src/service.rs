//! The Service in front of a kind's pods.

use std::collections::BTreeMap;

use coder_k8s_api::ServiceSettings;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::core::ObjectMeta;

use crate::pod::{some, some_map, wire_text};

/// Port on which coderd serves HTTP.
pub const HTTP: i32 = 8080;
/// Port on which the pods serve HTTPS.
pub const HTTPS: i32 = 8443;

/// Port of the Service for HTTP, which routes and the operator itself use. 443 is HTTPS as soon as there is a certificate.
pub fn http_port(settings: &ServiceSettings, tls: bool) -> i32 {
    if tls && settings.port == 443 { 80 } else { settings.port }
}

/// The Service, to the port on which the pods serve HTTP, and with TLS to that of HTTPS.
pub fn service(
    name: &str,
    settings: &ServiceSettings,
    http: i32,
    tls: bool,
    selector: &BTreeMap<String, String>,
) -> Service {
    let ServiceSettings {
        type_,
        port: _,
        annotations,
        session_affinity,
        external_traffic_policy,
        load_balancer_ip,
        load_balancer_class,
        load_balancer_source_ranges,
        http_node_port,
        https_node_port,
    } = settings;
    let http = port("http", http_port(settings, tls), http, *http_node_port);
    let https = port("https", 443, HTTPS, *https_node_port);
    let ports = match (tls, settings.port) {
        (false, _) => vec![http],
        (true, 443) => vec![https, http],
        (true, _) => vec![http, https],
    };
    let spec = ServiceSpec {
        type_: wire_text(type_),
        selector: Some(selector.clone()),
        ports: Some(ports),
        session_affinity: session_affinity.and_then(wire_text),
        external_traffic_policy: external_traffic_policy.and_then(wire_text),
        load_balancer_ip: load_balancer_ip.clone(),
        load_balancer_class: load_balancer_class.clone(),
        load_balancer_source_ranges: some(load_balancer_source_ranges.clone()),
        ..ServiceSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        annotations: some_map(annotations),
        ..ObjectMeta::default()
    };
    Service { metadata, spec: Some(spec), status: None }
}

/// Whether the cluster gives its pods IPv6 addresses first, as its Services show.
pub fn is_ipv6(service: &Service) -> bool {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref());
    families.and_then(|families| families.first()).is_some_and(|family| family == "IPv6")
}

fn port(name: &str, number: i32, target: i32, node_port: Option<i32>) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::Int(target)),
        protocol: Some("TCP".to_owned()),
        node_port,
        ..ServicePort::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(port: i32, tls: bool) -> Vec<(String, i32, i32)> {
        let settings = ServiceSettings { port, ..ServiceSettings::default() };
        let made = service("coder", &settings, HTTP, tls, &BTreeMap::new());
        let number = |target: Option<IntOrString>| match target {
            Some(IntOrString::Int(number)) => number,
            _ => 0,
        };
        let ports = made.spec.unwrap().ports.unwrap();
        ports.into_iter().map(|p| (p.name.unwrap(), p.port, number(p.target_port))).collect()
    }

    #[test]
    fn ports_follow_the_table() {
        let http = |port| ("http".to_owned(), port, 8080);
        let https = || ("https".to_owned(), 443, 8443);
        assert_eq!(ports(8080, false), [http(8080)]);
        assert_eq!(ports(443, false), [http(443)]);
        assert_eq!(ports(80, true), [http(80), https()]);
        assert_eq!(ports(443, true), [https(), http(80)]);
    }

    #[test]
    fn the_family_of_the_service_is_that_of_the_pods() {
        let with = |families: &[&str]| Service {
            spec: Some(ServiceSpec {
                ip_families: Some(families.iter().map(|f| (*f).to_owned()).collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        assert!(is_ipv6(&with(&["IPv6"])));
        assert!(!is_ipv6(&with(&["IPv4", "IPv6"])));
        assert!(!is_ipv6(&Service::default()));
    }
}
