//! The status that all kinds share: the fields of the workload and the types of conditions.
//!
//! Condition types are part of the API: people, `kubectl wait` and other controllers match on them, so they are never
//! renamed. `Ready`, `Reconciling` and `Stalled` follow kstatus. The reasons are in [`crate::reason`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::CoderKind::{self, ControlPlane, Provisioner, WorkspaceProxy};
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

/// A condition type, for the documentation.
#[derive(Clone, Copy, Debug)]
pub struct ConditionType {
    /// As conditions carry it.
    pub name: &'static str,
    /// The kinds that have it.
    pub on: &'static [CoderKind],
    /// The status of an object that needs nobody: `True` or `False`.
    pub good: &'static str,
    /// What True means, in Markdown without line breaks.
    pub sentence: &'static str,
}

macro_rules! conditions {
    ($($constant:ident $name:literal $good:literal $on:expr, $sentence:literal;)+) => {
        /// Condition types.
        pub mod condition_type {
            $(#[doc = $sentence] pub const $constant: &str = $name;)+
        }

        /// Every condition type, in the order of the documentation.
        pub const TYPES: &[ConditionType] =
            &[$(ConditionType { name: $name, on: $on, good: $good, sentence: $sentence },)+];
    };
}

conditions! {
    READY "Ready" "True" CoderKind::ALL, "The object is as its spec asks.";
    RECONCILING "Reconciling" "False" CoderKind::ALL,
        "The operator works on the object or waits for something. Follows kstatus.";
    STALLED "Stalled" "False" CoderKind::ALL,
        "The object makes no progress until a person changes something. Follows kstatus.";
    DEPLOYMENT_READY "DeploymentReady" "True" CoderKind::ALL,
        "The Deployment has rolled out. For a pool, one ready pod is enough.";
    CONFLICT "Conflict" "False" CoderKind::ALL,
        "An object that the operator does not own has the name of a child. The message names it, and the annotation that \
         hands it over.";
    PAUSED "Paused" "False" CoderKind::ALL,
        "The annotation `coder.com/paused` stops the operator from writing. Present only while True.";
    OPERATOR_ACCESS_READY "OperatorAccessReady" "True" &[ControlPlane, Provisioner],
        "coderd accepts the operator token. On a pool: the control plane offers that token.";
    LICENSE_APPLIED "LicenseApplied" "True" &[ControlPlane], "coderd holds the license of `licenseSecretRef`.";
    LICENSE_EXPIRING "LicenseExpiring" "False" &[ControlPlane], "The license expires within 30 days, or has expired.";
    ENTITLEMENTS_HEALTHY "EntitlementsHealthy" "True" &[ControlPlane],
        "coderd reports neither errors nor warnings about its license. Never affects `Ready`.";
    EXPOSED "Exposed" "True" &[ControlPlane, WorkspaceProxy],
        "The Ingress is written, or a Gateway accepts the HTTPRoute. Present only with `expose`.";
    WORKSPACE_ACCESS "WorkspaceAccess" "True" &[ControlPlane, Provisioner],
        "Workspace RBAC is in place in every namespace that the spec names. Never affects `Ready`.";
    JOBS_RUNNABLE "JobsRunnable" "True" &[ControlPlane],
        "Every pending provisioner job has a daemon that can run it. Only while pools have a key here; never affects \
         `Ready`.";
    DOWNGRADE "Downgrade" "False" &[ControlPlane],
        "The image is older than the release that last ran on the database. Present only while True.";
    CONTROL_PLANE_READY "ControlPlaneReady" "True" &[Provisioner, WorkspaceProxy],
        "The control plane that a pool or proxy refers to can be used.";
    BOOTSTRAP_SECRET_READY "BootstrapSecretReady" "True" &[Provisioner],
        "The Secret of a pool's `bootstrap` holds a token. Only with `bootstrap`.";
    EXTERNAL_PROVISIONERS_ENTITLED "ExternalProvisionersEntitled" "True" &[Provisioner],
        "The license covers external provisioners.";
    PROVISIONER_KEY_READY "ProvisionerKeyReady" "True" &[Provisioner],
        "coderd knows the provisioner key, with the organization and tags of the spec.";
    PROVISIONER_KEY_SECRET_READY "ProvisionerKeySecretReady" "True" &[Provisioner],
        "The Secret holds the provisioner key.";
    DAEMONS_CONNECTED "DaemonsConnected" "True" &[Provisioner],
        "The daemon of every ready pod of the pool is connected to coderd. Never affects `Ready`.";
    AUTOSCALING "Autoscaling" "True" &[Provisioner],
        "The pool has the daemons that its jobs need. Only with `spec.autoscaling`; never affects `Ready`.";
    SCALE_IGNORED "ScaleIgnored" "False" &[Provisioner],
        "Somebody else sets the replicas of a pool with `spec.autoscaling`, which ignores them. Present only while True.";
    CREDENTIALS_READY "CredentialsReady" "True" &[WorkspaceProxy],
        "The operator has credentials to register the workspace proxy with, and may send them to its coderd.";
    ENTITLED "Entitled" "True" &[WorkspaceProxy], "The license covers workspace proxies.";
    REGISTERED "Registered" "True" &[WorkspaceProxy], "The workspace proxy is registered in coderd.";
    TOKEN_SECRET_READY "TokenSecretReady" "True" &[WorkspaceProxy], "The Secret holds the token of the workspace proxy.";
    SERVICE_READY "ServiceReady" "True" &[WorkspaceProxy], "The Service of the workspace proxy is written.";
    HEALTHY "Healthy" "True" &[WorkspaceProxy], "coderd reaches the workspace proxy. Never affects `Ready`.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_is_documented_once_and_says_whether_true_is_good() {
        let mut names: Vec<_> = TYPES.iter().map(|condition| condition.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TYPES.len());
        for ConditionType { name, good, sentence, .. } in TYPES {
            assert!(["True", "False"].contains(good), "{name}");
            assert!(sentence.ends_with('.') && !sentence.contains(['\n', '|']), "{name}: {sentence}");
        }
    }
}
