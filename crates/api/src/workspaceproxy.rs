//! `CoderWorkspaceProxy`: a workspace proxy, registered in coderd.
//!
//! The status is the record of the registration protocol: `pendingRegistration` is written before coderd is asked to
//! register or to issue a token, so that a restart at any point ends with one registration and a token that works.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    condition::WorkloadStatus,
    controlplane::{Tls, cluster_domain, default_replicas, liveness_probe, readiness_probe},
    network::{Expose, ServiceSettings},
    pod::{DisruptionBudget, FieldRule, PodSettings, Probe, Prometheus, ServiceAccountSettings},
    provisioner::CredentialsSource,
    refs::{ControlPlaneRef, ReportedSecretRef, SecretKeyRef},
    text::{ClusterDomain, HttpUrl, ImageRef, Line, ObjectName, ProxyName, WildcardAccess},
};

/// Rules about fields of [`PodSettings`] that hold for this kind alone.
pub(crate) const FIELD_RULES: &[FieldRule] = &[FieldRule {
    field: "initContainers",
    rule: "!self.exists(init, init.name == 'workspace-proxy')",
    message: "an init container must not be called workspace-proxy: that is the name of the main container",
}];

/// Desired state of a workspace proxy.
#[skip_serializing_none]
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
    printcolumn(name = "Health", type_ = "string", json_path = r#".status.conditions[?(@.type=="Healthy")].reason"#),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.accessURL"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas", priority = 1),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas", priority = 1),
    printcolumn(name = "Registered", type_ = "boolean", json_path = ".status.registered", priority = 1),
    printcolumn(name = "Proxy", type_ = "string", json_path = ".status.proxyName", priority = 1),
    printcolumn(name = "Control Plane", type_ = "string", json_path = ".spec.controlPlaneRef.name", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = 1),
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
    validation = Rule::new("!has(self.minReadySeconds) || (has(self.progressDeadlineSeconds) ? self.progressDeadlineSeconds : 600) > self.minReadySeconds")
        .message("progressDeadlineSeconds must be greater than minReadySeconds"),
)]
pub struct CoderWorkspaceProxySpec {
    /// CoderControlPlane that the operator registers the proxy in, with its own token. The recommended way.
    pub control_plane_ref: Option<ControlPlaneRef>,

    /// How the proxy appears in coderd. Only with `controlPlaneRef`.
    pub registration: Option<Registration>,

    /// Registration in a coderd at a given URL, with credentials from a Secret.
    pub bootstrap: Option<ProxyBootstrap>,

    /// Secret with a proxy token that a person supplies. The operator then registers nothing. `key` defaults to
    /// `token`.
    pub proxy_session_token_secret_ref: Option<SecretKeyRef>,

    /// URL of the coderd that the proxy connects to. Defaults to the coderd that holds the registration.
    #[serde(rename = "primaryAccessURL")]
    pub primary_access_url: Option<HttpUrl>,

    /// URL at which browsers and coderd reach the proxy. Defaults to the exposed host, else to the Service.
    #[serde(rename = "accessURL")]
    pub access_url: Option<HttpUrl>,

    /// Wildcard host of workspace applications behind the proxy. Defaults to the exposed wildcard host.
    #[serde(rename = "wildcardAccessURL")]
    pub wildcard_access_url: Option<WildcardAccess>,

    /// Whether the proxy only relays connections between clients and workspaces. Defaults to false.
    #[serde(default)]
    pub derp_only: bool,

    /// Image of the proxy. Defaults to the image that the control plane has rolled out.
    pub image: Option<ImageRef>,

    /// Number of pods. Defaults to 1.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// The Service in front of the proxy.
    #[serde(default)]
    pub service: ServiceSettings,

    /// Exposure outside the cluster.
    pub expose: Option<Expose>,

    /// The ServiceAccount of the proxy.
    #[serde(default)]
    pub service_account: ServiceAccountSettings,

    /// TLS certificates of the proxy itself.
    #[serde(default, skip_serializing_if = "Tls::is_empty")]
    pub tls: Tls,

    /// Readiness probe of the proxy. Enabled by default.
    #[serde(default = "readiness_probe")]
    pub readiness_probe: Probe,

    /// Liveness probe of the proxy. Disabled by default.
    #[serde(default = "liveness_probe")]
    #[x_kube(validation = Rule::new("!has(self.successThreshold) || self.successThreshold == 1")
        .message("livenessProbe.successThreshold must be 1: Kubernetes allows no other value"))]
    pub liveness_probe: Probe,

    /// The PodDisruptionBudget of the pods.
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Metrics of the proxy.
    #[serde(default)]
    pub prometheus: Prometheus,

    /// DNS domain of the cluster. Defaults to `cluster.local`.
    #[serde(default = "cluster_domain")]
    pub cluster_domain: ClusterDomain,

    /// Settings of the pods.
    #[serde(flatten)]
    pub pod: PodSettings,
}

/// How a proxy appears in coderd.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// Name of the proxy in coderd. Defaults to the name of the object.
    pub proxy_name: Option<ProxyName>,
    /// Name that coderd shows to people. Defaults to `proxyName`.
    pub display_name: Option<Line>,
    /// Icon that coderd shows to people: a URL or a path such as `/emojis/1f310.png`.
    pub icon: Option<Line>,
    /// Name of the Secret that the operator stores the token of the proxy in. Defaults to a name derived from that of
    /// the object.
    pub generated_token_secret_name: Option<ObjectName>,
}

/// Registration in a coderd at a given URL.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyBootstrap {
    /// URL of coderd. It must be the Service of a control plane in this namespace, or the operator must allow it with
    /// `--allowed-coder-urls`.
    #[serde(rename = "coderURL")]
    pub coder_url: HttpUrl,
    /// Secret with a session token of a user who may register proxies. `key` defaults to `token`.
    pub credentials_secret_ref: SecretKeyRef,
    /// Secret with the CA that signed the certificate of coderd. `key` defaults to `ca.crt`.
    pub ca_secret_ref: Option<SecretKeyRef>,
    /// How the proxy appears in coderd.
    #[serde(flatten)]
    pub registration: Registration,
}

/// Observed state of a workspace proxy.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoderWorkspaceProxyStatus {
    /// The fields that all kinds share.
    #[serde(flatten)]
    pub workload: WorkloadStatus,
    /// Whether the operator has registered the proxy and the Secret holds its token.
    pub registered: Option<bool>,
    /// Secret with the token of the proxy.
    pub proxy_token_secret_ref: Option<ReportedSecretRef>,
    /// UUID of the registration.
    #[serde(rename = "proxyID")]
    pub proxy_id: Option<String>,
    /// Name of the registration.
    pub proxy_name: Option<String>,
    /// URL of the coderd that holds the registration.
    #[serde(rename = "coderURL")]
    pub coder_url: Option<String>,
    /// UUID of the coderd deployment that holds the registration.
    #[serde(rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// URL at which browsers and coderd reach the proxy.
    #[serde(rename = "accessURL")]
    pub access_url: Option<String>,
    /// Health that coderd reports: `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    pub health: Option<String>,
    /// When this health and version were first read. Later reads of the same values do not change it.
    pub health_last_checked: Option<Time>,
    /// Version that the proxy reports to coderd.
    pub version: Option<String>,
    /// Name of the control plane that holds the registration.
    pub control_plane_ref_name: Option<String>,
    /// Credentials that the registration was created with.
    pub credentials_source: Option<CredentialsSource>,
    /// The registration, or the token of it, that is being created. Recorded before coderd is asked.
    pub pending_registration: Option<PendingRegistration>,
    /// Replaced registrations that are still to be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_registrations: Vec<PendingRegistration>,
}

/// A registration that is being created, is getting another token, or is still to be deleted.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRegistration {
    /// Name of the registration.
    pub name: String,
    /// UUID of the registration, after it is created.
    pub id: Option<String>,
    /// Name of the control plane that the registration belongs to.
    pub control_plane_ref_name: Option<String>,
    /// URL of the coderd that the registration belongs to.
    #[serde(rename = "coderURL")]
    pub coder_url: Option<String>,
    /// UUID of the coderd deployment that the registration belongs to.
    #[serde(rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Credentials that can change or delete the registration.
    pub credentials_source: Option<CredentialsSource>,
    /// Why the registration or token is created, such as `TokenLost`.
    pub reason: Option<String>,
    /// When the operator decided to create or delete it.
    pub since: Option<Time>,
}
