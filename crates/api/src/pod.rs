//! The settings that every kind offers for its pods and their Deployment.
//!
//! They are written at the top of a kind's `spec`, under the names that Kubernetes or Coder's Helm chart
//! uses. Values that depend on anything else have no default here: the decisions crate supplies them.

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

use crate::{
    refs::SecretKey,
    schema::{
        add_rule, arguments, containers, embed, embed_list, env_from, env_vars, pull_secrets, string_map,
        volume_mounts, volumes,
    },
    text::ObjectName,
};

/// Settings of the pods and of the Deployment that makes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Arguments after those that the operator sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub extra_args: Vec<String>,

    /// Environment entries. One with the name of an entry that the operator sets takes its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "env_vars")]
    pub extra_env: Vec<EnvVar>,

    /// Sources of environment entries: ConfigMaps and Secrets of the same namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "env_from")]
    pub env_from: Vec<EnvFromSource>,

    /// Volumes after those that the operator sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes")]
    pub volumes: Vec<Volume>,

    /// Volume mounts after those that the operator sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volume_mounts")]
    pub volume_mounts: Vec<VolumeMount>,

    /// CA certificates that the container trusts.
    #[serde(default, skip_serializing_if = "Certs::is_empty")]
    pub certs: Certs,

    /// When the image is pulled. Unset: the API server decides by the image's tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,

    /// Secrets with which the image is pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pull_secrets")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Compute resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embed::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,

    /// Security context of the container. Replaces the operator's as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embed::<SecurityContext>")]
    pub security_context: Option<SecurityContext>,

    /// Security context of the pod. Replaces the operator's as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embed::<PodSecurityContext>")]
    pub pod_security_context: Option<PodSecurityContext>,

    /// Containers that run to their end before the main one starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "containers")]
    pub init_containers: Vec<Container>,

    /// Hooks after the container starts and before it stops. Replaces the operator's as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embed::<Lifecycle>")]
    pub lifecycle: Option<Lifecycle>,

    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embed_list::<Toleration>")]
    pub tolerations: Vec<Toleration>,

    /// Affinity of the pods. Replaces the operator's as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "embed::<Affinity>")]
    pub affinity: Option<Affinity>,

    /// How the pods spread over the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embed_list::<TopologySpreadConstraint>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<ObjectName>,

    /// Scheduler that places the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<ObjectName>,

    /// Runtime class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<ObjectName>,

    /// Extra entries of the pods' hosts file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "embed_list::<HostAlias>")]
    pub host_aliases: Vec<HostAlias>,

    /// Annotations of the Deployment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,

    /// Labels of the Deployment, besides the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "extra_labels")]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub pod_annotations: BTreeMap<String, String>,

    /// Labels of the pods, besides the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "extra_labels")]
    pub pod_labels: BTreeMap<String, String>,

    /// How a change replaces the pods. Unset: the API server's rolling update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "strategy")]
    pub strategy: Option<DeploymentStrategy>,

    /// Seconds that a pod has to stop in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub termination_grace_period_seconds: Option<i64>,

    /// Seconds that a pod must be ready before it counts as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,

    /// Seconds without progress after which a rollout counts as failed.
    #[serde(default = "progress_deadline")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: i32,

    /// Whether a change in a Secret or ConfigMap that the pods use restarts them.
    #[serde(default = "yes")]
    pub restart_on_config_change: bool,
}

impl Default for PodSettings {
    fn default() -> Self {
        Self {
            extra_args: Vec::new(),
            extra_env: Vec::new(),
            env_from: Vec::new(),
            volumes: Vec::new(),
            volume_mounts: Vec::new(),
            certs: Certs::default(),
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            resources: None,
            security_context: None,
            pod_security_context: None,
            init_containers: Vec::new(),
            lifecycle: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            affinity: None,
            topology_spread_constraints: Vec::new(),
            priority_class_name: None,
            scheduler_name: None,
            runtime_class_name: None,
            host_aliases: Vec::new(),
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            pod_annotations: BTreeMap::new(),
            pod_labels: BTreeMap::new(),
            strategy: None,
            termination_grace_period_seconds: None,
            min_ready_seconds: None,
            progress_deadline_seconds: progress_deadline(),
            restart_on_config_change: yes(),
        }
    }
}

/// CA certificates that the container trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Certs {
    /// One PEM file each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub secrets: Vec<SecretKey>,
}

impl Certs {
    fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Never.
    Never,
}

/// A probe of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Whether the probe is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Seconds before the first probe.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub initial_delay_seconds: i32,
    /// Seconds between probes; 10 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub period_seconds: Option<i32>,
    /// Seconds after which a probe counts as failed; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// Successes after which the container counts as healthy again; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub success_threshold: Option<i32>,
    /// Failures after which the container counts as unhealthy; 3 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub failure_threshold: Option<i32>,
}

impl Probe {
    /// A probe whose only setting is whether it is used.
    pub fn enabled(enabled: bool) -> Self {
        Self { enabled: Some(enabled), ..Self::default() }
    }
}

/// The ServiceAccount of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountSettings {
    /// Use an existing ServiceAccount and create none.
    #[serde(default)]
    pub disable_create: bool,
    /// Its name. Unset: derived from the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ObjectName>,
    /// Its annotations, for instance the cloud identity of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Its labels, besides the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub labels: BTreeMap<String, String>,
}

/// How many pods may be disrupted at once. Unset: one, as soon as there is more than one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.minAvailable) && has(self.maxUnavailable))")
    .message("a disruption budget has either minAvailable or maxUnavailable, not both"))]
pub struct DisruptionBudget {
    /// Whether there is a PodDisruptionBudget. Unset: when there is more than one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Pods that must stay, as a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_or_percent")]
    pub min_available: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>,
    /// Pods that may go, as a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "count_or_percent")]
    pub max_unavailable: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>,
}

/// Metrics of the container in the Prometheus format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.port in [3001, 8080, 8443])")
    .message("prometheus.port must differ from the ports that the container already listens on (3001, 8080, 8443)"))]
pub struct Prometheus {
    /// Whether metrics are served.
    #[serde(default)]
    pub enabled: bool,
    /// Port of the metrics.
    #[serde(default = "prometheus_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Whether the pods carry the `prometheus.io/*` annotations that many scrapers look for.
    #[serde(default = "yes")]
    pub scrape_annotations: bool,
}

impl Default for Prometheus {
    fn default() -> Self {
        Self { enabled: false, port: prometheus_port(), scrape_annotations: yes() }
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
    crate::schema::schema(serde_json::json!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 : self.matches('^[0-9]+%$')",
            "message": "must be a number of pods or a percentage such as 50%",
        }],
    }))
}

/// Labels that users add. The operator's own select the pods, so that nobody may change them.
fn extra_labels(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = string_map(generator);
    add_rule(
        &mut schema,
        "!('app.kubernetes.io/name' in self || 'app.kubernetes.io/instance' in self || 'app.kubernetes.io/managed-by' in self)",
        "app.kubernetes.io/name, app.kubernetes.io/instance and app.kubernetes.io/managed-by select the pods and are set by the operator",
    );
    schema
}
