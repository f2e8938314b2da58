//! How a kind is reached: its Service, an Ingress or a Gateway route.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    pod::yes,
    schema::string_map,
    text::{HostName, NamespaceName, ObjectName, WildcardHost},
};

/// The Service in front of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type == 'LoadBalancer' || !(has(self.loadBalancerIP) || has(self.loadBalancerClass) || has(self.loadBalancerSourceRanges))")
        .message("loadBalancerIP, loadBalancerClass and loadBalancerSourceRanges need service.type LoadBalancer"),
    validation = Rule::new("self.type != 'ClusterIP' || !has(self.externalTrafficPolicy)")
        .message("externalTrafficPolicy needs service.type NodePort or LoadBalancer"),
    validation = Rule::new("self.type != 'ClusterIP' || !(has(self.httpNodePort) || has(self.httpsNodePort))")
        .message("httpNodePort and httpsNodePort need service.type NodePort or LoadBalancer"),
    validation = Rule::new("!has(self.httpNodePort) || !has(self.httpsNodePort) || self.httpNodePort != self.httpsNodePort")
        .message("httpNodePort and httpsNodePort must differ"),
)]
pub struct ServiceSettings {
    /// Type of the Service.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,
    /// Port of the Service.
    #[serde(default = "service_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Annotations of the Service, besides those that others put there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Whether a client keeps to one pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<SessionAffinity>,
    /// Whether traffic from outside may cross nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// Address that the load balancer is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "loadBalancerIP")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("isIP(self)").message("loadBalancerIP must be an IP address"))]
    pub load_balancer_ip: Option<String>,
    /// Class of the load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// Client addresses that the load balancer admits, as CIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 64)))]
    #[x_kube(validation = Rule::new("self.all(range, isCIDR(range))")
        .message("loadBalancerSourceRanges must be CIDRs such as 10.0.0.0/8"))]
    pub load_balancer_source_ranges: Vec<String>,
    /// Port on every node for HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub http_node_port: Option<i32>,
    /// Port on every node for HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub https_node_port: Option<i32>,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        Self {
            type_: ServiceType::default(),
            port: service_port(),
            annotations: BTreeMap::new(),
            session_affinity: None,
            external_traffic_policy: None,
            load_balancer_ip: None,
            load_balancer_class: None,
            load_balancer_source_ranges: Vec::new(),
            http_node_port: None,
            https_node_port: None,
        }
    }
}

const fn service_port() -> i32 {
    80
}

/// Type of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    #[default]
    ClusterIP,
    /// Also on a port of every node.
    NodePort,
    /// Also through a load balancer.
    LoadBalancer,
}

/// Whether a client keeps to one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionAffinity {
    /// Any pod.
    None,
    /// The same pod for the same client address.
    ClientIP,
}

/// Whether traffic from outside may cross nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficPolicy {
    /// It may.
    Cluster,
    /// Only pods of the node that received it.
    Local,
}

/// Exposure to the outside: an Ingress or a Gateway route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.ingress) && has(self.gateway))")
    .message("only one of expose.ingress and expose.gateway may be set"))]
pub struct Expose {
    /// Whether the exposed hosts become the access URL and the wildcard access URL, unless those are set.
    #[serde(default = "yes", rename = "setAccessURL")]
    pub set_access_url: bool,
    /// An Ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressExposure>,
    /// An HTTPRoute of the Gateway API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayExposure>,
}

/// Exposure by an Ingress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tls) || !has(self.tls.wildcardSecretName) || has(self.wildcardHost)")
    .message("expose.ingress.tls.wildcardSecretName needs expose.ingress.wildcardHost"))]
pub struct IngressExposure {
    /// Ingress class. Unset: the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<ObjectName>,
    /// Host of Coder.
    pub host: HostName,
    /// Host of workspace applications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wildcard_host: Option<WildcardHost>,
    /// Scheme of the access URL. Unset: https if `tls.secretName` is set, else http.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Annotations of the Ingress, besides those that others put there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// TLS of the Ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<IngressTls>,
}

/// TLS of an Ingress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressTls {
    /// Certificate Secret for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<ObjectName>,
    /// Certificate Secret for the wildcard host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wildcard_secret_name: Option<ObjectName>,
}

/// Exposure by a route of the Gateway API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayExposure {
    /// Host of Coder.
    pub host: HostName,
    /// Host of workspace applications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wildcard_host: Option<WildcardHost>,
    /// Scheme of the access URL. Unset: https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Annotations of the HTTPRoute, besides those that others put there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Gateways to attach to.
    #[schemars(length(min = 1, max = 32))]
    pub parent_refs: Vec<GatewayRef>,
}

/// A Gateway to attach to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRef {
    /// Name of the Gateway.
    pub name: ObjectName,
    /// Its namespace. Unset: the object's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NamespaceName>,
    /// Listener of the Gateway. Unset: all that fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<ObjectName>,
}

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}
