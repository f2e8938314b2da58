//! The Deployment of a workspace proxy.

use std::collections::BTreeMap;

use coder_k8s_api::names::annotation;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, EnvVar, EnvVarSource, PodTemplateSpec, SecretKeySelector},
};
use kube::ResourceExt;

use super::{HTTP, Observed, addresses, names};
use crate::{
    pod::{self, Needs, env, files, variable},
    service::HTTPS,
    sources::SourceContents,
    workload::Run,
};

/// Name of the container.
pub const CONTAINER: &str = "workspace-proxy";
/// The variable with the token.
const TOKEN: &str = "CODER_PROXY_SESSION_TOKEN";
/// The variable with the address of coderd.
const PRIMARY: &str = "CODER_PRIMARY_ACCESS_URL";
/// The variable that switches the relay off.
const DERP: &str = "CODER_DERP_SERVER_ENABLE";

/// Seconds that a proxy has to stop in: those of the Helm chart and those in which the pod only drains.
const GRACE: i64 = 70;

/// The Deployment, given what pods are to run with and whether they have IPv6 addresses. None: no image is known yet.
pub fn build(observed: &Observed, sources: &SourceContents, run: &Run, ipv6: bool) -> Option<Deployment> {
    let spec = &observed.object.spec;
    let mut ports = vec![pod::port("http", HTTP)];
    if !spec.tls.secret_names.is_empty() {
        ports.push(pod::port("https", HTTPS));
    }
    if spec.prometheus.enabled {
        ports.push(pod::port("prometheus-http", spec.prometheus.port));
    }
    let address = format!("--http-address={}", pod::listen(ipv6, HTTP));
    let args = ["wsproxy".to_owned(), "server".to_owned(), address];
    let derp_only = spec.derp_only.then(|| "--derp-only".to_owned());
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(observed.image()?),
        // The entrypoint of the image starts a server.
        command: Some(vec!["coder".to_owned()]),
        args: Some(args.into_iter().chain(derp_only).collect()),
        env: Some(environment(observed, sources, run, ipv6)),
        ports: Some(ports),
        readiness_probe: pod::probe(&spec.readiness_probe, true, "/healthz", "http"),
        liveness_probe: pod::probe(&spec.liveness_probe, false, "/healthz", "http"),
        ..Container::default()
    };
    let needs = Needs {
        name: names::child(&observed.object.name_any()),
        selector: observed.selector(),
        replicas: Some(spec.replicas),
        container,
        files: files::certificates(&spec.tls, &spec.pod.certs.secrets, &spec.pod.volumes),
        service_account: observed.service_account(),
        annotations: BTreeMap::new(),
        pod_annotations: pod_annotations(observed, sources, run),
        grace_seconds: GRACE,
        drains: true,
        spread: true,
    };
    Some(pod::deployment(&spec.pod, needs))
}

/// The operator's entries. The first two are where the Go operator puts them.
fn environment(observed: &Observed, sources: &SourceContents, run: &Run, ipv6: bool) -> Vec<EnvVar> {
    let spec = &observed.object.spec;
    let token =
        SecretKeySelector { name: run.secret.name.clone(), key: run.secret.key.clone(), optional: None };
    let from = EnvVarSource { secret_key_ref: Some(token), ..EnvVarSource::default() };
    let mut all = vec![
        variable(PRIMARY, run.url.clone()),
        EnvVar { name: TOKEN.to_owned(), value: None, value_from: Some(from) },
    ];
    let off = env::find(&spec.pod.extra_env, DERP).and_then(|entry| entry.value.as_deref());
    if !off.is_some_and(|off| off.eq_ignore_ascii_case("false")) {
        // Replicas relay for each other by the addresses of their pods. Set for one too, so that scaling restarts nobody.
        all.extend(pod::relay(ipv6, HTTP));
    }
    all.extend(addresses(&observed.object).settled(&spec.pod, sources).env);
    if !spec.tls.secret_names.is_empty() {
        all.extend(files::serving(&spec.tls, &pod::listen(ipv6, HTTPS)));
    }
    if spec.prometheus.enabled {
        all.extend(pod::prometheus(&pod::listen(ipv6, spec.prometheus.port)));
    }
    all
}

fn pod_annotations(observed: &Observed, sources: &SourceContents, run: &Run) -> BTreeMap<String, String> {
    let spec = &observed.object.spec;
    let mut all = pod::annotations(&spec.pod, sources, &spec.prometheus);
    if !run.checksum.is_empty() {
        all.insert(annotation::PROXY_TOKEN_CHECKSUM.to_owned(), run.checksum.clone());
    }
    all
}

/// Whether the user gives pods the address to connect to: it is none of the registration's business.
pub fn own_url(observed: &Observed) -> bool {
    env::find(&observed.object.spec.pod.extra_env, PRIMARY).is_some()
}

/// What the pods of a template run with. None: it is not that of a proxy.
pub fn run_of(template: &PodTemplateSpec) -> Option<Run> {
    Run::of(template, CONTAINER, annotation::PROXY_TOKEN_CHECKSUM, TOKEN, PRIMARY)
}
