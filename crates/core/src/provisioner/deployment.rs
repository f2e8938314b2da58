//! The Deployment of a pool.

use std::collections::BTreeMap;

use coder_k8s_api::{CoderProvisioner, names::annotation};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, EnvVar, EnvVarSource, PodTemplateSpec, SecretKeySelector},
};
use kube::ResourceExt;

use super::{Observed, keys::Run, names};
use crate::{
    pod::{self, Needs, files, variable},
    sources::SourceContents,
};

/// Name of the container.
pub const CONTAINER: &str = "provisioner";
/// The variable with the key.
const KEY: &str = "CODER_PROVISIONER_DAEMON_KEY";
/// The variable with the address of coderd.
const URL: &str = "CODER_URL";

/// Seconds that a daemon has to finish its build in.
const GRACE: i64 = 600;

/// The Deployment, given what pods are to run with. None: no image is known yet.
pub fn build(observed: &Observed, sources: &SourceContents, run: &Run) -> Option<Deployment> {
    let spec = &observed.object.spec;
    let name = observed.object.name_any();
    let ports = spec.prometheus.enabled.then(|| vec![pod::port("prometheus-http", spec.prometheus.port)]);
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(observed.image()?),
        // The entrypoint of the image starts a server.
        command: Some(vec!["coder".to_owned()]),
        args: Some(vec!["provisioner".to_owned(), "start".to_owned()]),
        env: Some(environment(observed, run)),
        ports,
        ..Container::default()
    };
    let needs = Needs {
        name: names::deployment(&name),
        selector: observed.selector(),
        replicas: Some(observed.replicas()),
        container,
        files: files::certificates(
            &coder_k8s_api::Tls::default(),
            &spec.pod.certs.secrets,
            &spec.pod.volumes,
        ),
        service_account: observed.service_account(),
        annotations: BTreeMap::new(),
        pod_annotations: pod_annotations(observed, sources, run),
        grace_seconds: GRACE,
        drains: false,
        spread: false,
    };
    Some(pod::deployment(&spec.pod, needs))
}

/// The operator's entries. No organization and no tags: with a key the daemon refuses both.
fn environment(observed: &Observed, run: &Run) -> Vec<EnvVar> {
    let key =
        SecretKeySelector { name: run.secret.name.clone(), key: run.secret.key.clone(), optional: None };
    let from = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
    let mut all = vec![
        variable(URL, run.url.clone()),
        EnvVar { name: KEY.to_owned(), value: None, value_from: Some(from) },
        pod::field("POD_NAME", "metadata.name"),
        pod::field("POD_UID", "metadata.uid"),
        variable("CODER_PROVISIONER_DAEMON_NAME", names::daemon(&observed.object.name_any())),
    ];
    let prometheus = &observed.object.spec.prometheus;
    if prometheus.enabled {
        all.extend(pod::prometheus(&pod::listen(false, prometheus.port)));
    }
    all
}

fn pod_annotations(observed: &Observed, sources: &SourceContents, run: &Run) -> BTreeMap<String, String> {
    let spec = &observed.object.spec;
    let mut all = pod::annotations(&spec.pod, sources, &spec.prometheus);
    all.insert(annotation::KEY_CHECKSUM.to_owned(), run.checksum.clone());
    all
}

/// The address that pods connect to where the user gives one: it is none of the key's business.
pub fn own_url(pool: &CoderProvisioner) -> bool {
    pool.spec.pod.extra_env.iter().any(|entry| entry.name == URL)
}

/// What the pods of a template run with. None: it is not that of a pool.
pub fn run_of(template: &PodTemplateSpec) -> Option<Run> {
    Run::of(template, CONTAINER, annotation::KEY_CHECKSUM, KEY, URL)
}
