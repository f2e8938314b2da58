//! Builds the Deployment and the PodDisruptionBudget of any kind: what the spec sets, on top of what the kind needs.
//!
//! A variable, volume or mount of the spec replaces the operator's of the same name. No name is ever sent twice: the API
//! server rejects a duplicate in an applied list with a message that names neither the field nor the entry.

pub mod files;

use std::collections::BTreeMap;

use coder_k8s_api::{
    DisruptionBudget, PodSettings, Probe as ProbeSettings, Prometheus, Tls, names::annotation,
};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, Lifecycle,
            LifecycleHandler, ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity, PodSpec,
            PodTemplateSpec, Probe, SeccompProfile, SecretKeySelector, SecurityContext, SleepAction,
            WeightedPodAffinityTerm,
        },
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::core::ObjectMeta;
use serde::Serialize;

use self::files::Files;
use crate::{
    intervals::{DAEMON_GRACE_SECONDS, POD_DRAIN_SECONDS, POD_GRACE_SECONDS},
    service::HTTPS,
    sources::{SourceContents, checksum},
    target::SecretDataRef,
};

/// What a kind needs of its pods.
#[derive(Clone, Debug)]
pub struct Needs<'a> {
    /// Name of the Deployment.
    pub name: String,
    /// Labels that select the pods.
    pub selector: BTreeMap<String, String>,
    /// How many pods. None: an autoscaler decides.
    pub replicas: Option<i32>,
    /// The main container: name, image, command, arguments, and the variables that only this kind has.
    pub container: Container,
    /// ServiceAccount of the pods.
    pub service_account: String,
    /// Annotations of the Deployment.
    pub annotations: BTreeMap<String, String>,
    /// Annotations of the pods that only this kind has.
    pub pod_annotations: BTreeMap<String, String>,
    /// What the pods read when they start.
    pub sources: &'a SourceContents,
    /// Metrics of the main container.
    pub prometheus: &'a Prometheus,
    /// How the pods serve requests that come through a Service. None: they only connect to coderd, and have the longer
    /// grace period of a daemon.
    pub serving: Option<Serving<'a>>,
}

/// How the pods of a kind serve requests.
#[derive(Clone, Copy, Debug)]
pub struct Serving<'a> {
    /// Port of HTTP.
    pub http: i32,
    /// Whether the pods have IPv6 addresses.
    pub ipv6: bool,
    /// Certificates for HTTPS.
    pub tls: &'a Tls,
    /// On by default.
    pub readiness: &'a ProbeSettings,
    /// Off by default.
    pub liveness: &'a ProbeSettings,
}

/// Builds the Deployment.
pub fn deployment(settings: &PodSettings, needs: Needs<'_>) -> Deployment {
    let PodSettings {
        extra_args,
        extra_env,
        env_from,
        volumes,
        volume_mounts,
        certs,
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
    let Needs { serving, prometheus, sources, .. } = needs;
    let no_tls = Tls::default();
    let tls = serving.map_or(&no_tls, |serving| serving.tls);
    let default_grace = if serving.is_some() { POD_GRACE_SECONDS } else { DAEMON_GRACE_SECONDS };
    let grace = termination_grace_period_seconds.unwrap_or(default_grace);
    let mut container = needs.container;
    if let Some(serving) = serving {
        container.readiness_probe = probe(serving.readiness, true, "/healthz", "http");
        container.liveness_probe = probe(serving.liveness, false, "/healthz", "http");
    }
    container.ports = some(ports(serving, prometheus));
    container.args = some([container.args.unwrap_or_default(), extra_args.clone()].concat());
    let own_env = [container.env.unwrap_or_default(), shared_env(serving, prometheus)].concat();
    container.env = some(merged_env(own_env, extra_env));
    container.env_from = some(env_from.clone());
    container.image_pull_policy = image_pull_policy.and_then(wire_text);
    container.resources.clone_from(resources);
    container.security_context = Some(security_context.clone().unwrap_or_else(secure));
    container.lifecycle = lifecycle.clone().or_else(|| serving.and_then(|_| drain(grace)));
    let Files { volumes: own_volumes, mounts } = files::certificates(tls, &certs.secrets, volumes);
    container.volume_mounts = some(files::replaced(mounts, volume_mounts, |mount| &mount.mount_path));
    let pod = PodSpec {
        containers: vec![container],
        init_containers: some(init_containers.clone()),
        volumes: some(files::replaced(own_volumes, volumes, |volume| &volume.name)),
        service_account_name: Some(needs.service_account),
        image_pull_secrets: some(image_pull_secrets.clone()),
        security_context: pod_security_context.clone(),
        node_selector: some_map(node_selector),
        tolerations: some(tolerations.clone()),
        affinity: affinity.clone().or_else(|| serving.map(|_| apart(&needs.selector))),
        topology_spread_constraints: some(topology_spread_constraints.clone()),
        priority_class_name: priority_class_name.as_ref().map(ToString::to_string),
        scheduler_name: scheduler_name.as_ref().map(ToString::to_string),
        runtime_class_name: runtime_class_name.as_ref().map(ToString::to_string),
        host_aliases: some(host_aliases.clone()),
        termination_grace_period_seconds: Some(grace),
        ..PodSpec::default()
    };
    let own_annotations = over(&annotations_of(settings, sources, prometheus), &needs.pod_annotations);
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: some_map(&over(pod_labels, &needs.selector)),
            annotations: some_map(&over(&own_annotations, pod_annotations)),
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
            selector: label_selector(&needs.selector),
            template,
            strategy: strategy.clone(),
            min_ready_seconds: *min_ready_seconds,
            progress_deadline_seconds: Some(*progress_deadline_seconds),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// The PodDisruptionBudget. None: the spec disables it, or it does not ask for one and there is only one pod.
///
/// A pod that is not ready may always be evicted: otherwise a broken rollout would block the drain of a node.
pub fn disruption_budget(
    name: &str,
    settings: Option<&DisruptionBudget>,
    replicas: i32,
    selector: &BTreeMap<String, String>,
) -> Option<PodDisruptionBudget> {
    let DisruptionBudget { enabled, min_available, max_unavailable } = settings.cloned().unwrap_or_default();
    if !enabled.unwrap_or(replicas > 1) {
        return None;
    }
    let one = min_available.is_none().then_some(IntOrString::Int(1));
    let spec = PodDisruptionBudgetSpec {
        selector: Some(label_selector(selector)),
        max_unavailable: max_unavailable.or(one),
        min_available,
        unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
    };
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    Some(PodDisruptionBudget { metadata, spec: Some(spec), status: None })
}

/// An HTTP probe of the main container, unless it is switched off.
fn probe(settings: &ProbeSettings, by_default: bool, path: &str, port: &str) -> Option<Probe> {
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

/// The TCP ports of the main container.
fn ports(serving: Option<Serving<'_>>, prometheus: &Prometheus) -> Vec<ContainerPort> {
    let http = serving.map(|serving| ("http", serving.http));
    let https = serving.filter(Serving::has_tls).map(|_| ("https", HTTPS));
    let metrics = prometheus.enabled.then_some(("prometheus-http", prometheus.port));
    let port = |(name, number): (&str, i32)| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    [http, https, metrics].into_iter().flatten().map(port).collect()
}

/// The variables that follow those of the kind: HTTPS, and metrics.
fn shared_env(serving: Option<Serving<'_>>, prometheus: &Prometheus) -> Vec<EnvVar> {
    let ipv6 = serving.is_some_and(|serving| serving.ipv6);
    let mut all = Vec::new();
    if let Some(serving) = serving.filter(Serving::has_tls) {
        all.extend(files::serving(serving.tls, &listen(ipv6, HTTPS)));
    }
    if prometheus.enabled {
        all.push(variable("CODER_PROMETHEUS_ENABLE", "true"));
        all.push(variable("CODER_PROMETHEUS_ADDRESS", listen(ipv6, prometheus.port)));
    }
    all
}

impl Serving<'_> {
    fn has_tls(&self) -> bool {
        !self.tls.secret_names.is_empty()
    }
}

/// The annotations of pods of any kind: a checksum of what they read, and how Prometheus finds them.
fn annotations_of(
    settings: &PodSettings,
    sources: &SourceContents,
    prometheus: &Prometheus,
) -> BTreeMap<String, String> {
    let checksum = checksum(settings, sources).map(|sum| (annotation::CONFIG_CHECKSUM.to_owned(), sum));
    let mut all: BTreeMap<_, _> = checksum.into_iter().collect();
    if prometheus.enabled && prometheus.scrape_annotations {
        all.insert("prometheus.io/scrape".to_owned(), "true".to_owned());
        all.insert("prometheus.io/port".to_owned(), prometheus.port.to_string());
        all.insert("prometheus.io/path".to_owned(), "/metrics".to_owned());
    }
    all
}

/// The operator's variables with the user's. A user's variable takes the position of the operator's of the same name,
/// because a variable that refers to it with `$(NAME)` must come later. Others follow.
fn merged_env(own: Vec<EnvVar>, users: &[EnvVar]) -> Vec<EnvVar> {
    let mut all = own;
    for entry in users {
        match all.iter_mut().find(|other| other.name == entry.name) {
            Some(place) => *place = entry.clone(),
            None => all.push(entry.clone()),
        }
    }
    all
}

/// The variable of a name.
pub fn find_variable<'a>(variables: &'a [EnvVar], name: &str) -> Option<&'a EnvVar> {
    variables.iter().find(|entry| entry.name == name)
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

/// An environment entry with a value of a Secret.
pub fn secret_variable(name: &str, secret: &SecretDataRef) -> EnvVar {
    let selector = SecretKeySelector { name: secret.name.clone(), key: secret.key.clone(), optional: None };
    let from = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(from) }
}

/// All addresses of the pod, in the family that it has.
pub fn listen(ipv6: bool, port: i32) -> String {
    if ipv6 { format!("[::]:{port}") } else { format!("0.0.0.0:{port}") }
}

/// Whether the main container of a Deployment listens on IPv6.
pub fn is_ipv6(deployment: &Deployment) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let args =
        pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|container| container.args.iter().flatten());
    args.into_iter().any(|arg| arg.starts_with("--http-address=[::]:"))
}

/// The variables by which replicas relay for each other. Only variables after `KUBE_POD_IP` can refer to it.
pub fn relay(ipv6: bool, port: i32) -> [EnvVar; 2] {
    let host = if ipv6 { "[$(KUBE_POD_IP)]" } else { "$(KUBE_POD_IP)" };
    let url = format!("http://{host}:{port}");
    [field("KUBE_POD_IP", "status.podIP"), variable("CODER_DERP_SERVER_RELAY_URL", url)]
}

/// The restricted Pod Security Standard: no root, no way to become root, no capabilities, the runtime's seccomp profile.
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

/// A pause before the container is asked to stop, in which the Service stops sending requests to it. The API server
/// refuses one that outlasts the grace period.
fn drain(grace: i64) -> Option<Lifecycle> {
    let seconds = POD_DRAIN_SECONDS.min(grace - 1);
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
        label_selector: Some(label_selector(selector)),
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

fn label_selector(labels: &BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() }
}

/// The text of an enum of the spec, whose variants have the names of Kubernetes.
pub(crate) fn wire_text(value: impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
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
        let (sources, prometheus) = (SourceContents::new(), Prometheus::default());
        let (tls, probe) = (Tls::default(), ProbeSettings::default());
        let needs = Needs {
            name: "coder".into(),
            selector: [("app".to_owned(), "coder".to_owned())].into(),
            replicas: Some(2),
            container: Container { name: "coder".into(), image: Some("i".into()), ..Container::default() },
            service_account: "sa".into(),
            annotations: BTreeMap::new(),
            pod_annotations: [("sum".to_owned(), "1".to_owned())].into(),
            sources: &sources,
            prometheus: &prometheus,
            serving: Some(Serving {
                http: 8080,
                ipv6: false,
                tls: &tls,
                readiness: &probe,
                liveness: &probe,
            }),
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

    #[test]
    fn a_users_entry_takes_the_place_of_the_operators() {
        let own = vec![variable("A", "1"), variable("B", "$(A)")];
        let all = merged_env(own, &[variable("C", "3"), variable("A", "mine")]);
        assert_eq!(all, [variable("A", "mine"), variable("B", "$(A)"), variable("C", "3")]);
    }

    fn made_budget(settings: serde_json::Value, replicas: i32) -> Option<PodDisruptionBudgetSpec> {
        let settings = serde_json::from_value(settings).unwrap();
        disruption_budget("coder", Some(&settings), replicas, &BTreeMap::new()).and_then(|budget| budget.spec)
    }

    #[test]
    fn there_is_a_budget_as_soon_as_there_is_something_to_protect() {
        assert!(disruption_budget("coder", None, 1, &BTreeMap::new()).is_none());
        assert_eq!(
            disruption_budget("coder", None, 2, &BTreeMap::new()).unwrap().spec.unwrap().max_unavailable,
            Some(IntOrString::Int(1))
        );
        assert!(made_budget(serde_json::json!({"enabled": false}), 5).is_none());
        let asked = made_budget(serde_json::json!({"enabled": true, "minAvailable": "50%"}), 1).unwrap();
        assert_eq!(asked.min_available, Some(IntOrString::String("50%".into())));
        assert_eq!(asked.max_unavailable, None);
    }
}
