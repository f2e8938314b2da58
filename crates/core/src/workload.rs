//! What is the same for the Deployment of every kind: how far its rollout has come, the ServiceAccount of its pods, what they
//! run with, its release, and its part of the status.

use std::sync::Arc;

use coder_k8s_api::{
    CoderControlPlane, CoderKind, Reason, ServiceAccountSettings, WorkloadStatus, condition::condition_type,
    names::annotation,
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentCondition},
    core::v1::{PodTemplateSpec, Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
};
use kube::{ResourceExt, core::ObjectMeta};

use crate::{
    condition::{Conditions, Progress, Verdict},
    controlplane,
    exposure::route::HTTPRoute,
    object,
    pod::some_map,
    provisioner,
    target::SecretDataRef,
    workspace_access::Existing,
    workspaceproxy,
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
    pub pod_credential: PodCredential,
    /// Whether its rollout is complete, or no pod is asked for and none is left.
    pub is_rolled_out: bool,
}

/// The Secret, checksum and URL in a pod template: which credential its pods use, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodCredential {
    /// Where they read their key or token.
    pub secret: SecretDataRef,
    /// The checksum on them.
    pub checksum: String,
    /// The address that they connect to.
    pub url: String,
}

impl PodCredential {
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
    let image = deployment.filter(|_| rollout.is_rolled_out()).and_then(image);
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
    if !rollout.is_rolled_out() && as_before == *before { as_before } else { next }
}

/// Sets the condition `DeploymentReady`.
pub fn set_deployment_ready(conditions: &mut Conditions<'_>, rollout: &Rollout, pod_message: Option<&str>) {
    let message = with_words(rollout, pod_message);
    conditions.set(condition_type::DEPLOYMENT_READY, rollout.is_rolled_out(), rollout.reason(), message);
}

/// The verdict about an object whose pods have not rolled out.
pub fn still_rolling_out(rollout: &Rollout, pod_message: Option<&str>) -> Verdict {
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
    conditions.set(condition_type::PAUSED, true, Reason::Annotated, message);
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

/// The name of the container in which a kind runs coder.
const fn main_container(kind: CoderKind) -> &'static str {
    match kind {
        CoderKind::ControlPlane => controlplane::CONTAINER,
        CoderKind::Provisioner => provisioner::CONTAINER,
        CoderKind::WorkspaceProxy => workspaceproxy::CONTAINER,
    }
}

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
    let is_main = |name: &str| CoderKind::ALL.iter().any(|kind| name == main_container(*kind));
    pod.containers.iter().find(|container| is_main(&container.name))?.image.clone()
}

fn selector(deployment: &Deployment) -> Option<String> {
    let labels = deployment.spec.as_ref()?.selector.match_labels.as_ref()?;
    Some(object::selector_text(labels))
}

/// The reason of the condition `Progressing` once a template has rolled out. Scaling does not change it.
const NEW_REPLICA_SET_AVAILABLE: &str = "NewReplicaSetAvailable";

/// The progress of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The stage.
    pub stage: RolloutStage,
    /// Desired pods.
    pub desired: i32,
    /// Existing pods.
    pub replicas: i32,
    /// Ready pods.
    pub ready: i32,
}

/// The stage of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStage {
    /// There is no Deployment.
    Missing,
    /// Every pod is of the newest template and available.
    Complete,
    /// No pod is asked for, and none is left.
    ScaledToZero,
    /// Every pod is of the newest template, which has rolled out before. Some are ready, and more are starting.
    Scaling,
    /// The controller works on it, or has not seen the newest generation yet.
    Progressing,
    /// Somebody paused it.
    Paused,
    /// The API server refuses to create pods; its message.
    Refused(String),
    /// No progress within `progressDeadlineSeconds`; the message of the Deployment.
    DeadlineExceeded(String),
}

impl Rollout {
    /// How far a Deployment has come.
    pub fn of(deployment: Option<&Deployment>) -> Self {
        let Some(deployment) = deployment else {
            return Self { stage: RolloutStage::Missing, desired: 0, replicas: 0, ready: 0 };
        };
        let spec = deployment.spec.as_ref();
        let status = deployment.status.clone().unwrap_or_default();
        let desired = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let [replicas, ready, updated, available] =
            [status.replicas, status.ready_replicas, status.updated_replicas, status.available_replicas]
                .map(|count| count.unwrap_or(0));
        let observed = status.observed_generation >= deployment.metadata.generation;
        let condition = |type_: &str, state: &str| {
            let conditions = status.conditions.iter().flatten();
            conditions.filter(|c| c.type_ == type_ && c.status == state).find_map(sentence)
        };
        let stalled = condition("Progressing", "False");
        let stage = if !observed {
            RolloutStage::Progressing
        } else if updated == desired && replicas == desired && available == desired {
            if desired == 0 { RolloutStage::ScaledToZero } else { RolloutStage::Complete }
        } else if let Some(why) = stalled {
            RolloutStage::DeadlineExceeded(why)
        } else if let Some(why) = condition("ReplicaFailure", "True") {
            RolloutStage::Refused(why)
        } else if spec.is_some_and(|spec| spec.paused == Some(true)) {
            RolloutStage::Paused
        } else {
            RolloutStage::Progressing
        };
        Self { stage, desired, replicas, ready }
    }

    /// How far a Deployment has come whose replicas the operator scales: it does not stop being ready while pods are added to
    /// those that are.
    pub fn of_scaled(deployment: Option<&Deployment>) -> Self {
        let rollout = Self::of(deployment);
        let status = deployment.and_then(|deployment| deployment.status.clone()).unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        let has_rolled_out = conditions.any(|condition| {
            condition.type_ == "Progressing" && condition.reason.as_deref() == Some(NEW_REPLICA_SET_AVAILABLE)
        });
        let is_observed =
            deployment.is_some_and(|deployment| status.observed_generation >= deployment.metadata.generation);
        let is_updated = status.updated_replicas.unwrap_or(0) == status.replicas.unwrap_or(0);
        let is_scaling = matches!(rollout.stage, RolloutStage::Progressing | RolloutStage::Refused(_))
            && has_rolled_out
            && is_observed
            && is_updated
            && rollout.ready > 0;
        if is_scaling { Self { stage: RolloutStage::Scaling, ..rollout } } else { rollout }
    }

    /// Whether there is nothing left to wait for.
    pub fn is_rolled_out(&self) -> bool {
        matches!(self.stage, RolloutStage::Complete | RolloutStage::ScaledToZero | RolloutStage::Scaling)
    }

    /// Whether only a person can continue it.
    pub fn is_stalled(&self) -> bool {
        matches!(self.stage, RolloutStage::DeadlineExceeded(_) | RolloutStage::Paused)
    }

    /// The reason for conditions.
    pub fn reason(&self) -> Reason {
        match self.stage {
            RolloutStage::Missing => Reason::Pending,
            RolloutStage::Complete | RolloutStage::Scaling => Reason::RolledOut,
            RolloutStage::ScaledToZero => Reason::ScaledToZero,
            RolloutStage::Progressing => Reason::Progressing,
            RolloutStage::Paused => Reason::DeploymentPaused,
            RolloutStage::Refused(_) => Reason::PodsRefused,
            RolloutStage::DeadlineExceeded(_) => Reason::ProgressDeadlineExceeded,
        }
    }

    /// The message for conditions.
    pub fn message(&self) -> String {
        let Self { stage, desired, ready, .. } = self;
        let pods = format!("{ready} of {desired} pods are ready");
        match stage {
            RolloutStage::Missing => "waiting for the Deployment to be written".to_owned(),
            RolloutStage::Complete | RolloutStage::Scaling => pods,
            RolloutStage::ScaledToZero => "no pods are desired".to_owned(),
            RolloutStage::Progressing => format!("rolling out: {pods}"),
            RolloutStage::Paused => {
                format!(
                    "somebody paused the rollout of the Deployment; run kubectl rollout resume to continue it: {pods}"
                )
            }
            RolloutStage::Refused(why) => format!("the API server refuses to create pods: {why}"),
            RolloutStage::DeadlineExceeded(why) => format!("the rollout makes no progress: {why}; {pods}"),
        }
    }
}

fn sentence(condition: &DeploymentCondition) -> Option<String> {
    condition.message.clone().or_else(|| condition.reason.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "so that tests read as tables")]
    fn stage(generation: i64, spec: Value, status: Value) -> RolloutStage {
        let deployment = json!({
            "metadata": {"generation": generation}, "spec": spec, "status": status,
        });
        let mut deployment = deployment;
        deployment["spec"]["selector"] = json!({});
        deployment["spec"]["template"] = json!({});
        Rollout::of(Some(&serde_json::from_value(deployment).unwrap())).stage
    }

    fn counts(observed: i64, replicas: i32, updated: i32, ready: i32) -> Value {
        json!({"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated,
            "readyReplicas": ready, "availableReplicas": ready})
    }

    #[test]
    fn a_rollout_is_complete_only_when_every_pod_is_new_and_available() {
        let two = json!({"replicas": 2});
        assert_eq!(stage(3, two.clone(), counts(3, 2, 2, 2)), RolloutStage::Complete);
        assert_eq!(stage(3, two.clone(), counts(2, 2, 2, 2)), RolloutStage::Progressing, "not seen yet");
        assert_eq!(
            stage(3, two.clone(), counts(3, 3, 2, 3)),
            RolloutStage::Progressing,
            "an old pod is left"
        );
        assert_eq!(stage(3, two.clone(), counts(3, 2, 1, 2)), RolloutStage::Progressing, "one is old");
        assert_eq!(stage(3, two, counts(3, 2, 2, 1)), RolloutStage::Progressing, "one is not ready");
        assert_eq!(stage(1, json!({"replicas": 0}), counts(1, 0, 0, 0)), RolloutStage::ScaledToZero);
        assert_eq!(stage(1, json!({"replicas": 0}), counts(1, 1, 1, 1)), RolloutStage::Progressing);
        assert_eq!(stage(1, json!({}), json!({})), RolloutStage::Progressing);
        assert_eq!(Rollout::of(None).stage, RolloutStage::Missing);
    }

    #[test]
    fn a_deadline_a_refusal_and_a_pause_are_told_apart() {
        let with = |type_: &str, status: &str| {
            let mut all = counts(1, 1, 1, 0);
            all["conditions"] = json!([{"type": type_, "status": status, "reason": "R", "message": "why"}]);
            all
        };
        let one = json!({"replicas": 1});
        assert_eq!(
            stage(1, one.clone(), with("Progressing", "False")),
            RolloutStage::DeadlineExceeded("why".into())
        );
        assert_eq!(
            stage(1, one.clone(), with("ReplicaFailure", "True")),
            RolloutStage::Refused("why".into())
        );
        assert_eq!(
            stage(1, json!({"replicas": 1, "paused": true}), with("Progressing", "Unknown")),
            RolloutStage::Paused
        );
        assert_eq!(stage(1, one.clone(), with("Progressing", "True")), RolloutStage::Progressing);
        assert_eq!(
            stage(2, one, with("Progressing", "False")),
            RolloutStage::Progressing,
            "what was said of the last generation is not said of this one"
        );
    }
}

/// What becomes of ServiceAccounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accounts {
    /// The one that is wanted, if there is to be one.
    pub desired: Option<ServiceAccount>,
    /// Those that stay and no longer belong to the object.
    pub detached: Vec<Arc<ServiceAccount>>,
    /// Those of earlier names that nothing uses any more.
    pub obsolete: Vec<Arc<ServiceAccount>>,
}

/// The name of the account: as it is given, or the default.
pub fn account_name(settings: &ServiceAccountSettings, default: impl FnOnce() -> String) -> String {
    settings.name.as_ref().map_or_else(default, ToString::to_string)
}

/// Decides what becomes of the accounts that belong to an object. `moved`: whether every pod runs as the wanted one.
pub fn decide_accounts(
    settings: &ServiceAccountSettings,
    name: &str,
    held: &[Arc<ServiceAccount>],
    moved: bool,
) -> Accounts {
    if settings.disable_create {
        return Accounts { detached: held.to_vec(), ..Accounts::default() };
    }
    let earlier = held.iter().filter(|held| held.name_any() != name);
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: some_map(&settings.labels),
        annotations: some_map(&settings.annotations),
        ..ObjectMeta::default()
    };
    Accounts {
        desired: Some(ServiceAccount { metadata, ..ServiceAccount::default() }),
        detached: Vec::new(),
        obsolete: earlier.filter(|_| moved).cloned().collect(),
    }
}

/// Whether every pod of a Deployment runs as an account, so that an earlier one can go.
pub fn have_moved(deployment: Option<&Deployment>, account: &str) -> bool {
    let Some(deployment) = deployment else { return false };
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let runs_as = pod.and_then(|pod| pod.service_account_name.as_deref());
    runs_as == Some(account) && Rollout::of(Some(deployment)).is_rolled_out()
}
