//! How a kind is reached: its Service, and an Ingress or an HTTPRoute.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    pod::yes,
    schema::{defaults, string_map},
    text::{HostName, NamespaceName, ObjectName, WildcardHost},
};

/// The Service in front of the pods.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.loadBalancerIP) || has(self.loadBalancerClass) || has(self.loadBalancerSourceRanges)) || self.type == 'LoadBalancer'")
        .message("loadBalancerIP, loadBalancerClass and loadBalancerSourceRanges need service.type LoadBalancer"),
    validation = Rule::new("!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'")
        .message("externalTrafficPolicy needs service.type NodePort or LoadBalancer"),
    validation = Rule::new("!(has(self.httpNodePort) || has(self.httpsNodePort)) || self.type != 'ClusterIP'")
        .message("httpNodePort and httpsNodePort need service.type NodePort or LoadBalancer"),
    validation = Rule::new("!has(self.httpNodePort) || !has(self.httpsNodePort) || self.httpNodePort != self.httpsNodePort")
        .message("httpNodePort and httpsNodePort must differ"),
)]
pub struct ServiceSettings {
    /// Type of the Service. Defaults to `ClusterIP`.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,
    /// HTTP port of the Service. Defaults to 80.
    #[serde(default = "service_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Annotations of the Service. Annotations that others set are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Whether connections of one client go to the same pod.
    pub session_affinity: Option<SessionAffinity>,
    /// Whether external traffic may be forwarded to pods on other nodes. Requires type `NodePort` or `LoadBalancer`.
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// IP address to request for the load balancer. Requires type `LoadBalancer`.
    #[serde(rename = "loadBalancerIP")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("isIP(self)").message("loadBalancerIP must be an IP address"))]
    pub load_balancer_ip: Option<String>,
    /// Class of the load balancer. Requires type `LoadBalancer`.
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// CIDRs of the clients that the load balancer admits. Requires type `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 64)))]
    #[x_kube(validation = Rule::new("self.all(range, isCIDR(range))")
        .message("loadBalancerSourceRanges must be CIDRs such as 10.0.0.0/8"))]
    pub load_balancer_source_ranges: Vec<String>,
    /// Node port for HTTP. Requires type `NodePort` or `LoadBalancer`.
    #[schemars(range(min = 1, max = 65535))]
    pub http_node_port: Option<i32>,
    /// Node port for HTTPS. Requires type `NodePort` or `LoadBalancer`.
    #[schemars(range(min = 1, max = 65535))]
    pub https_node_port: Option<i32>,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        defaults()
    }
}

const fn service_port() -> i32 {
    80
}

/// Type of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// Reachable inside the cluster only.
    #[default]
    ClusterIP,
    /// Also reachable on a port of every node.
    NodePort,
    /// Also reachable through a load balancer of the cloud provider.
    LoadBalancer,
}

/// Whether connections of one client go to the same pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionAffinity {
    /// Each connection may go to any pod.
    None,
    /// Connections from one client address go to the same pod.
    ClientIP,
}

/// Whether external traffic may be forwarded to pods on other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficPolicy {
    /// Traffic may go to pods on all nodes. The client address may be hidden.
    Cluster,
    /// Traffic goes only to pods on the node that received it. The client address is preserved.
    Local,
}

/// Exposure outside the cluster by an Ingress or an HTTPRoute.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.ingress) && has(self.gateway))")
    .message("only one of expose.ingress and expose.gateway may be set"))]
pub struct Expose {
    /// Whether the exposed hosts become `CODER_ACCESS_URL` and `CODER_WILDCARD_ACCESS_URL`. Values that you set
    /// yourself take precedence. Defaults to true.
    #[serde(default = "yes", rename = "setAccessURL")]
    pub set_access_url: bool,
    /// Exposure by an Ingress. Mutually exclusive with `gateway`.
    pub ingress: Option<IngressExposure>,
    /// Exposure by an HTTPRoute of the Gateway API. Mutually exclusive with `ingress`.
    pub gateway: Option<GatewayExposure>,
}

/// Exposure by an Ingress.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tls) || !has(self.tls.wildcardSecretName) || has(self.wildcardHost)")
    .message("expose.ingress.tls.wildcardSecretName needs expose.ingress.wildcardHost"))]
pub struct IngressExposure {
    /// Name of the IngressClass. Defaults to the default class of the cluster.
    pub class_name: Option<ObjectName>,
    /// Host name of Coder, such as `coder.example.com`.
    pub host: HostName,
    /// Wildcard host name of workspace applications, such as `*.coder.example.com`.
    pub wildcard_host: Option<WildcardHost>,
    /// Scheme of the access URL. Defaults to `https` if `tls.secretName` is set, else `http`.
    pub scheme: Option<Scheme>,
    /// Annotations of the Ingress. Annotations that others set are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// TLS certificates of the Ingress.
    pub tls: Option<IngressTls>,
}

/// TLS certificates of an Ingress.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressTls {
    /// Name of the Secret with the certificate for `host`.
    pub secret_name: Option<ObjectName>,
    /// Name of the Secret with the certificate for `wildcardHost`.
    pub wildcard_secret_name: Option<ObjectName>,
}

/// Exposure by an HTTPRoute of the Gateway API.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayExposure {
    /// Host name of Coder, such as `coder.example.com`.
    pub host: HostName,
    /// Wildcard host name of workspace applications, such as `*.coder.example.com`.
    pub wildcard_host: Option<WildcardHost>,
    /// Scheme of the access URL. Defaults to `https`.
    pub scheme: Option<Scheme>,
    /// Annotations of the HTTPRoute. Annotations that others set are kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Gateways that the HTTPRoute attaches to.
    #[schemars(length(min = 1, max = 32))]
    pub parent_refs: Vec<GatewayRef>,
}

/// A Gateway that an HTTPRoute attaches to.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRef {
    /// Name of the Gateway.
    pub name: ObjectName,
    /// Namespace of the Gateway, which must allow routes from this namespace. Defaults to the namespace of this
    /// object.
    pub namespace: Option<NamespaceName>,
    /// Name of a listener of the Gateway. Defaults to all listeners that match.
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
