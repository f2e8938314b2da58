//! The settings that every kind offers for its pods and their Deployment.
//!
//! They are at the top level of a `spec`, under the names that Kubernetes or Coder's Helm chart uses. A setting whose
//! default depends on the kind or on another field has no default here: the crate `core` computes it.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::DeploymentStrategy,
    core::v1::{
        Affinity, Container, EnvFromSource, EnvVar, HostAlias, Lifecycle, LocalObjectReference,
        PodSecurityContext, ResourceRequirements, SecurityContext, Toleration, TopologySpreadConstraint,
        Volume, VolumeMount,
    },
};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    refs::SecretKey,
    schema::{
        add_rule, arguments, containers, defaults, embed, embed_list, env_from, env_vars, pull_secrets,
        string_map, volume_mounts, volumes,
    },
    text::ObjectName,
};

/// Settings of the pods and of their Deployment. Flattened into the `spec` of each kind.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Arguments that are appended to those of the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub extra_args: Vec<String>,

    /// Environment variables of the container. A variable that the operator sets is replaced by one of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "env_vars")]
    pub extra_env: Vec<EnvVar>,

    /// ConfigMaps and Secrets of the same namespace whose keys become environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "env_from")]
    pub env_from: Vec<EnvFromSource>,

    /// Volumes that are added to those of the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes")]
    pub volumes: Vec<Volume>,

    /// Volume mounts that are added to those of the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volume_mounts")]
    pub volume_mounts: Vec<VolumeMount>,

    /// Additional CA certificates that the container trusts.
    #[serde(default, skip_serializing_if = "Certs::is_empty")]
    pub certs: Certs,

    /// When the kubelet pulls the image. Defaults to `Always` for the tag `latest` and to `IfNotPresent` for others,
    /// as Kubernetes does.
    pub image_pull_policy: Option<PullPolicy>,

    /// Secrets with the credentials of the image registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pull_secrets")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Resource requests and limits of the container.
    #[serde(default)]
    #[schemars(schema_with = "embed::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,

    /// Security context of the container. It replaces the default of the operator as a whole.
    #[serde(default)]
    #[schemars(schema_with = "embed::<SecurityContext>")]
    pub security_context: Option<SecurityContext>,

    /// Security context of the pod. The operator sets none by itself.
    #[serde(default)]
    #[schemars(schema_with = "embed::<PodSecurityContext>")]
    pub pod_security_context: Option<PodSecurityContext>,

    /// Containers that run to completion, one after another, before the main container starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "containers")]
    pub init_containers: Vec<Container>,

    /// Lifecycle hooks of the container. They replace the default of the operator as a whole.
    #[serde(default)]
    #[schemars(schema_with = "embed::<Lifecycle>")]
    pub lifecycle: Option<Lifecycle>,

    /// Labels that a node must have to run the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub node_selector: BTreeMap<String, String>,

    /// Tolerations of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embed_list::<Toleration>")]
    pub tolerations: Vec<Toleration>,

    /// Affinity of the pods. It replaces the default of the operator as a whole.
    #[serde(default)]
    #[schemars(schema_with = "embed::<Affinity>")]
    pub affinity: Option<Affinity>,

    /// How the pods spread across nodes and zones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embed_list::<TopologySpreadConstraint>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Name of the PriorityClass of the pods.
    pub priority_class_name: Option<ObjectName>,

    /// Name of the scheduler of the pods. Defaults to the default scheduler of the cluster.
    pub scheduler_name: Option<ObjectName>,

    /// Name of the RuntimeClass of the pods.
    pub runtime_class_name: Option<ObjectName>,

    /// Additional entries of the hosts file of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embed_list::<HostAlias>")]
    pub host_aliases: Vec<HostAlias>,

    /// Annotations of the Deployment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,

    /// Labels of the Deployment, in addition to those of the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "extra_labels")]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub pod_annotations: BTreeMap<String, String>,

    /// Labels of the pods, in addition to those of the operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "extra_labels")]
    pub pod_labels: BTreeMap<String, String>,

    /// How the Deployment replaces pods. Defaults to a rolling update.
    #[serde(default)]
    #[schemars(schema_with = "strategy")]
    pub strategy: Option<DeploymentStrategy>,

    /// Seconds that a pod has to stop before it is killed. Defaults to 600 for daemons, and to 70 for coderd and proxies.
    #[schemars(range(min = 0))]
    pub termination_grace_period_seconds: Option<i64>,

    /// Seconds that a pod must be ready before it counts as available. Defaults to 0.
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,

    /// Seconds without progress after which a rollout counts as failed. Defaults to 600.
    #[serde(default = "progress_deadline")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: i32,

    /// Whether the pods restart when a Secret or ConfigMap changes that they read at their start. Defaults to true.
    #[serde(default = "yes")]
    pub restart_on_config_change: bool,
}

/// A rule about one field of [`PodSettings`], for one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldRule {
    /// As in a manifest.
    pub(crate) field: &'static str,
    /// CEL, whose `self` is the value of the field. Without the field it is not evaluated.
    pub(crate) rule: &'static str,
    /// What `kubectl apply` prints when the rule fails.
    pub(crate) message: &'static str,
}

impl Default for PodSettings {
    fn default() -> Self {
        defaults()
    }
}

/// Additional CA certificates that the container trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Certs {
    /// Keys of Secrets, each of which holds a PEM file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub secrets: Vec<SecretKey>,
}

impl Certs {
    fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At every start of a container.
    Always,
    /// If the node does not have the image.
    IfNotPresent,
    /// Never. The node must have the image.
    Never,
}

/// An HTTP probe of the container.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    /// Whether the container has the probe.
    pub enabled: Option<bool>,
    /// Seconds between the start of the container and the first probe. Defaults to 0.
    #[schemars(range(min = 0))]
    pub initial_delay_seconds: i32,
    /// Seconds between probes. Defaults to 10.
    #[schemars(range(min = 1))]
    pub period_seconds: Option<i32>,
    /// Seconds after which a probe without an answer counts as failed. Defaults to 1.
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// Consecutive successes after which a failed probe counts as successful. Defaults to 1.
    #[schemars(range(min = 1))]
    pub success_threshold: Option<i32>,
    /// Consecutive failures after which the probe counts as failed. Defaults to 3.
    #[schemars(range(min = 1))]
    pub failure_threshold: Option<i32>,
}

impl Probe {
    /// A probe with the defaults of Kubernetes that is on or off.
    pub fn enabled(enabled: bool) -> Self {
        Self { enabled: Some(enabled), ..Self::default() }
    }
}

/// The ServiceAccount of the pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceAccountSettings {
    /// Whether the pods use an existing ServiceAccount instead of one that the operator creates. Defaults to false.
    pub disable_create: bool,
    /// Name of the ServiceAccount. Defaults to a name derived from that of the object.
    pub name: Option<ObjectName>,
    /// Annotations of the ServiceAccount, such as the cloud identity of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the ServiceAccount, in addition to those of the operator.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub labels: BTreeMap<String, String>,
}

/// The PodDisruptionBudget of the pods. Without `minAvailable` and `maxUnavailable`, one pod may be disrupted at a
/// time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.minAvailable) && has(self.maxUnavailable))")
    .message("a disruption budget has either minAvailable or maxUnavailable, not both"))]
pub struct DisruptionBudget {
    /// Whether the operator creates a PodDisruptionBudget. Without this field: if there is more than one replica.
    pub enabled: Option<bool>,
    /// Number or percentage of pods that must stay available.
    #[serde(default)]
    #[schemars(schema_with = "count_or_percent")]
    pub min_available: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>,
    /// Number or percentage of pods that may be disrupted at a time.
    #[serde(default)]
    #[schemars(schema_with = "count_or_percent")]
    pub max_unavailable: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>,
}

/// Metrics of the container in the Prometheus format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.port) || !(self.port in [3001, 8080, 8443])")
    .message("prometheus.port must differ from the ports that the container already listens on (3001, 8080, 8443)"))]
pub struct Prometheus {
    /// Whether the container serves metrics. Defaults to false.
    #[serde(default)]
    pub enabled: bool,
    /// Port of the metrics endpoint. Defaults to 2112.
    #[serde(default = "prometheus_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Whether the pods have the `prometheus.io/*` annotations, by which many Prometheus installations discover
    /// targets. Defaults to true.
    #[serde(default = "yes")]
    pub scrape_annotations: bool,
}

impl Default for Prometheus {
    fn default() -> Self {
        defaults()
    }
}

pub(crate) const fn yes() -> bool {
    true
}

const fn progress_deadline() -> i32 {
    600
}

const fn prometheus_port() -> i32 {
    2112
}

fn strategy(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = embed::<DeploymentStrategy>(generator);
    if let Some(kind) =
        schema.as_object_mut().and_then(|s| s.get_mut("properties")?.get_mut("type")?.as_object_mut())
    {
        kind.insert("enum".into(), serde_json::json!(["RollingUpdate", "Recreate"]));
    }
    add_rule(
        &mut schema,
        "!has(self.rollingUpdate) || !has(self.type) || self.type == 'RollingUpdate'",
        "strategy.rollingUpdate needs strategy.type RollingUpdate",
    );
    add_rule(
        &mut schema,
        "!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || !has(self.rollingUpdate.maxUnavailable) \
         || !(string(self.rollingUpdate.maxSurge) in ['0', '0%'] && string(self.rollingUpdate.maxUnavailable) in ['0', '0%'])",
        "strategy.rollingUpdate.maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
    );
    schema
}

fn count_or_percent(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = crate::schema::schema(serde_json::json!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 : self.matches('^[0-9]+%$')",
            "message": "must be a number of pods or a percentage such as 50%",
        }],
    }));
    schema.as_object_mut().map(crate::schema::bound_to_32_bits);
    schema
}

/// Labels from the spec. Those of the operator are the immutable selector of the Deployment, so the spec must not set
/// them.
fn extra_labels(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = string_map(generator);
    add_rule(
        &mut schema,
        "!('app.kubernetes.io/name' in self || 'app.kubernetes.io/instance' in self || 'app.kubernetes.io/managed-by' in self)",
        "app.kubernetes.io/name, app.kubernetes.io/instance and app.kubernetes.io/managed-by select the pods and are set by the operator",
    );
    schema
}
