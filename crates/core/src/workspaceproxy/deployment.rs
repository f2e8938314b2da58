//! The Deployment of a workspace proxy, and what its pods connect with.

use coder_k8s_api::names::annotation;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, EnvVar, PodTemplateSpec},
};
use kube::ResourceExt;

use super::{HTTP, Observed, addresses};
use crate::{
    names,
    pod::{self, Needs, Server, variable},
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

/// The Deployment, given what pods are to run with and whether they have IPv6 addresses. None: no image is known yet.
pub fn build(observed: &Observed, sources: &SourceContents, run: &Run, ipv6: bool) -> Option<Deployment> {
    let spec = &observed.object.spec;
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
        ..Container::default()
    };
    // A token that a person supplies has no checksum.
    let checksum = Some(run.checksum.clone()).filter(|checksum| !checksum.is_empty());
    let needs = Needs {
        name: names::proxy_child(&observed.object.name_any()),
        selector: observed.selector(),
        replicas: Some(spec.replicas),
        container,
        service_account: observed.service_account(),
        annotations: [].into(),
        pod_annotations: checksum
            .into_iter()
            .map(|checksum| (annotation::PROXY_TOKEN_CHECKSUM.to_owned(), checksum))
            .collect(),
        sources,
        prometheus: &spec.prometheus,
        server: Some(Server {
            http: HTTP,
            ipv6,
            tls: &spec.tls,
            readiness: &spec.readiness_probe,
            liveness: &spec.liveness_probe,
        }),
    };
    Some(pod::deployment(&spec.pod, needs))
}

/// The operator's variables. The first two are where the Go operator puts them.
fn environment(observed: &Observed, sources: &SourceContents, run: &Run, ipv6: bool) -> Vec<EnvVar> {
    let spec = &observed.object.spec;
    let mut all = vec![variable(PRIMARY, run.url.clone()), pod::secret_variable(TOKEN, &run.secret)];
    let derp = pod::find_variable(&spec.pod.extra_env, DERP).and_then(|entry| entry.value.as_deref());
    if !derp.is_some_and(|derp| derp.eq_ignore_ascii_case("false")) {
        // Replicas relay for each other by the addresses of their pods. Set for one too, so that scaling restarts no pod.
        all.extend(pod::relay(ipv6, HTTP));
    }
    all.extend(addresses(&observed.object).settled(&spec.pod, sources).env);
    all
}

/// Whether the spec sets the address that pods connect to. The address of the registration then does not have to be
/// theirs.
pub fn own_url(observed: &Observed) -> bool {
    pod::find_variable(&observed.object.spec.pod.extra_env, PRIMARY).is_some()
}

/// What the pods of a template run with. None: it is not that of a proxy.
pub fn run_of(template: &PodTemplateSpec) -> Option<Run> {
    Run::of(template, CONTAINER, annotation::PROXY_TOKEN_CHECKSUM, TOKEN, PRIMARY)
}
