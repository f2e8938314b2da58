//! What is the same for the Deployment of every kind: what its pods run with, its release, and its part of the status.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, Reason, WorkloadStatus, condition::kind, names::annotation};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{PodTemplateSpec, Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
};

use crate::{
    condition::{Conditions, Progress, Verdict},
    exposure::route::HTTPRoute,
    object,
    rollout::Rollout,
    target::SecretDataRef,
    workspace_access::Existing,
};

/// The children of an object of any kind, as the caches have them. A kind leaves out those that it never has.
#[derive(Clone, Debug, Default)]
pub struct Children {
    /// The Deployment.
    pub deployment: Option<Arc<Deployment>>,
    /// The Service.
    pub service: Option<Arc<Service>>,
    /// The Ingress.
    pub ingress: Option<Arc<Ingress>>,
    /// The route.
    pub route: Option<Arc<HTTPRoute>>,
    /// The disruption budget.
    pub budget: Option<Arc<PodDisruptionBudget>>,
    /// ServiceAccounts that belong to the object, of whatever name.
    pub service_accounts: Vec<Arc<ServiceAccount>>,
    /// Roles and RoleBindings of workspaces, in all namespaces.
    pub rbac: Existing,
}

/// A Deployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workload {
    /// What its pods run with.
    pub run: Run,
    /// Whether its rollout is complete, or no pod is asked for and none is left.
    pub settled: bool,
}

/// What pods run with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Where they read their key or token.
    pub secret: SecretDataRef,
    /// The checksum on them.
    pub checksum: String,
    /// The address that they connect to.
    pub url: String,
}

impl Run {
    /// What the pods of a template run with: the checksum in this annotation, and the Secret and the address that these
    /// variables of the container name. None: it has no such container.
    pub(crate) fn of(
        template: &PodTemplateSpec,
        container: &str,
        checksum: &str,
        secret: &str,
        url: &str,
    ) -> Option<Self> {
        let annotations = template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
        let checksum = annotations.and_then(|all| all.get(checksum)).cloned().unwrap_or_default();
        let pod = template.spec.as_ref()?;
        let container = pod.containers.iter().find(|found| found.name == container)?;
        let entry = |name: &str| container.env.iter().flatten().find(|entry| entry.name == name);
        let secret = entry(secret)?.value_from.as_ref()?.secret_key_ref.as_ref()?;
        Some(Self {
            secret: SecretDataRef { name: secret.name.clone(), key: secret.key.clone() },
            checksum,
            url: entry(url).and_then(|entry| entry.value.clone()).unwrap_or_default(),
        })
    }
}

/// The common part of a status after a reconcile of an object of `generation` whose status was `before`.
pub fn status(
    before: &WorkloadStatus,
    generation: Option<i64>,
    deployment: Option<&Deployment>,
    rollout: &Rollout,
    conditions: Conditions<'_>,
) -> WorkloadStatus {
    let image = deployment.filter(|_| rollout.is_settled()).and_then(image);
    let next = WorkloadStatus {
        observed_generation: generation,
        replicas: Some(rollout.replicas),
        ready_replicas: Some(rollout.ready),
        selector: deployment.and_then(selector).or_else(|| before.selector.clone()),
        // As the Go operator sets it.
        phase: Some(if rollout.ready > 0 { "Ready" } else { "Pending" }.to_owned()),
        image: image.or_else(|| before.image.clone()),
        // Only an object that is being deleted has one.
        cleanup_start_time: None,
        credential_bindings: before.credential_bindings.clone(),
        conditions: conditions.into_vec(),
    };
    // The mere number of pods in the middle of a rollout is not worth a write: it is written with the next change.
    let as_before = WorkloadStatus { replicas: before.replicas, ..next.clone() };
    if !rollout.is_settled() && as_before == *before { as_before } else { next }
}

/// Sets the condition `DeploymentReady`.
pub fn set_deployment_ready(conditions: &mut Conditions<'_>, rollout: &Rollout, pod_message: Option<&str>) {
    let message = with_words(rollout, pod_message);
    conditions.set(kind::DEPLOYMENT_READY, rollout.is_settled(), rollout.reason(), message);
}

/// The verdict about an object whose pods have not rolled out.
pub fn unsettled(rollout: &Rollout, pod_message: Option<&str>) -> Verdict {
    let progress = if rollout.is_stalled() { Progress::Stalled } else { Progress::Working };
    Verdict { ready: false, progress, reason: rollout.reason(), message: with_words(rollout, pod_message) }
}

/// Sets `Paused` and keeps every other condition as it was.
pub fn set_paused(
    status: &mut WorkloadStatus,
    generation: Option<i64>,
    now: Timestamp,
    set_others: impl FnOnce(&mut Conditions<'_>),
) {
    let before = std::mem::take(&mut status.conditions);
    let mut conditions = Conditions::new(&before, generation, now);
    let message = format!("the annotation {} stops the operator: remove it to resume", annotation::PAUSED);
    conditions.set(kind::PAUSED, true, Reason::Annotated, message);
    set_others(&mut conditions);
    status.conditions = conditions.into_vec();
}

/// The message about a rollout, with that of its pods.
pub fn with_words(rollout: &Rollout, pod_message: Option<&str>) -> String {
    match pod_message {
        Some(words) => format!("{}; {words}", rollout.message()),
        None => rollout.message(),
    }
}

/// A minor release of coderd or a daemon, such as 2.30. Its patch versions and release candidates have one database schema,
/// and work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    major: u32,
    minor: u32,
}

impl Release {
    /// Reads a version such as `v2.30.0-rc.1+abc`. None: it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let core = text.trim_start_matches('v').split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse().ok());
        let (major, minor, _patch) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(Self { major, minor })
    }

    /// The version in the tag of an image. None: it has no tag, or the tag is none, such as `latest`.
    pub fn of_image(image: &str) -> Option<Self> {
        let name = image.split('@').next()?.rsplit('/').next()?;
        Self::parse(name.split_once(':')?.1)
    }
}

/// The names of the main containers of our kinds.
const MAIN: [&str; 3] = ["coder", "provisioner", "workspace-proxy"];

/// The image that a control plane has rolled out. Until that is known, the one that the pods already have.
pub(crate) fn followed_image(
    plane: Option<&CoderControlPlane>,
    deployment: Option<&Deployment>,
) -> Option<String> {
    let rolled_out = plane.and_then(|plane| plane.status.as_ref()?.workload.image.clone());
    rolled_out.or_else(|| image(deployment?))
}

/// The image of the main container.
pub(crate) fn image(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    pod.containers.iter().find(|container| MAIN.contains(&container.name.as_str()))?.image.clone()
}

fn selector(deployment: &Deployment) -> Option<String> {
    let labels = deployment.spec.as_ref()?.selector.match_labels.as_ref()?;
    Some(object::selector_text(labels))
}
