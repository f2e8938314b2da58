//! The Deployment of coderd.

use coder_k8s_api::{Scaling, names::annotation};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, EnvVar},
};
use kube::ResourceExt;

use super::{Observed, access_url};
use crate::{
    pod::{self, Needs, files, listen},
    service::{HTTP, HTTPS},
    sources::SourceContents,
};

/// Name of the container.
pub const CONTAINER: &str = "coder";

/// Seconds that coderd has to stop in: those of the Helm chart and those in which the pod only drains.
const GRACE: i64 = 70;

/// The Deployment, given what its sources say and whether the pods have IPv6 addresses.
pub fn build(observed: &Observed, sources: &SourceContents, ipv6: bool) -> Deployment {
    let spec = &observed.object.spec;
    let tls = !spec.tls.secret_names.is_empty();
    let mut ports = vec![pod::port("http", HTTP)];
    if tls {
        ports.push(pod::port("https", HTTPS));
    }
    if spec.prometheus.enabled {
        ports.push(pod::port("prometheus-http", spec.prometheus.port));
    }
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(spec.image.to_string()),
        args: Some(vec![format!("--http-address={}", listen(ipv6, HTTP))]),
        env: Some(environment(observed, sources, ipv6)),
        ports: Some(ports),
        readiness_probe: pod::probe(&spec.readiness_probe, true, "/healthz", "http"),
        liveness_probe: pod::probe(&spec.liveness_probe, false, "/healthz", "http"),
        ..Container::default()
    };
    let external = spec.scaling == Scaling::External;
    let needs = Needs {
        name: observed.object.name_any(),
        selector: observed.selector(),
        replicas: (!external).then_some(spec.replicas),
        container,
        files: files::certificates(&spec.tls, &spec.pod.certs.secrets, &spec.pod.volumes),
        service_account: observed.service_account(),
        annotations: external
            .then(|| (annotation::SCALING.to_owned(), "External".to_owned()))
            .into_iter()
            .collect(),
        pod_annotations: pod::annotations(&spec.pod, sources, &spec.prometheus),
        grace_seconds: GRACE,
        drains: true,
        spread: true,
    };
    pod::deployment(&spec.pod, needs)
}

/// The operator's entries, in an order that others rely on: `$(KUBE_POD_IP)` is known to those after it.
fn environment(observed: &Observed, sources: &SourceContents, ipv6: bool) -> Vec<EnvVar> {
    let spec = &observed.object.spec;
    let mut all = pod::relay(ipv6, HTTP).to_vec();
    all.extend(access_url::addresses(&observed.object, sources).env);
    if !spec.tls.secret_names.is_empty() {
        all.extend(files::serving(&spec.tls, &listen(ipv6, HTTPS)));
    }
    if spec.prometheus.enabled {
        all.extend(pod::prometheus(&listen(ipv6, spec.prometheus.port)));
    }
    all
}
