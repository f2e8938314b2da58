//! `CoderControlPlane`: a Coder server with its operator access, license and exposure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

use crate::{
    access::WorkspaceRbac,
    condition::WorkloadStatus,
    network::{Expose, ServiceSettings},
    pod::{DisruptionBudget, FieldRule, PodSettings, Probe, Prometheus, ServiceAccountSettings, yes},
    refs::{ReportedSecretRef, SecretKeyRef, SecretRef},
    schema::defaults,
    text::{ClusterDomain, HttpUrl, ImageRef, ObjectName},
};

/// Rules about fields of [`PodSettings`] that hold for this kind alone.
pub(crate) const FIELD_RULES: &[FieldRule] = &[FieldRule {
    field: "initContainers",
    rule: "!self.exists(init, init.name == 'coder')",
    message: "an init container must not be called coder: that is the name of the main container",
}];

/// The image of a control plane that names none.
pub const DEFAULT_IMAGE: &str = "ghcr.io/coder/coder:latest";

/// Desired state of a Coder server.
#[skip_serializing_none]
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
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "License", type_ = "string", json_path = ".status.licenseSummary"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.accessURL"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas", priority = 1),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = 1),
    validation = Rule::new("oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("the name becomes the name of a Service: at most 63 lower-case letters, digits and '-', starting with a letter")
        .optional_old_self(true),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReadySeconds) || (has(self.progressDeadlineSeconds) ? self.progressDeadlineSeconds : 600) > self.minReadySeconds")
        .message("progressDeadlineSeconds must be greater than minReadySeconds"),
    validation = Rule::new("!has(self.license) || !has(self.license.removeReplaced) || !self.license.removeReplaced || has(self.licenseSecretRef)")
        .message("license.removeReplaced needs licenseSecretRef"),
)]
pub struct CoderControlPlaneSpec {
    /// Image of coderd. Defaults to `ghcr.io/coder/coder:latest`; name a release in production.
    #[serde(default = "default_image")]
    pub image: ImageRef,

    /// Number of pods. More than one requires a license for high availability. Defaults to 1.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Who scales the Deployment. Defaults to `Managed`.
    #[serde(default)]
    pub scaling: Scaling,

    /// The Service in front of coderd.
    #[serde(default)]
    pub service: ServiceSettings,

    /// How the operator gets its own access to coderd.
    #[serde(default)]
    pub operator_access: OperatorAccess,

    /// Secret with the license. `key` defaults to `license`.
    pub license_secret_ref: Option<SecretKeyRef>,

    /// How the operator handles licenses.
    #[serde(default)]
    pub license: LicenseSettings,

    /// The ServiceAccount of coderd.
    #[serde(default)]
    pub service_account: ServiceAccountSettings,

    /// Permissions of coderd to run workspaces in Kubernetes.
    #[serde(default)]
    pub rbac: WorkspaceRbac,

    /// TLS certificates of coderd itself.
    #[serde(default, skip_serializing_if = "Tls::is_empty")]
    pub tls: Tls,

    /// Readiness probe of coderd. Enabled by default.
    #[serde(default = "readiness_probe")]
    pub readiness_probe: Probe,

    /// Liveness probe of coderd. Disabled by default, because it would kill a pod during a long database migration.
    #[serde(default = "liveness_probe")]
    #[x_kube(validation = Rule::new("!has(self.successThreshold) || self.successThreshold == 1")
        .message("livenessProbe.successThreshold must be 1: Kubernetes allows no other value"))]
    pub liveness_probe: Probe,

    /// Whether `CODER_ACCESS_URL` is the address of the Service when neither the environment nor `expose` sets it.
    /// Defaults to true.
    #[serde(default = "yes", rename = "envUseClusterAccessURL")]
    pub env_use_cluster_access_url: bool,

    /// Exposure outside the cluster.
    pub expose: Option<Expose>,

    /// The PodDisruptionBudget of the pods. By default, there is one if there is more than one replica.
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Metrics of coderd.
    #[serde(default)]
    pub prometheus: Prometheus,

    /// DNS domain of the cluster. Defaults to `cluster.local`.
    #[serde(default = "cluster_domain")]
    pub cluster_domain: ClusterDomain,

    /// Settings of the pods.
    #[serde(flatten)]
    pub pod: PodSettings,
}

impl Default for CoderControlPlaneSpec {
    fn default() -> Self {
        defaults()
    }
}

/// Who scales the Deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Scaling {
    /// The operator sets the number of replicas from `spec.replicas`.
    #[default]
    Managed,
    /// The operator does not set the number of replicas, so that an autoscaler may.
    External,
}

/// TLS certificates of the server itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Tls {
    /// Names of Secrets with `tls.crt` and `tls.key`. At least one makes the server serve HTTPS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub secret_names: Vec<ObjectName>,
}

impl Tls {
    pub(crate) fn is_empty(&self) -> bool {
        self.secret_names.is_empty()
    }
}

/// How the operator gets its own access to coderd.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.disabled) && self.disabled) || !has(self.method) || self.method != 'TokenSecret' || has(self.tokenSecretRef)")
        .message("operatorAccess.method TokenSecret needs operatorAccess.tokenSecretRef"),
    validation = Rule::new("(has(self.disabled) && self.disabled) || !has(self.method) || self.method != 'FirstUser' || has(self.firstUserSecretRef)")
        .message("operatorAccess.method FirstUser needs operatorAccess.firstUserSecretRef"),
    validation = Rule::new("!has(self.tokenSecretRef) || (has(self.method) && self.method == 'TokenSecret')")
        .message("operatorAccess.tokenSecretRef is used with method TokenSecret only"),
    validation = Rule::new("!has(self.firstUserSecretRef) || (has(self.method) && self.method == 'FirstUser')")
        .message("operatorAccess.firstUserSecretRef is used with method FirstUser only"),
)]
pub struct OperatorAccess {
    /// Whether the operator gives up its access: it revokes its token and deletes the Secret with it. Defaults to
    /// false.
    #[serde(default)]
    pub disabled: bool,

    /// How the operator gets a token. Defaults to `Postgres`.
    #[serde(default)]
    pub method: AccessMethod,

    /// Name of the Secret that the operator stores its token in. Defaults to `<name>-operator-token`.
    pub generated_token_secret_name: Option<ObjectName>,

    /// Secret with the token for the method `TokenSecret`. `key` defaults to `token`.
    pub token_secret_ref: Option<SecretKeyRef>,

    /// Secret with `username`, `email` and `password` of the first administrator for the method `FirstUser`.
    pub first_user_secret_ref: Option<SecretRef>,

    /// URL at which the operator calls coderd. Defaults to the Service. The operator must allow any other address with
    /// `--allowed-coder-urls`.
    #[serde(rename = "apiURL")]
    pub api_url: Option<HttpUrl>,

    /// Secret with the CA that signed the certificate of coderd. If set, the operator calls the Service by HTTPS.
    /// `key` defaults to `ca.crt`.
    pub ca_secret_ref: Option<SecretKeyRef>,

    /// Secret with the CA that signed the certificate of the database, for the method `Postgres`. `key` defaults to
    /// `ca.crt`. File paths in the database URL are paths in the pods of coderd, so the operator does not read them.
    #[serde(rename = "databaseCASecretRef")]
    pub database_ca_secret_ref: Option<SecretKeyRef>,

    /// Lifetime of a generated token in days. The operator replaces a token after two thirds of its lifetime.
    /// Defaults to 365. With the method `FirstUser` it is at most what coderd allows.
    #[schemars(range(min = 1, max = 3650))]
    pub token_lifetime_days: Option<i32>,
}

/// How the operator gets a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMethod {
    /// The operator creates an account and a token in the database of coderd, with the `CODER_PG_CONNECTION_URL` of
    /// the pods.
    #[default]
    Postgres,
    /// A person supplies a token in a Secret.
    TokenSecret,
    /// The operator creates the first administrator of a new deployment, or logs in as that administrator.
    FirstUser,
}

/// How the operator handles licenses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LicenseSettings {
    /// Whether the operator removes a license that it applied as soon as coderd accepts its successor. Defaults to
    /// false.
    pub remove_replaced: bool,
}

/// Observed state of a Coder server.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoderControlPlaneStatus {
    /// The fields that all kinds share.
    #[serde(flatten)]
    pub workload: WorkloadStatus,
    /// URL of the Service inside the cluster.
    pub url: Option<String>,
    /// URL at which people use Coder.
    #[serde(rename = "accessURL")]
    pub access_url: Option<String>,
    /// Version that coderd reports.
    pub version: Option<String>,
    /// The `spec.image` that the operator last applied. While it equals `spec.image`, a newer minor release that somebody else
    /// set on the Deployment, and that has run on the database, is kept.
    pub applied_image: Option<String>,
    /// UUID of the deployment that coderd reports. It is stored in the database, so it changes with the database.
    #[serde(rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Secret with the token that the operator uses.
    pub operator_token_secret_ref: Option<ReportedSecretRef>,
    /// The token that the operator generated, from just before it is created until it is revoked.
    pub operator_token: Option<OperatorTokenStatus>,
    /// What conditions about coderd were last verified for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub verified: Vec<VerifiedInputs>,
    /// Whether coderd has accepted the operator token. Transient failures do not reset it.
    pub operator_access_ready: Option<bool>,
    /// When coderd last accepted the license of the Secret.
    pub license_last_applied: Option<Time>,
    /// SHA-256 of the license that coderd last accepted.
    pub license_last_applied_hash: Option<String>,
    /// Tier of the license: `none`, `trial`, `enterprise`, `premium` or `unknown`.
    pub license_tier: Option<String>,
    /// Tier of the license and the days until it expires, for people: `premium, 364d`.
    pub license_summary: Option<String>,
    /// The license that the operator applied.
    pub license: Option<LicenseStatus>,
    /// What the installed licenses allow, as coderd reports it.
    pub entitlements: Option<EntitlementsStatus>,
    /// When the entitlements were last read.
    pub entitlements_last_checked: Option<Time>,
    /// Entitlement to external provisioners: `entitled`, `grace_period`, `not_entitled` or `unknown`.
    pub external_provisioner_daemons_entitlement: Option<String>,
}

/// The inputs that a condition was verified for: the spec fields and Secret contents that it depends on. A condition is True
/// only while these are the present ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct VerifiedInputs {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// Salted hash of the inputs.
    pub inputs: String,
}

/// A token that the operator generated or is about to generate. Recorded before the token exists, so that a restart
/// cannot lose it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct OperatorTokenStatus {
    /// Method that generated the token. It is revoked by the same method.
    pub method: AccessMethod,
    /// UUID of the user in coderd that the token belongs to.
    #[serde(rename = "userID")]
    pub user_id: Option<String>,
    /// When the token expires.
    pub expires: Option<Time>,
    /// When the operator replaces the token.
    pub renew_after: Option<Time>,
    /// A token of an earlier method that is still to be revoked.
    pub replaces: Option<ReplacedToken>,
}

/// A token of an earlier method that is still to be revoked.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplacedToken {
    /// Method that generated the token. It is revoked by the same method.
    pub method: AccessMethod,
    /// UUID of the user in coderd that the token belongs to.
    #[serde(rename = "userID")]
    pub user_id: Option<String>,
}

/// The license that the operator applied.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LicenseStatus {
    /// Number of the license in coderd.
    pub id: Option<i64>,
    /// UUID of the license in coderd.
    pub uuid: Option<String>,
    /// Account that the license was issued to.
    pub account: Option<String>,
    /// Tier of the license.
    pub tier: Option<String>,
    /// When the license expires.
    pub expires: Option<Time>,
    /// Whole days until the license expires.
    pub days_left: Option<i64>,
    /// Mark of a license and of the coderd version that refused it. The operator does not send that license again
    /// until one of them changes.
    pub refused: Option<String>,
    /// UUID of the replaced license that is still to be removed.
    pub replaces: Option<String>,
}

/// What the installed licenses allow, as coderd reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct EntitlementsStatus {
    /// Whether coderd has a valid license.
    pub has_license: bool,
    /// Whether the license is a trial.
    pub trial: bool,
    /// `entitled` or `grace_period` for each feature. Features that are not entitled are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, String>,
    /// Warnings of coderd about its licenses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Errors of coderd about its licenses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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
