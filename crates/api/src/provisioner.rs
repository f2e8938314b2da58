//! `CoderProvisioner`: a pool of external provisioner daemons and the key that they connect with.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    controlplane::default_replicas,
    pod::{DisruptionBudget, PodSettings, Prometheus, ServiceAccountSettings},
    rbac::WorkspaceRbac,
    refs::{ControlPlaneRef, ReportedSecretRef, SecretKeyRef},
    status::WorkloadStatus,
    text::{DataKey, ImageRef, KeyName, ObjectName, OrganizationName},
};

/// Desired state of a pool of provisioner daemons.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "coder.com",
    version = "v1alpha1",
    kind = "CoderProvisioner",
    plural = "coderprovisioners",
    singular = "coderprovisioner",
    shortname = "cprov",
    category = "coder",
    namespaced,
    status = "CoderProvisionerStatus",
    derive = "PartialEq",
    doc = "A pool of external provisioner daemons with a key of its own in coderd.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Organization", type_ = "string", json_path = ".status.organizationName"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas", priority = 1),
    printcolumn(
        name = "Connected",
        type_ = "integer",
        json_path = ".status.daemons.connected",
        priority = 1
    ),
    printcolumn(name = "Busy", type_ = "integer", json_path = ".status.daemons.busy", priority = 1),
    printcolumn(
        name = "Control Plane",
        type_ = "string",
        json_path = ".spec.controlPlaneRef.name",
        priority = 1
    ),
    printcolumn(name = "Key", type_ = "string", json_path = ".status.provisionerKeyName", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.initContainers) || !self.initContainers.exists(init, init.name == 'provisioner')")
        .message("an init container must not be called provisioner: that is the name of the main container"),
    validation = Rule::new("!has(self.minReadySeconds) || self.progressDeadlineSeconds > self.minReadySeconds")
        .message("progressDeadlineSeconds must be greater than minReadySeconds"),
    validation = Rule::new("!has(self.extraArgs) || !self.extraArgs.exists(arg, arg.matches('^(--(tag|org|psk)(=.*)?|-[tO].*)$'))")
        .message("extraArgs must not contain --tag, --org or --psk: the daemon refuses them beside the operator's key; use spec.tags and spec.organizationName"),
    validation = Rule::new("!has(self.extraEnv) || !self.extraEnv.exists(env, env.name in ['CODER_ORGANIZATION', 'CODER_PROVISIONERD_TAGS', 'CODER_PROVISIONER_DAEMON_PSK'])")
        .message("extraEnv must not set CODER_ORGANIZATION, CODER_PROVISIONERD_TAGS or CODER_PROVISIONER_DAEMON_PSK: the daemon refuses them beside the operator's key; use spec.tags and spec.organizationName"),
)]
pub struct CoderProvisionerSpec {
    /// The CoderControlPlane that the daemons join.
    pub control_plane_ref: ControlPlaneRef,

    /// Organization of the key. Unset: coderd's default organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_name: Option<OrganizationName>,

    /// The provisioner key and the Secret that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ProvisionerKey>,

    /// Credentials for managing keys. Unset: the control plane's operator token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<ProvisionerBootstrap>,

    /// Tags that jobs are routed by. A change makes a new key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "tags")]
    pub tags: BTreeMap<String, String>,

    /// What happens to running daemons when the license no longer covers them.
    #[serde(default)]
    pub on_entitlement_lost: OnEntitlementLost,

    /// Image of the daemons. Unset: the image that the control plane has rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,

    /// How many daemons run.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// The ServiceAccount of the daemons.
    #[serde(default)]
    pub service_account: ServiceAccountSettings,

    /// What the daemons may do in Kubernetes for workspaces.
    #[serde(default)]
    pub rbac: WorkspaceRbac,

    /// How many daemons may be evicted at once. Unset: no budget is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Metrics of the daemons.
    #[serde(default)]
    pub prometheus: Prometheus,

    /// Settings of the pods.
    #[serde(flatten)]
    pub pod: PodSettings,
}

/// The provisioner key and the Secret that holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerKey {
    /// Name of the key in coderd, which lower-cases it. Unset: derived from the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<KeyName>,
    /// Name of the Secret. Unset: derived from the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<ObjectName>,
    /// Key in the Secret's data. Unset: `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key: Option<DataKey>,
}

/// Credentials for managing keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerBootstrap {
    /// Secret with a session token. Key: `token` when unset.
    pub credentials_secret_ref: SecretKeyRef,
}

/// What happens to running daemons when the license no longer covers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnEntitlementLost {
    /// They stay.
    #[default]
    Keep,
    /// They are scaled to zero until the entitlement is back.
    ScaleDown,
}

/// Observed state of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoderProvisionerStatus {
    /// What all kinds say.
    #[serde(flatten)]
    pub workload: WorkloadStatus,
    /// Organization of the key, by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "organizationID")]
    pub organization_id: Option<String>,
    /// Organization of the key, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_name: Option<String>,
    /// The key in use, by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "provisionerKeyID")]
    pub provisioner_key_id: Option<String>,
    /// The key in use, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioner_key_name: Option<String>,
    /// Hash of the key's tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags_hash: Option<String>,
    /// Control plane that the key belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref_name: Option<String>,
    /// Address that the daemons connect to.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "controlPlaneURL")]
    pub control_plane_url: Option<String>,
    /// Deployment that the key belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Secret that holds the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ReportedSecretRef>,
    /// Credentials that the key was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_source: Option<CredentialsSource>,
    /// A key that is being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_key: Option<PendingKey>,
    /// Keys that are no longer wanted and not yet deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_keys: Vec<StaleKey>,
    /// The daemons that are connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemons: Option<DaemonsStatus>,
}

/// Credentials for managing keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSource {
    /// `Operator` or `Bootstrap`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Where the token is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ReportedSecretRef>,
}

/// A key that is being made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingKey {
    /// Its name.
    pub name: String,
    /// Its UUID, once it is made and before its material is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its organization, by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "organizationID")]
    pub organization_id: Option<String>,
    /// Its organization, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_name: Option<String>,
    /// Hash of its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags_hash: Option<String>,
    /// Control plane that it is made in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref_name: Option<String>,
    /// Address of the coderd that it is made in.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "controlPlaneURL")]
    pub control_plane_url: Option<String>,
    /// Deployment that it is made in.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Credentials that it is made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_source: Option<CredentialsSource>,
    /// Why it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// A key that is no longer wanted and not yet deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaleKey {
    /// Its name.
    pub name: String,
    /// Its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its organization, by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "organizationID")]
    pub organization_id: Option<String>,
    /// Its organization, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_name: Option<String>,
    /// Hash of its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags_hash: Option<String>,
    /// Control plane that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref_name: Option<String>,
    /// Address of the coderd that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "controlPlaneURL")]
    pub control_plane_url: Option<String>,
    /// Deployment that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Credentials that can delete it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_source: Option<CredentialsSource>,
    /// When it was replaced. Of a key without a UUID, which was perhaps never made: when it was to be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When the last pod that could use it was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_since: Option<Time>,
}

/// The daemons of a pool, as coderd lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonsStatus {
    /// Connected.
    #[serde(default)]
    pub connected: i32,
    /// Connected and running a job.
    #[serde(default)]
    pub busy: i32,
    /// Connected and waiting for a job.
    #[serde(default)]
    pub idle: i32,
    /// Connected, with another major or minor version than coderd.
    #[serde(default)]
    pub outdated: i32,
    /// When this was so. It is written when anything but a time has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Time>,
    /// The first twenty of them by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<DaemonStatus>,
}

/// A daemon that is connected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatus {
    /// Its name, which is that of its pod.
    pub name: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `Busy` or `Idle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Its last sign of life before `asOf`; coderd notes one a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Time>,
}

/// Tags of a key. coderd itself decides `scope` and `owner` for daemons with a key.
fn tags(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    crate::schema::schema(serde_json::json!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 256},
        "x-kubernetes-validations": [
            {
                "rule": "!('scope' in self) || self['scope'] in ['', 'organization']",
                "message": "tags.scope must be organization or left out: daemons with a key serve the whole organization",
            },
            {
                "rule": "!('owner' in self) || self['owner'] == ''",
                "message": "tags.owner must be empty or left out: daemons with a key belong to no user",
            },
            {
                "rule": "self.all(tag, size(tag.trim()) > 0 && size(tag) <= 128)",
                "message": "a tag needs a name of at most 128 characters",
            },
        ],
    }))
}
