//! What a CoderProvisioner says about itself.

use std::sync::Arc;

use coder_k8s_api::{
    CoderControlPlane, CoderProvisioner, CoderProvisionerStatus,
    condition::{kind, reason},
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::{
    Plan, Seen,
    daemons::Health,
    gate,
    keys::{Decision, Next, Stage, TOLD},
};
use crate::{
    condition::{Conditions, Progress, Verdict},
    object,
    outcome::{Done, Failure},
    rollout::Rollout,
    workload, workspace_access,
};

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong with children.
    pub done: Done,
    /// The Deployment as it is now.
    pub deployment: Option<Arc<Deployment>>,
    /// What pods of a rollout that does not get on say.
    pub pods_say: Option<String>,
    /// Grants that failed, with the namespace.
    pub ungranted: Vec<(String, Failure)>,
}

impl Outcome {
    /// All that failed, for the retry.
    pub fn into_done(self) -> Done {
        let mut done = self.done;
        done.failures.extend(self.ungranted.into_iter().map(|(_, failure)| failure));
        done
    }
}

/// Says how things stand after the plan was carried out as far as the outcome tells, and the key as far as decided.
pub fn status(
    seen: &Seen,
    plan: &Plan,
    outcome: &Outcome,
    key: &Decision,
    daemons: &Health,
    now: Timestamp,
) -> CoderProvisionerStatus {
    let object = &*seen.object;
    let generation = object.metadata.generation;
    let before = object.status.clone().unwrap_or_default();
    let mut next = before.clone();
    if let Next::Record(record) = &key.next {
        record.write(&mut next);
    }
    let rollout = Rollout::of(outcome.deployment.as_deref());
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    if object::is_going(object) {
        say_going(&mut conditions, outcome, key);
        let workload = coder_k8s_api::WorkloadStatus {
            observed_generation: generation,
            conditions: conditions.into_vec(),
            ..before.workload.clone()
        };
        return CoderProvisionerStatus { workload, ..next };
    }
    say_control_plane(&mut conditions, seen);
    say_credentials(&mut conditions, seen);
    let gate::Gate { reason: why, message, .. } = &seen.gate;
    conditions.set(kind::EXTERNAL_PROVISIONERS_ENTITLED, seen.gate.state(), why, message.clone());
    key.finding.tell(&mut conditions, &TOLD);
    let said_ready = conditions.said(kind::PROVISIONER_KEY_READY).is_some_and(|c| c.status == "True");
    conditions.set_common(&outcome.done, verdict(seen, outcome, &rollout, key, said_ready));
    say_deployment(&mut conditions, &rollout, outcome.pods_say.as_deref());
    daemons.tell(&mut conditions);
    next.daemons = daemons.report(before.daemons.as_ref(), now);
    let own = object.namespace().unwrap_or_default();
    workspace_access::tell(&mut conditions, &own, &plan.workspaces, &outcome.ungranted);
    conditions.clear(kind::PAUSED);
    let workload =
        workload::status(&before.workload, generation, outcome.deployment.as_deref(), &rollout, conditions);
    CoderProvisionerStatus { workload, ..next }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
pub fn paused(object: &CoderProvisioner, now: Timestamp) -> CoderProvisionerStatus {
    let mut status = object.status.clone().unwrap_or_default();
    workload::say_paused(&mut status.workload, object.metadata.generation, now);
    status
}

/// Whether the object is as its spec asks, if nothing failed.
fn verdict(seen: &Seen, outcome: &Outcome, rollout: &Rollout, key: &Decision, said_ready: bool) -> Verdict {
    let finding = &key.finding;
    let key_is_good = finding.is_ready() || (finding.stage == Stage::Unsure && said_ready);
    if !key_is_good {
        let progress = if finding.stage == Stage::Stalled { Progress::Stalled } else { Progress::Working };
        // Without a license nothing moves until somebody installs one.
        let unlicensed = seen.gate.verdict == gate::Verdict::Closed && finding.reason == seen.gate.reason;
        let progress = if unlicensed { Progress::Stalled } else { progress };
        let message = finding.message.clone();
        return Verdict { ready: false, progress, reason: finding.reason, message };
    }
    if outcome.deployment.is_none() && seen.image().is_none() {
        let message =
            "the control plane has not rolled out an image yet, and spec.image is not set".to_owned();
        return Verdict { ready: false, progress: Progress::Working, reason: reason::PENDING, message };
    }
    if !rollout.is_settled() {
        return workload::unsettled(rollout, outcome.pods_say.as_deref());
    }
    Verdict { ready: true, progress: Progress::Settled, reason: rollout.reason(), message: rollout.message() }
}

fn say_going(conditions: &mut Conditions<'_>, outcome: &Outcome, key: &Decision) {
    let failure =
        outcome.done.failures.first().or_else(|| outcome.ungranted.first().map(|(_, failure)| failure));
    let (reason, message) = match failure {
        Some(failure) => (failure.reason, failure.message.clone()),
        None => (key.finding.reason, key.finding.message.clone()),
    };
    conditions.set(kind::READY, false, reason::DELETING, "the object is being deleted");
    conditions.set(kind::RECONCILING, true, reason, message);
}

fn say_control_plane(conditions: &mut Conditions<'_>, seen: &Seen) {
    let (ready, reason, message) = match control_plane(seen) {
        Ok(plane) => (true, "ControlPlaneAvailable", format!("{} can be used", plane.name_any())),
        Err(message) => (false, "ControlPlaneUnavailable", message),
    };
    conditions.set(kind::CONTROL_PLANE_READY, ready, reason, message);
}

/// The control plane, if daemons can join it.
pub fn control_plane(seen: &Seen) -> Result<&CoderControlPlane, String> {
    let name = &seen.object.spec.control_plane_ref.name;
    let Some(plane) = &seen.control_plane else {
        return Err(format!("CoderControlPlane {name} does not exist"));
    };
    if seen.deployment_id.is_some() {
        Ok(plane)
    } else {
        Err(format!("CoderControlPlane {name} has not answered yet"))
    }
}

/// Of a pool the existing operator says whether any pod is ready, and so do scripts that wait for it. Whether all are as
/// the spec asks is what `Ready` says.
fn say_deployment(conditions: &mut Conditions<'_>, rollout: &Rollout, pods_say: Option<&str>) {
    let (ready, reason) =
        if rollout.ready > 0 { (true, "MinimumReplicasReady") } else { (false, "NoReplicasReady") };
    conditions.set(kind::DEPLOYMENT_READY, ready, reason, workload::with_words(rollout, pods_say));
}

fn say_credentials(conditions: &mut Conditions<'_>, seen: &Seen) {
    let (type_, other) = if seen.object.spec.bootstrap.is_some() {
        (kind::BOOTSTRAP_SECRET_READY, kind::OPERATOR_ACCESS_READY)
    } else {
        (kind::OPERATOR_ACCESS_READY, kind::BOOTSTRAP_SECRET_READY)
    };
    conditions.clear(other);
    match &seen.credentials {
        Ok(()) if type_ == kind::BOOTSTRAP_SECRET_READY => {
            conditions.set(type_, true, "BootstrapSecretAvailable", "the Secret holds a token");
        }
        Ok(()) => conditions.set(type_, true, "OperatorAccessReady", "the control plane's token is used"),
        Err(trouble) => conditions.set(type_, false, trouble.reason, trouble.message.clone()),
    }
}
