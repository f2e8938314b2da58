//! `CoderProvisioner`: a pool of external provisioner daemons and the key that they connect with.
//!
//! The status is the record of the key protocol: `pendingKey` is written before a key is created in coderd and
//! `staleKeys` before one is abandoned, so that a restart at any point neither loses nor duplicates a key.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    access::WorkspaceRbac,
    condition::WorkloadStatus,
    controlplane::default_replicas,
    pod::{DisruptionBudget, FieldRule, PodSettings, Prometheus, ServiceAccountSettings},
    refs::{ControlPlaneRef, ReportedSecretRef, SecretKeyRef},
    text::{DataKey, IdleTime, ImageRef, KeyName, ObjectName, OrganizationName, TimeOfDay, TimeZoneName},
};

/// Rules about fields of [`PodSettings`] that hold for this kind alone.
pub(crate) const FIELD_RULES: &[FieldRule] = &[
    FieldRule {
        field: "initContainers",
        rule: "!self.exists(init, init.name == 'provisioner')",
        message: "an init container must not be called provisioner: that is the name of the main container",
    },
    FieldRule {
        field: "extraArgs",
        rule: "!self.exists(arg, arg.matches('^(--(tag|org|psk)(=.*)?|-[tO].*)$'))",
        message: "extraArgs must not contain --tag, --org or --psk: the daemon refuses them beside the operator's key; use spec.tags and spec.organizationName",
    },
    FieldRule {
        field: "extraEnv",
        rule: "!self.exists(env, env.name in ['CODER_ORGANIZATION', 'CODER_PROVISIONERD_TAGS', 'CODER_PROVISIONER_DAEMON_PSK'])",
        message: "extraEnv must not set CODER_ORGANIZATION, CODER_PROVISIONERD_TAGS or CODER_PROVISIONER_DAEMON_PSK: the daemon refuses them beside the operator's key; use spec.tags and spec.organizationName",
    },
];

/// Desired state of a pool of provisioner daemons.
#[skip_serializing_none]
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
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Daemons", type_ = "integer", json_path = ".status.daemons.connected"),
    printcolumn(name = "Tags", type_ = "string", json_path = ".status.tags"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas", priority = 1),
    printcolumn(name = "Busy", type_ = "integer", json_path = ".status.daemons.busy", priority = 1),
    printcolumn(
        name = "Scaling",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Autoscaling")].reason"#,
        priority = 1
    ),
    printcolumn(
        name = "Organization",
        type_ = "string",
        json_path = ".status.organizationName",
        priority = 1
    ),
    printcolumn(
        name = "Control Plane",
        type_ = "string",
        json_path = ".spec.controlPlaneRef.name",
        priority = 1
    ),
    printcolumn(name = "Key", type_ = "string", json_path = ".status.provisionerKeyName", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReadySeconds) || (has(self.progressDeadlineSeconds) ? self.progressDeadlineSeconds : 600) > self.minReadySeconds")
        .message("progressDeadlineSeconds must be greater than minReadySeconds"),
)]
pub struct CoderProvisionerSpec {
    /// CoderControlPlane that the daemons connect to.
    pub control_plane_ref: ControlPlaneRef,

    /// Organization of the key, by name or UUID. Defaults to the default organization of coderd.
    pub organization_name: Option<OrganizationName>,

    /// The provisioner key and the Secret that holds it.
    pub key: Option<ProvisionerKey>,

    /// Credentials to manage keys with. Defaults to the operator token of the control plane.
    pub bootstrap: Option<ProvisionerBootstrap>,

    /// Tags of the key, by which coderd routes jobs. A change rotates the key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "tags")]
    pub tags: BTreeMap<String, String>,

    /// What happens to running daemons when the license no longer covers external provisioners. Defaults to `Keep`.
    #[serde(default)]
    pub on_entitlement_lost: OnEntitlementLost,

    /// Image of the daemons. Defaults to the image that the control plane has rolled out.
    pub image: Option<ImageRef>,

    /// Number of daemons. Defaults to 1. Ignored with `autoscaling`.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Lets the number of daemons follow the jobs that wait for them. Without it there are `replicas` daemons.
    pub autoscaling: Option<Autoscaling>,

    /// The ServiceAccount of the daemons.
    #[serde(default)]
    pub service_account: ServiceAccountSettings,

    /// Permissions of the daemons to run workspaces in Kubernetes.
    #[serde(default)]
    pub rbac: WorkspaceRbac,

    /// The PodDisruptionBudget of the daemons. Without this field there is none, however many replicas there are.
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Metrics of the daemons.
    #[serde(default)]
    pub prometheus: Prometheus,

    /// Settings of the pods.
    #[serde(flatten)]
    pub pod: PodSettings,
}

/// How the number of daemons follows the jobs that wait for them.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas")
        .message("minReplicas must not be above maxReplicas"),
    validation = Rule::new("!has(self.spare) || self.spare <= self.maxReplicas")
        .message("spare must not be above maxReplicas"),
    validation = Rule::new("!has(self.windows) || self.windows.all(window, window.minReplicas <= self.maxReplicas)")
        .message("minReplicas of a window must not be above maxReplicas"),
    validation = Rule::new("!has(self.windows) || self.windows.all(window, window.minReplicas > (has(self.minReplicas) ? self.minReplicas : 0))")
        .message("minReplicas of a window must be above minReplicas of autoscaling: it would change nothing"),
)]
pub struct Autoscaling {
    /// Daemons without any job. Defaults to 0.
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: Option<i32>,
    /// The most daemons, whatever waits.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Idle daemons beyond those that the jobs need, so that the next job does not wait for a pod. Defaults to 0.
    #[schemars(range(min = 0, max = 1000))]
    pub spare: Option<i32>,
    /// How long a daemon is idle before it may leave, such as `90s`, `5m` or `1h30m`. Defaults to `5m`.
    pub scale_down_after: Option<IdleTime>,
    /// Times of the week with a higher minimum, so that daemons are there before the day begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub windows: Vec<ScalingWindow>,
}

/// A time of the week with a higher minimum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingWindow {
    /// The days on which the window begins.
    #[schemars(length(min = 1, max = 7))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub weekdays: Vec<Weekday>,
    /// When the window begins, such as `07:30`.
    pub from: TimeOfDay,
    /// When the window ends. At or before `from`: on the next day.
    pub to: TimeOfDay,
    /// Time zone of both, such as `Europe/Berlin`. Defaults to `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<TimeZoneName>,
    /// Daemons without any job while the window lasts.
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: i32,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "days of the week")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The provisioner key and the Secret that holds it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerKey {
    /// Name of the key in coderd, which converts it to lower case. Defaults to a name derived from that of the
    /// object.
    pub name: Option<KeyName>,
    /// Name of the Secret. Defaults to a name derived from that of the object.
    pub secret_name: Option<ObjectName>,
    /// Key in the data of the Secret. Defaults to `key`.
    pub secret_key: Option<DataKey>,
}

/// Credentials to manage keys with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerBootstrap {
    /// Secret with a session token of a user who may manage provisioner keys. `key` defaults to `token`.
    pub credentials_secret_ref: SecretKeyRef,
}

/// What happens to running daemons when the license no longer covers external provisioners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnEntitlementLost {
    /// The daemons keep running.
    #[default]
    Keep,
    /// The Deployment is scaled to zero until the license covers them again. The key stays.
    ScaleDown,
}

/// Observed state of a pool.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoderProvisionerStatus {
    /// The fields that all kinds share.
    #[serde(flatten)]
    pub workload: WorkloadStatus,
    /// UUID of the organization of the key.
    #[serde(rename = "organizationID")]
    pub organization_id: Option<String>,
    /// Name of the organization of the key.
    pub organization_name: Option<String>,
    /// UUID of the key in use.
    #[serde(rename = "provisionerKeyID")]
    pub provisioner_key_id: Option<String>,
    /// Name of the key in use.
    pub provisioner_key_name: Option<String>,
    /// Hash of the tags of the key in use.
    pub tags_hash: Option<String>,
    /// Tags of the key in use, for people: `cluster=eu,gpu=yes`, or `<none>`. Cut if it is long; `spec.tags` has all.
    pub tags: Option<String>,
    /// Name of the control plane that the key belongs to.
    pub control_plane_ref_name: Option<String>,
    /// URL that the daemons connect to.
    #[serde(rename = "controlPlaneURL")]
    pub control_plane_url: Option<String>,
    /// UUID of the coderd deployment that the key belongs to.
    #[serde(rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Secret that holds the key.
    pub secret_ref: Option<ReportedSecretRef>,
    /// Credentials that the key was created with.
    pub credentials_source: Option<CredentialsSource>,
    /// The key that is being created. Recorded before coderd is asked to create it.
    pub pending_key: Option<PendingKey>,
    /// Replaced keys that are still to be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_keys: Vec<StaleKey>,
    /// Daemons of the pool that are connected to coderd.
    pub daemons: Option<DaemonsStatus>,
    /// The last decision about the number of daemons. Only with `spec.autoscaling`.
    pub autoscaling: Option<AutoscalingStatus>,
}

/// A decision about the number of daemons. The condition `Autoscaling` has it as a sentence.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingStatus {
    /// Number of daemons that the pool is to have.
    pub desired: i32,
    /// Waiting jobs that count for this pool and for no other.
    pub pending: i32,
    /// Daemons that run a job, or may run one.
    pub busy: i32,
    /// Connected daemons without a job.
    pub idle: i32,
    /// Daemons that have not connected yet.
    pub starting: i32,
    /// Why: the reason of the condition `Autoscaling`.
    pub reason: String,
    /// When time alone may change the decision: a daemon has been idle for long enough, a window begins or ends, or a pod has
    /// had its time to start.
    pub until: Option<Time>,
}

/// Where the credentials come from that can manage a key or registration.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSource {
    /// `Operator` for the token of the control plane, `Bootstrap` for the Secret in `bootstrap`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// Secret with the token.
    pub secret_ref: Option<ReportedSecretRef>,
}

/// A key that is being created.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingKey {
    /// Name of the key.
    pub name: String,
    /// UUID of the key, after it is created and before the Secret holds it.
    pub id: Option<String>,
    /// UUID of the organization of the key.
    #[serde(rename = "organizationID")]
    pub organization_id: Option<String>,
    /// Name of the organization of the key.
    pub organization_name: Option<String>,
    /// Hash of the tags of the key.
    pub tags_hash: Option<String>,
    /// Name of the control plane in which the key is created.
    pub control_plane_ref_name: Option<String>,
    /// URL of the coderd in which the key is created.
    #[serde(rename = "controlPlaneURL")]
    pub control_plane_url: Option<String>,
    /// UUID of the coderd deployment in which the key is created.
    #[serde(rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Credentials that the key is created with.
    pub credentials_source: Option<CredentialsSource>,
    /// Why the key is created, such as `TagsChanged`.
    pub reason: Option<String>,
    /// When the operator decided to create the key.
    pub since: Option<Time>,
}

/// A replaced key that is still to be deleted.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaleKey {
    /// Name of the key.
    pub name: String,
    /// UUID of the key. Unset if it is not known whether coderd has created it.
    pub id: Option<String>,
    /// UUID of the organization of the key.
    #[serde(rename = "organizationID")]
    pub organization_id: Option<String>,
    /// Name of the organization of the key.
    pub organization_name: Option<String>,
    /// Hash of the tags of the key.
    pub tags_hash: Option<String>,
    /// Name of the control plane that the key belongs to.
    pub control_plane_ref_name: Option<String>,
    /// URL of the coderd that the key belongs to.
    #[serde(rename = "controlPlaneURL")]
    pub control_plane_url: Option<String>,
    /// UUID of the coderd deployment that the key belongs to.
    #[serde(rename = "deploymentID")]
    pub deployment_id: Option<String>,
    /// Credentials that can delete the key.
    pub credentials_source: Option<CredentialsSource>,
    /// When the key was replaced. For a key without a UUID: when the operator decided to create it.
    pub since: Option<Time>,
    /// When the last pod that could use the key was gone.
    pub unused_since: Option<Time>,
}

/// Daemons of a pool, as coderd lists them.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonsStatus {
    /// Number of connected daemons.
    pub connected: i32,
    /// Number of connected daemons that run a job.
    pub busy: i32,
    /// Number of connected daemons without a job.
    pub idle: i32,
    /// Number of connected daemons with another major or minor version than coderd.
    pub outdated: i32,
    /// When coderd was asked. Only changes together with another field, so that polling does not write the status.
    pub as_of: Option<Time>,
    /// The first twenty connected daemons by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<DaemonStatus>,
}

/// A connected daemon.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatus {
    /// Name of the daemon. By default, the name of its pod.
    pub name: String,
    /// Version of the daemon.
    pub version: Option<String>,
    /// `Busy` or `Idle`.
    pub status: Option<String>,
    /// When coderd last heard from the daemon before `asOf`. coderd records this once a minute.
    pub last_seen: Option<Time>,
}

/// Tags of a key. coderd sets `scope` and `owner` itself for daemons that connect with a key.
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
