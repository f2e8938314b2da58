//! The part of the status that all kinds share.

use coder_k8s_api::{Reason, WorkloadStatus, condition::kind, names::annotation};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodTemplateSpec};

use crate::{
    condition::{Conditions, Progress, Verdict, phase},
    rollout::Rollout,
    target::SecretDataRef,
};

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
    /// variables of the container tell. None: it has no such container.
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
        phase: Some(phase(Some(rollout.ready))),
        image: image.or_else(|| before.image.clone()),
        conditions: conditions.into_vec(),
    };
    // The mere number of pods in the middle of a rollout is not worth a write: it is written with the next change.
    let as_before = WorkloadStatus { replicas: before.replicas, ..next.clone() };
    if !rollout.is_settled() && as_before == *before { as_before } else { next }
}

/// Says how far the Deployment has come.
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
pub fn set_paused(status: &mut WorkloadStatus, generation: Option<i64>, now: Timestamp) {
    let before = std::mem::take(&mut status.conditions);
    let mut conditions = Conditions::new(&before, generation, now);
    let message = format!("the annotation {} stops the operator; remove it to go on", annotation::PAUSED);
    conditions.set(kind::PAUSED, true, Reason::Annotated, message);
    status.conditions = conditions.into_vec();
}

/// What is said of a rollout, with what its pods say.
pub fn with_words(rollout: &Rollout, pod_message: Option<&str>) -> String {
    match pod_message {
        Some(words) => format!("{}; {words}", rollout.message()),
        None => rollout.message(),
    }
}

/// The names of the main containers of our kinds.
const MAIN: [&str; 3] = ["coder", "provisioner", "workspace-proxy"];

/// The image of the main container.
pub(crate) fn image(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    pod.containers.iter().find(|container| MAIN.contains(&container.name.as_str()))?.image.clone()
}

fn selector(deployment: &Deployment) -> Option<String> {
    let labels = deployment.spec.as_ref()?.selector.match_labels.as_ref()?;
    Some(labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","))
}
