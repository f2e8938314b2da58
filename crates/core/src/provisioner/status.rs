//! What a CoderProvisioner says about itself.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderProvisionerStatus, condition::kind};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::{
    Plan, Seen,
    daemons::Health,
    gate,
    keys::{Decision, Next, TOLD},
};
use crate::{
    condition::Conditions,
    credential::{self, Standing},
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
        let ungranted = || outcome.ungranted.first().map(|(_, failure)| failure);
        let failure = outcome.done.failures.first().or_else(ungranted);
        credential::say_going(&mut conditions, failure, &key.finding);
        let workload = coder_k8s_api::WorkloadStatus {
            observed_generation: generation,
            conditions: conditions.into_vec(),
            ..before.workload.clone()
        };
        return CoderProvisionerStatus { workload, ..next };
    }
    let plane = object.spec.control_plane_ref.name.as_str();
    credential::say_control_plane(&mut conditions, plane, control_plane(seen));
    say_credentials(&mut conditions, seen);
    let gate::Gate { reason: why, message, .. } = &seen.gate;
    conditions.set(kind::EXTERNAL_PROVISIONERS_ENTITLED, seen.gate.state(), why, message.clone());
    key.finding.tell(&mut conditions, &TOLD);
    let said_ready = conditions.said(kind::PROVISIONER_KEY_READY).is_some_and(|c| c.status == "True");
    let standing = Standing {
        finding: &key.finding,
        said_good: said_ready,
        gate: Some(&seen.gate),
        can_run: outcome.deployment.is_some() || seen.image().is_some(),
        rollout: &rollout,
        pods_say: outcome.pods_say.as_deref(),
    };
    let verdict = standing.hindrance().unwrap_or_else(|| standing.ready());
    conditions.set_common(&outcome.done, verdict);
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

/// The control plane, if daemons can join it.
pub fn control_plane(seen: &Seen) -> Result<&CoderControlPlane, String> {
    let name = seen.object.spec.control_plane_ref.name.as_str();
    credential::usable(name, seen.control_plane.as_deref(), seen.deployment_id.as_ref())
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
