//! `CoderWorkspaceProxy`: a workspace proxy, registered in coderd.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    controlplane::{Tls, cluster_domain, default_replicas, liveness_probe, readiness_probe},
    network::{Expose, ServiceSettings},
    pod::{DisruptionBudget, PodSettings, Probe, Prometheus, ServiceAccountSettings},
    provisioner::CredentialsSource,
    refs::{ControlPlaneRef, ReportedSecretRef, SecretKeyRef},
    status::WorkloadStatus,
    text::{ClusterDomain, HttpUrl, ImageRef, Line, ObjectName, ProxyName, WildcardAccess},
};

/// Desired state of a workspace proxy.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "coder.com",
    version = "v1alpha1",
    kind = "CoderWorkspaceProxy",
    plural = "coderworkspaceproxies",
    singular = "coderworkspaceproxy",
    shortname = "cwp",
    category = "coder",
    namespaced,
    status = "CoderWorkspaceProxyStatus",
    derive = "PartialEq",
    doc = "A workspace proxy, registered in coderd.",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Registered", type_ = "boolean", json_path = ".status.registered"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Health", type_ = "string", json_path = ".status.health"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version", priority = 1),
    printcolumn(name = "Proxy", type_ = "string", json_path = ".status.proxyName", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || !self.metadata.name.contains('.')")
        .message("the name becomes part of the name of a Service and must not contain '.'")
        .optional_old_self(true),
    validation = Rule::new("oldSelf.hasValue() || self.metadata.name != 'primary' || has(self.spec.proxySessionTokenSecretRef) || (has(self.spec.bootstrap) && has(self.spec.bootstrap.proxyName)) || (has(self.spec.registration) && has(self.spec.registration.proxyName))")
        .message("'primary' is coderd itself: give the proxy another name, or set proxyName")
        .optional_old_self(true),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.controlPlaneRef) || has(self.bootstrap) || has(self.proxySessionTokenSecretRef)")
        .message("the proxy has no way to its token: set one of controlPlaneRef, bootstrap or proxySessionTokenSecretRef"),
    validation = Rule::new("[has(self.controlPlaneRef), has(self.bootstrap), has(self.proxySessionTokenSecretRef)].filter(way, way).size() < 2")
        .message("the proxy has more than one way to its token: set only one of controlPlaneRef, bootstrap and proxySessionTokenSecretRef"),
    validation = Rule::new("!has(self.proxySessionTokenSecretRef) || has(self.primaryAccessURL)")
        .message("proxySessionTokenSecretRef needs primaryAccessURL: the address of the Coder server that issued the token"),
    validation = Rule::new("!has(self.registration) || has(self.controlPlaneRef)")
        .message("registration is used with controlPlaneRef only; bootstrap has fields of its own for the name, display name and icon"),
    validation = Rule::new("!has(self.livenessProbe.successThreshold) || self.livenessProbe.successThreshold == 1")
        .message("livenessProbe.successThreshold must be 1: Kubernetes allows no other value"),
    validation = Rule::new("!has(self.initContainers) || !self.initContainers.exists(init, init.name == 'workspace-proxy')")
        .message("an init container must not be called workspace-proxy: that is the name of the main container"),
    validation = Rule::new("!has(self.minReadySeconds) || self.progressDeadlineSeconds > self.minReadySeconds")
        .message("progressDeadlineSeconds must be greater than minReadySeconds"),
)]
pub struct CoderWorkspaceProxySpec {
    /// The CoderControlPlane that the proxy is registered in, with the operator's own token. The recommended way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref: Option<ControlPlaneRef>,

    /// With `controlPlaneRef`: how the proxy appears in coderd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<Registration>,

    /// Registration in a coderd that is named by its URL, with credentials from a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<ProxyBootstrap>,

    /// A proxy token that a person supplies. Key: `token` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_session_token_secret_ref: Option<SecretKeyRef>,

    /// Address of the Coder server that the proxy connects to. Unset: that of the registration.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "primaryAccessURL")]
    pub primary_access_url: Option<HttpUrl>,

    /// The proxy's own address for people. Unset: from the exposure.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "accessURL")]
    pub access_url: Option<HttpUrl>,

    /// The proxy's own wildcard for workspace applications. Unset: from the exposure.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "wildcardAccessURL")]
    pub wildcard_access_url: Option<WildcardAccess>,

    /// Whether the proxy only relays connections.
    #[serde(default)]
    pub derp_only: bool,

    /// Image of the proxy. Unset: the image that the control plane has rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,

    /// How many pods run.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// The Service in front of the proxy.
    #[serde(default)]
    pub service: ServiceSettings,

    /// Exposure to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose: Option<Expose>,

    /// The ServiceAccount of the proxy.
    #[serde(default)]
    pub service_account: ServiceAccountSettings,

    /// TLS of the proxy itself.
    #[serde(default, skip_serializing_if = "Tls::is_empty")]
    pub tls: Tls,

    /// Readiness probe; on unless disabled.
    #[serde(default = "readiness_probe")]
    pub readiness_probe: Probe,

    /// Liveness probe; off unless enabled.
    #[serde(default = "liveness_probe")]
    pub liveness_probe: Probe,

    /// How many pods may be disrupted at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Metrics of the proxy.
    #[serde(default)]
    pub prometheus: Prometheus,

    /// DNS domain of the cluster.
    #[serde(default = "cluster_domain")]
    pub cluster_domain: ClusterDomain,

    /// Settings of the pods.
    #[serde(flatten)]
    pub pod: PodSettings,
}

/// How a proxy appears in coderd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// Name in coderd. Unset: the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_name: Option<ProxyName>,
    /// Name that people see. Unset: the name in coderd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<Line>,
    /// Icon that people see: a URL or a path such as `/emojis/1f310.png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icon: Option<Line>,
    /// Name of the Secret for the proxy's token. Unset: derived from the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated_token_secret_name: Option<ObjectName>,
}

/// Registration in a coderd that is named by its URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyBootstrap {
    /// Address of coderd. It must belong to a control plane of this namespace or be allowed by the operator's flags.
    #[serde(rename = "coderURL")]
    pub coder_url: HttpUrl,
    /// Secret with a session token that may register proxies. Key: `token` when unset.
    pub credentials_secret_ref: SecretKeyRef,
    /// CA that signed coderd's certificate. Key: `ca.crt` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeyRef>,
    /// How the proxy appears in coderd.
    #[serde(flatten)]
    pub registration: Registration,
}

/// Observed state of a workspace proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoderWorkspaceProxyStatus {
    /// What all kinds say.
    #[serde(flatten)]
    pub workload: WorkloadStatus,
    /// Whether the operator registered the proxy and has its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<bool>,
    /// Secret of the proxy's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_token_secret_ref: Option<ReportedSecretRef>,
    /// The registration, by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "proxyID")]
    pub proxy_id: Option<String>,
    /// The registration, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_name: Option<String>,
    /// Address of the coderd that holds the registration.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "coderURL")]
    pub coder_url: Option<String>,
    /// Deployment that holds the registration.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// The proxy's own address for people.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "accessURL")]
    pub access_url: Option<String>,
    /// Health that coderd reports: `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// When this health was first read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_last_checked: Option<Time>,
    /// Version that the proxy reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Control plane that holds the registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref_name: Option<String>,
    /// Credentials that the registration was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_source: Option<CredentialsSource>,
    /// A registration, or a token of one, that is being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_registration: Option<PendingRegistration>,
    /// Registrations that are no longer wanted and not yet deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_registrations: Vec<PendingRegistration>,
}

/// A registration that is being made, is given another token, or is to go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRegistration {
    /// Its name.
    pub name: String,
    /// Its UUID, if it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Control plane that leads to its coderd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref_name: Option<String>,
    /// Address of its coderd.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "coderURL")]
    pub coder_url: Option<String>,
    /// Deployment that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Credentials that can change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_source: Option<CredentialsSource>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
