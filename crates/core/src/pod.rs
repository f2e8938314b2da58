//! The Deployment of any kind: what users set, on top of what the kind needs.
//!
//! A user's entry takes the place of the operator's under the same name. No name is ever sent twice: the API
//! server answers duplicates in an applied list with an error that nobody understands.

pub mod env;
pub mod files;

use std::collections::BTreeMap;

use coder_k8s_api::{PodSettings, Probe as ProbeSettings, Prometheus, PullPolicy, names::annotation};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, Lifecycle,
            LifecycleHandler, ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity, PodSpec,
            PodTemplateSpec, Probe, SeccompProfile, SecurityContext, SleepAction, WeightedPodAffinityTerm,
        },
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::core::ObjectMeta;

use self::files::Files;
use crate::sources::{SourceContents, checksum};

/// Seconds that a pod goes on serving after it was taken out of the Service, so that no request meets a closed door.
const DRAIN: i64 = 10;

/// What a kind needs of its pods.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Name of the Deployment.
    pub name: String,
    /// Labels that select the pods.
    pub selector: BTreeMap<String, String>,
    /// How many pods. None: somebody else decides.
    pub replicas: Option<i32>,
    /// The main container: name, image, command, arguments, environment, ports, probes.
    pub container: Container,
    /// Volumes that the kind needs, and where they are mounted.
    pub files: Files,
    /// ServiceAccount of the pods.
    pub service_account: String,
    /// Annotations of the Deployment.
    pub annotations: BTreeMap<String, String>,
    /// Annotations of the pods.
    pub pod_annotations: BTreeMap<String, String>,
    /// Seconds that a pod has to stop in, when nobody says.
    pub grace_seconds: i64,
    /// Whether requests come through a Service, so that a pod goes on serving for a moment when it stops.
    pub drains: bool,
    /// Whether the pods keep apart from each other where they can.
    pub spread: bool,
}

/// The Deployment.
pub fn deployment(settings: &PodSettings, needs: Needs) -> Deployment {
    // All settings but those that the kind itself reads: arguments, environment, files.
    let PodSettings {
        extra_args,
        extra_env,
        env_from,
        volumes,
        volume_mounts,
        certs: _,
        image_pull_policy,
        image_pull_secrets,
        resources,
        security_context,
        pod_security_context,
        init_containers,
        lifecycle,
        node_selector,
        tolerations,
        affinity,
        topology_spread_constraints,
        priority_class_name,
        scheduler_name,
        runtime_class_name,
        host_aliases,
        annotations,
        labels,
        pod_annotations,
        pod_labels,
        strategy,
        termination_grace_period_seconds,
        min_ready_seconds,
        progress_deadline_seconds,
        restart_on_config_change: _,
    } = settings;
    let grace = termination_grace_period_seconds.unwrap_or(needs.grace_seconds);
    let mut container = needs.container;
    container.args = some([container.args.unwrap_or_default(), extra_args.clone()].concat());
    container.env = some(env::merged(container.env.unwrap_or_default(), extra_env));
    container.env_from = some(env_from.clone());
    container.image_pull_policy = image_pull_policy.map(pull_policy);
    container.resources.clone_from(resources);
    container.security_context = Some(security_context.clone().unwrap_or_else(secure));
    let drain = needs.drains.then(|| drain(grace)).flatten();
    container.lifecycle = lifecycle.clone().or(drain);
    let Files { volumes: own_volumes, mounts } = needs.files;
    container.volume_mounts = some(files::mounts(mounts, volume_mounts));
    let pod = PodSpec {
        containers: vec![container],
        init_containers: some(init_containers.clone()),
        volumes: some(files::volumes(own_volumes, volumes)),
        service_account_name: Some(needs.service_account),
        image_pull_secrets: some(image_pull_secrets.clone()),
        security_context: pod_security_context.clone(),
        node_selector: some_map(node_selector),
        tolerations: some(tolerations.clone()),
        affinity: affinity.clone().or_else(|| needs.spread.then(|| apart(&needs.selector))),
        topology_spread_constraints: some(topology_spread_constraints.clone()),
        priority_class_name: priority_class_name.as_ref().map(ToString::to_string),
        scheduler_name: scheduler_name.as_ref().map(ToString::to_string),
        runtime_class_name: runtime_class_name.as_ref().map(ToString::to_string),
        host_aliases: some(host_aliases.clone()),
        termination_grace_period_seconds: Some(grace),
        ..PodSpec::default()
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: some_map(&over(pod_labels, &needs.selector)),
            annotations: some_map(&over(&needs.pod_annotations, pod_annotations)),
            ..ObjectMeta::default()
        }),
        spec: Some(pod),
    };
    Deployment {
        metadata: ObjectMeta {
            name: Some(needs.name),
            labels: some_map(labels),
            annotations: some_map(&over(annotations, &needs.annotations)),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: needs.replicas,
            selector: LabelSelector { match_labels: Some(needs.selector), ..LabelSelector::default() },
            template,
            strategy: strategy.clone(),
            min_ready_seconds: *min_ready_seconds,
            progress_deadline_seconds: Some(*progress_deadline_seconds),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// An HTTP probe of the main container, unless it is switched off.
pub fn probe(settings: &ProbeSettings, by_default: bool, path: &str, port: &str) -> Option<Probe> {
    settings.enabled.unwrap_or(by_default).then(|| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(port.to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        initial_delay_seconds: Some(settings.initial_delay_seconds).filter(|seconds| *seconds > 0),
        period_seconds: Some(settings.period_seconds.unwrap_or(10)),
        timeout_seconds: Some(settings.timeout_seconds.unwrap_or(1)),
        success_threshold: Some(settings.success_threshold.unwrap_or(1)),
        failure_threshold: Some(settings.failure_threshold.unwrap_or(3)),
        ..Probe::default()
    })
}

/// A TCP port of the main container.
pub fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// The annotations of pods of any kind: a checksum of what they read, and how Prometheus finds them.
pub fn annotations(
    settings: &PodSettings,
    sources: &SourceContents,
    prometheus: &Prometheus,
) -> BTreeMap<String, String> {
    let checksum = checksum(settings, sources).map(|sum| (annotation::CONFIG_CHECKSUM.to_owned(), sum));
    let mut all: BTreeMap<_, _> = checksum.into_iter().collect();
    if prometheus.enabled && prometheus.scrape_annotations {
        all.extend(scraped(prometheus.port));
    }
    all
}

/// The annotations with which Prometheus finds pods.
fn scraped(port: i32) -> [(String, String); 3] {
    [
        ("prometheus.io/scrape".to_owned(), "true".to_owned()),
        ("prometheus.io/port".to_owned(), port.to_string()),
        ("prometheus.io/path".to_owned(), "/metrics".to_owned()),
    ]
}

/// An environment entry with a plain value.
pub fn variable(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.into()), value_from: None }
}

/// An environment entry with the value of a field of the pod.
pub fn field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.to_owned(), api_version: None };
    let from = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(from) }
}

/// All addresses of the pod, in the family that it has.
pub fn listen(ipv6: bool, port: i32) -> String {
    if ipv6 { format!("[::]:{port}") } else { format!("0.0.0.0:{port}") }
}

/// Whether the main container of a Deployment listens on IPv6.
pub fn is_ipv6(held: &Deployment) -> bool {
    let pod = held.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let args =
        pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|container| container.args.iter().flatten());
    args.into_iter().any(|arg| arg.starts_with("--http-address=[::]:"))
}

/// The entries with which replicas relay for each other: `$(KUBE_POD_IP)` is known to those after it.
pub fn relay(ipv6: bool, port: i32) -> [EnvVar; 2] {
    let host = if ipv6 { "[$(KUBE_POD_IP)]" } else { "$(KUBE_POD_IP)" };
    let url = format!("http://{host}:{port}");
    [field("KUBE_POD_IP", "status.podIP"), variable("CODER_DERP_SERVER_RELAY_URL", url)]
}

/// The entries that serve metrics at an address.
pub fn prometheus(address: &str) -> [EnvVar; 2] {
    [variable("CODER_PROMETHEUS_ENABLE", "true"), variable("CODER_PROMETHEUS_ADDRESS", address)]
}

/// What nobody should run without: no root, no way to become it, no capabilities, the runtime's system call filter.
fn secure() -> SecurityContext {
    SecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(1000),
        run_as_group: Some(1000),
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

/// A pause before the container is told to stop. The API server refuses one that outlasts the grace period.
fn drain(grace: i64) -> Option<Lifecycle> {
    let seconds = DRAIN.min(grace - 1);
    (seconds > 0).then(|| Lifecycle {
        pre_stop: Some(LifecycleHandler {
            sleep: Some(SleepAction { seconds }),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    })
}

/// Pods on different nodes where there are any.
fn apart(selector: &BTreeMap<String, String>) -> Affinity {
    let term = PodAffinityTerm {
        topology_key: "kubernetes.io/hostname".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(selector.clone()),
            ..LabelSelector::default()
        }),
        ..PodAffinityTerm::default()
    };
    let anti = PodAntiAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
            weight: 1,
            pod_affinity_term: term,
        }]),
        ..PodAntiAffinity::default()
    };
    Affinity { pod_anti_affinity: Some(anti), ..Affinity::default() }
}

fn pull_policy(policy: PullPolicy) -> String {
    match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
    .to_owned()
}

/// `base` with the entries of `above` over it.
fn over(base: &BTreeMap<String, String>, above: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    base.iter().chain(above).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// A list that is left out when it is empty: server-side apply would own an empty one.
pub(crate) fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

/// A map that is left out when it is empty.
pub(crate) fn some_map(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    Some(map.clone()).filter(|map| !map.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(settings: serde_json::Value) -> serde_json::Value {
        let needs = Needs {
            name: "coder".into(),
            selector: [("app".to_owned(), "coder".to_owned())].into(),
            replicas: Some(2),
            container: Container { name: "coder".into(), image: Some("i".into()), ..Container::default() },
            files: Files::default(),
            service_account: "sa".into(),
            annotations: BTreeMap::new(),
            pod_annotations: [("sum".to_owned(), "1".to_owned())].into(),
            grace_seconds: 70,
            drains: true,
            spread: true,
        };
        serde_json::to_value(deployment(&serde_json::from_value(settings).unwrap(), needs)).unwrap()
    }

    #[test]
    fn pods_are_safe_spread_and_drained_unless_users_say_otherwise() {
        let made = built(serde_json::json!({}));
        let pod = &made["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["containers"][0]["securityContext"]["capabilities"]["drop"][0], "ALL");
        assert_eq!(pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"], 10);
        assert_eq!(pod["terminationGracePeriodSeconds"], 70);
        assert!(pod["affinity"]["podAntiAffinity"].is_object());
        let made = built(serde_json::json!({
            "securityContext": {"runAsUser": 0}, "affinity": {}, "terminationGracePeriodSeconds": 5,
        }));
        let pod = &made["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["securityContext"], serde_json::json!({"runAsUser": 0}));
        assert_eq!(pod["affinity"], serde_json::json!({}));
        assert_eq!(pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"], 4);
        let made = built(serde_json::json!({"terminationGracePeriodSeconds": 1}));
        assert!(made["spec"]["template"]["spec"]["containers"][0]["lifecycle"].is_null());
    }

    #[test]
    fn what_selects_the_pods_cannot_be_changed() {
        let made = built(serde_json::json!({"podLabels": {"app": "mine", "team": "a"}}));
        let labels = &made["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels, &serde_json::json!({"app": "coder", "team": "a"}));
    }

    #[test]
    fn nothing_empty_is_sent() {
        let text = built(serde_json::json!({})).to_string();
        assert!(!text.contains("[]") && !text.contains("{}") && !text.contains("null"), "{text}");
    }

    #[test]
    fn a_probe_has_a_default_for_every_setting() {
        let settings = |json| serde_json::from_value::<ProbeSettings>(json).unwrap();
        assert_eq!(probe(&settings(serde_json::json!({})), false, "/healthz", "http"), None);
        assert_eq!(probe(&settings(serde_json::json!({"enabled": false})), true, "/healthz", "http"), None);
        let made =
            probe(&settings(serde_json::json!({"periodSeconds": 7})), true, "/healthz", "http").unwrap();
        assert_eq!(
            (made.period_seconds, made.timeout_seconds, made.success_threshold, made.failure_threshold),
            (Some(7), Some(1), Some(1), Some(3))
        );
    }
}
