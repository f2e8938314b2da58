//! The status that all kinds share: the fields of the workload and the types of conditions.
//!
//! Condition types are part of the API: people, `kubectl wait` and other controllers match on them, so they are never
//! renamed. `Ready`, `Reconciling` and `Stalled` follow kstatus. The reasons are in [`crate::reason`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The part of a status that all kinds have in common. It is flattened: its fields are at the top level of the
/// status.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// The `metadata.generation` that this status was computed for.
    pub observed_generation: Option<i64>,
    /// Number of pods of the Deployment.
    pub replicas: Option<i32>,
    /// Number of pods that are ready.
    pub ready_replicas: Option<i32>,
    /// Label selector of the pods, as the scale subresource and autoscalers read it.
    pub selector: Option<String>,
    /// `Ready` if at least one pod is ready, else `Pending`. The conditions say more.
    pub phase: Option<String>,
    /// Image of the last complete rollout.
    pub image: Option<String>,
    /// When clean-up outside the cluster could begin. `--cleanup-timeout` counts from then. Set only while the object is
    /// being deleted.
    pub cleanup_start_time: Option<Time>,
    /// Deployments that accepted tokens which the operator uses for the object, the newest first. A token is sent to its own
    /// deployment only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credential_bindings: Vec<CredentialBinding>,
    /// Conditions of the object, one for each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// A credential and the deployment that accepted it. The operator sends the credential to no other deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialBinding {
    /// Salted hash of the credential.
    pub content: String,
    /// UUID of the deployment.
    #[serde(rename = "deploymentID")]
    pub deployment_id: String,
}

/// Condition types.
pub mod kind {
    /// The object is as its spec asks. Every kind.
    pub const READY: &str = "Ready";
    /// The operator works on the object or waits for something. Every kind; follows kstatus.
    pub const RECONCILING: &str = "Reconciling";
    /// The object makes no progress until a person changes something. Every kind; follows kstatus.
    pub const STALLED: &str = "Stalled";
    /// The Deployment has rolled out. Every kind; for a pool, one ready pod is enough.
    pub const DEPLOYMENT_READY: &str = "DeploymentReady";
    /// An object that the operator does not own has the name of a child. Every kind.
    pub const CONFLICT: &str = "Conflict";
    /// coderd accepts the operator token. On a pool: the control plane offers that token.
    pub const OPERATOR_ACCESS_READY: &str = "OperatorAccessReady";
    /// coderd holds the license of `licenseSecretRef`.
    pub const LICENSE_APPLIED: &str = "LicenseApplied";
    /// The license expires within 30 days. Bad when True.
    pub const LICENSE_EXPIRING: &str = "LicenseExpiring";
    /// coderd reports neither errors nor warnings about its license.
    pub const ENTITLEMENTS_HEALTHY: &str = "EntitlementsHealthy";
    /// The Ingress is written, or a Gateway accepts the HTTPRoute.
    pub const EXPOSED: &str = "Exposed";
    /// Workspace RBAC is in place in every namespace that the spec names.
    pub const WORKSPACE_ACCESS: &str = "WorkspaceAccess";
    /// The annotation `coder.com/paused` stops the operator from writing. Every kind; present only while True.
    pub const PAUSED: &str = "Paused";
    /// The image is older than the release that last ran on the database. Present only while True.
    pub const DOWNGRADE: &str = "Downgrade";
    /// The control plane that a pool or proxy refers to can be used.
    pub const CONTROL_PLANE_READY: &str = "ControlPlaneReady";
    /// The Secret of a pool's `bootstrap` holds a token.
    pub const BOOTSTRAP_SECRET_READY: &str = "BootstrapSecretReady";
    /// The license covers external provisioners.
    pub const EXTERNAL_PROVISIONERS_ENTITLED: &str = "ExternalProvisionersEntitled";
    /// coderd knows the provisioner key, with the organization and tags of the spec.
    pub const PROVISIONER_KEY_READY: &str = "ProvisionerKeyReady";
    /// The Secret holds the provisioner key.
    pub const PROVISIONER_KEY_SECRET_READY: &str = "ProvisionerKeySecretReady";
    /// The daemon of every ready pod of the pool is connected to coderd. Never affects `Ready`.
    pub const DAEMONS_CONNECTED: &str = "DaemonsConnected";
    /// Every pending provisioner job has a daemon that can run it. On a control plane with pools; never affects
    /// `Ready`.
    pub const JOBS_RUNNABLE: &str = "JobsRunnable";
    /// The workspace proxy is registered in coderd.
    pub const REGISTERED: &str = "Registered";
    /// The operator has credentials to register the workspace proxy with, and may send them to its coderd.
    pub const CREDENTIALS_READY: &str = "CredentialsReady";
    /// The Secret holds the token of the workspace proxy.
    pub const TOKEN_SECRET_READY: &str = "TokenSecretReady";
    /// The Service of the workspace proxy is written.
    pub const SERVICE_READY: &str = "ServiceReady";
    /// The license covers workspace proxies.
    pub const ENTITLED: &str = "Entitled";
    /// coderd reaches the workspace proxy. Never affects `Ready`.
    pub const HEALTHY: &str = "Healthy";
}
