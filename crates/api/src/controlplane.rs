//! `CoderControlPlane`: a Coder server, its identity, license and exposure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{
    network::{Expose, ServiceSettings},
    pod::{DisruptionBudget, PodSettings, Probe, Prometheus, ServiceAccountSettings, yes},
    rbac::WorkspaceRbac,
    refs::{ReportedSecretRef, SecretKeyRef, SecretRef},
    status::WorkloadStatus,
    text::{ClusterDomain, HttpUrl, ImageRef, ObjectName},
};

/// The image that runs when nobody names one.
pub const DEFAULT_IMAGE: &str = "ghcr.io/coder/coder:latest";

/// Desired state of a Coder server.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "coder.com",
    version = "v1alpha1",
    kind = "CoderControlPlane",
    plural = "codercontrolplanes",
    singular = "codercontrolplane",
    shortname = "ccp",
    category = "coder",
    namespaced,
    status = "CoderControlPlaneStatus",
    derive = "PartialEq",
    doc = "A Coder server: coderd with its Service, identity, license and exposure.",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.accessURL"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "License", type_ = "string", json_path = ".status.licenseTier"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("the name becomes the name of a Service: at most 63 lower-case letters, digits and '-', starting with a letter")
        .optional_old_self(true),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.livenessProbe.successThreshold) || self.livenessProbe.successThreshold == 1")
        .message("livenessProbe.successThreshold must be 1: Kubernetes allows no other value"),
    validation = Rule::new("!has(self.initContainers) || !self.initContainers.exists(init, init.name == 'coder')")
        .message("an init container must not be called coder: that is the name of the main container"),
    validation = Rule::new("!has(self.minReadySeconds) || self.progressDeadlineSeconds > self.minReadySeconds")
        .message("progressDeadlineSeconds must be greater than minReadySeconds"),
    validation = Rule::new("!has(self.license) || !self.license.removeReplaced || has(self.licenseSecretRef)")
        .message("license.removeReplaced needs licenseSecretRef"),
)]
pub struct CoderControlPlaneSpec {
    /// Image of coderd.
    #[serde(default = "default_image")]
    pub image: ImageRef,

    /// How many pods run. More than one needs a license for high availability.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Who scales the Deployment: the operator by `replicas`, or somebody else, whom the operator leaves alone.
    #[serde(default)]
    pub scaling: Scaling,

    /// The Service in front of coderd.
    #[serde(default)]
    pub service: ServiceSettings,

    /// The operator's own access to coderd.
    #[serde(default)]
    pub operator_access: OperatorAccess,

    /// Secret that holds the license. Key: `license` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license_secret_ref: Option<SecretKeyRef>,

    /// What happens around the license.
    #[serde(default)]
    pub license: LicenseSettings,

    /// The ServiceAccount of coderd.
    #[serde(default)]
    pub service_account: ServiceAccountSettings,

    /// What coderd may do in Kubernetes for workspaces.
    #[serde(default)]
    pub rbac: WorkspaceRbac,

    /// TLS of coderd itself.
    #[serde(default, skip_serializing_if = "Tls::is_empty")]
    pub tls: Tls,

    /// Readiness probe; on unless disabled.
    #[serde(default = "readiness_probe")]
    pub readiness_probe: Probe,

    /// Liveness probe; off unless enabled, because database migrations may take long.
    #[serde(default = "liveness_probe")]
    pub liveness_probe: Probe,

    /// Whether coderd gets its in-cluster address as access URL when nothing else sets one.
    #[serde(default = "yes", rename = "envUseClusterAccessURL")]
    pub env_use_cluster_access_url: bool,

    /// Exposure to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose: Option<Expose>,

    /// How many pods may be disrupted at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Metrics of coderd.
    #[serde(default)]
    pub prometheus: Prometheus,

    /// DNS domain of the cluster.
    #[serde(default = "cluster_domain")]
    pub cluster_domain: ClusterDomain,

    /// Settings of the pods.
    #[serde(flatten)]
    pub pod: PodSettings,
}

impl Default for CoderControlPlaneSpec {
    fn default() -> Self {
        Self {
            image: default_image(),
            replicas: default_replicas(),
            scaling: Scaling::default(),
            service: ServiceSettings::default(),
            operator_access: OperatorAccess::default(),
            license_secret_ref: None,
            license: LicenseSettings::default(),
            service_account: ServiceAccountSettings::default(),
            rbac: WorkspaceRbac::default(),
            tls: Tls::default(),
            readiness_probe: readiness_probe(),
            liveness_probe: liveness_probe(),
            env_use_cluster_access_url: yes(),
            expose: None,
            pod_disruption_budget: None,
            prometheus: Prometheus::default(),
            cluster_domain: cluster_domain(),
            pod: PodSettings::default(),
        }
    }
}

/// Who scales the Deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Scaling {
    /// The operator, by `spec.replicas`.
    #[default]
    Managed,
    /// Somebody else; the operator writes no replicas.
    External,
}

/// TLS of coderd itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Certificate Secrets. Any makes coderd serve HTTPS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub secret_names: Vec<ObjectName>,
}

impl Tls {
    pub(crate) fn is_empty(&self) -> bool {
        self.secret_names.is_empty()
    }
}

/// The operator's own access to coderd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.disabled || self.method != 'TokenSecret' || has(self.tokenSecretRef)")
        .message("operatorAccess.method TokenSecret needs operatorAccess.tokenSecretRef"),
    validation = Rule::new("self.disabled || self.method != 'FirstUser' || has(self.firstUserSecretRef)")
        .message("operatorAccess.method FirstUser needs operatorAccess.firstUserSecretRef"),
    validation = Rule::new("!has(self.tokenSecretRef) || self.method == 'TokenSecret'")
        .message("operatorAccess.tokenSecretRef is used with method TokenSecret only"),
    validation = Rule::new("!has(self.firstUserSecretRef) || self.method == 'FirstUser'")
        .message("operatorAccess.firstUserSecretRef is used with method FirstUser only"),
)]
pub struct OperatorAccess {
    /// Give the access up: the token is revoked and its Secret removed.
    #[serde(default)]
    pub disabled: bool,

    /// How the operator gets its identity.
    #[serde(default)]
    pub method: AccessMethod,

    /// Name of the Secret for the operator's token. Unset: derived from the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated_token_secret_name: Option<ObjectName>,

    /// With `TokenSecret`: the token. Key: `token` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,

    /// With `FirstUser`: a Secret with `username`, `email` and `password` of the first administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_user_secret_ref: Option<SecretRef>,

    /// Address at which the operator calls coderd. Unset: the Service.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "apiURL")]
    pub api_url: Option<HttpUrl>,

    /// CA that signed coderd's certificate; the operator then calls it by https. Key: `ca.crt` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeyRef>,

    /// With `Postgres`: CA that signed the certificate of the database. Key: `ca.crt` when unset. File paths in the
    /// database URL mean nothing to the operator and are refused.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "databaseCASecretRef")]
    pub database_ca_secret_ref: Option<SecretKeyRef>,

    /// Days that a generated token lives. It is replaced after two thirds of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3650))]
    pub token_lifetime_days: Option<i32>,
}

/// How the operator gets its identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMethod {
    /// Through coderd's database, whose URL the pods have.
    #[default]
    Postgres,
    /// A token that a person supplies.
    TokenSecret,
    /// As the first administrator of a fresh deployment.
    FirstUser,
}

/// What happens around the license.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LicenseSettings {
    /// Whether a license that the operator applied is removed once its successor is accepted.
    #[serde(default)]
    pub remove_replaced: bool,
}

/// Observed state of a Coder server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoderControlPlaneStatus {
    /// What all kinds say.
    #[serde(flatten)]
    pub workload: WorkloadStatus,
    /// Address inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Address for people.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "accessURL")]
    pub access_url: Option<String>,
    /// Version that coderd reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Identity of the deployment that coderd reports.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Secret of the operator's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_token_secret_ref: Option<ReportedSecretRef>,
    /// The operator's own token, while there is one in coderd, or one is about to be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_token: Option<OperatorTokenStatus>,
    /// Whether the operator's access works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_access_ready: Option<bool>,
    /// When the license was last accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license_last_applied: Option<Time>,
    /// SHA-256 of the license last accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license_last_applied_hash: Option<String>,
    /// `none`, `trial`, `enterprise`, `premium` or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license_tier: Option<String>,
    /// The license in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<LicenseStatus>,
    /// What the license allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitlements: Option<EntitlementsStatus>,
    /// When the entitlements were last read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitlements_last_checked: Option<Time>,
    /// `entitled`, `grace_period`, `not_entitled` or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_provisioner_daemons_entitlement: Option<String>,
}

/// A token that the operator made, or is about to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorTokenStatus {
    /// How it came, and so how it is given back.
    #[serde(default)]
    pub method: AccessMethod,
    /// Whose it is in coderd.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "userID")]
    pub user_id: Option<String>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// When it is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_after: Option<Time>,
    /// A token that came another way and is still to be given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<ReplacedToken>,
}

/// A token that came another way and is still to be given back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedToken {
    /// How it came, and so how it is given back.
    #[serde(default)]
    pub method: AccessMethod,
    /// Whose it is in coderd.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "userID")]
    pub user_id: Option<String>,
}

/// The license in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LicenseStatus {
    /// Its number in coderd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    /// Its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The account that it was issued to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Its tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Whole days until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days_left: Option<i64>,
    /// The value and server version that did not go together: not sent again until one of them changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// UUID of the license that it replaces and that is still to be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// What the license allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntitlementsStatus {
    /// Whether coderd holds a valid license.
    #[serde(default)]
    pub has_license: bool,
    /// Whether that license is a trial.
    #[serde(default)]
    pub trial: bool,
    /// `entitled` or `grace_period` for each feature that is not `not_entitled`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, String>,
    /// What coderd warns about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What coderd calls an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

fn default_image() -> ImageRef {
    ImageRef::from(DEFAULT_IMAGE)
}

pub(crate) const fn default_replicas() -> i32 {
    1
}

pub(crate) fn readiness_probe() -> Probe {
    Probe::enabled(true)
}

pub(crate) fn liveness_probe() -> Probe {
    Probe::enabled(false)
}

pub(crate) fn cluster_domain() -> ClusterDomain {
    ClusterDomain::from("cluster.local")
}
