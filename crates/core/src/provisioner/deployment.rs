//! The Deployment of a pool, and what its pods connect with.

use coder_k8s_api::{CoderProvisioner, names::annotation};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, PodTemplateSpec},
};
use kube::ResourceExt;

use super::{Observed, keys::Run, names};
use crate::{
    pod::{self, Needs, variable},
    sources::SourceContents,
};

/// Name of the container.
pub const CONTAINER: &str = "provisioner";
/// The variable with the name of the daemon.
pub(super) const DAEMON_NAME: &str = "CODER_PROVISIONER_DAEMON_NAME";
/// The variable with the key.
const KEY: &str = "CODER_PROVISIONER_DAEMON_KEY";
/// The variable with the address of coderd.
const URL: &str = "CODER_URL";

/// The Deployment, given what pods are to run with. None: no image is known yet.
pub fn build(observed: &Observed, sources: &SourceContents, run: &Run) -> Option<Deployment> {
    let spec = &observed.object.spec;
    let name = observed.object.name_any();
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(observed.image()?),
        // The entrypoint of the image starts a server.
        command: Some(vec!["coder".to_owned()]),
        args: Some(vec!["provisioner".to_owned(), "start".to_owned()]),
        // Neither an organization nor tags: coderd takes both from the key, and the daemon refuses to start with them.
        env: Some(vec![
            variable(URL, run.url.clone()),
            pod::secret_variable(KEY, &run.secret),
            pod::field("POD_NAME", "metadata.name"),
            pod::field("POD_UID", "metadata.uid"),
            variable(DAEMON_NAME, names::daemon(&name)),
        ]),
        ..Container::default()
    };
    let needs = Needs {
        name: names::deployment(&name),
        selector: observed.selector(),
        replicas: Some(observed.replicas()),
        container,
        service_account: observed.service_account(),
        annotations: [].into(),
        pod_annotations: [(annotation::KEY_CHECKSUM.to_owned(), run.checksum.clone())].into(),
        sources,
        prometheus: &spec.prometheus,
        server: None,
    };
    Some(pod::deployment(&spec.pod, needs))
}

/// Whether the spec sets the address that pods connect to. The address of the key then does not have to be theirs.
pub fn own_url(pool: &CoderProvisioner) -> bool {
    pod::find_variable(&pool.spec.pod.extra_env, URL).is_some()
}

/// What the pods of a template run with. None: it is not that of a pool.
pub fn run_of(template: &PodTemplateSpec) -> Option<Run> {
    Run::of(template, CONTAINER, annotation::KEY_CHECKSUM, KEY, URL)
}
