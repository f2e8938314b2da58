//! What a CoderProvisioner says about itself.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderProvisionerStatus, Reason, condition::kind};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::{
    Observed, Plan,
    daemons::DaemonHealth,
    keys::{CONDITIONS, Decision, NextStep, tags},
    license_gate, scaling,
};
use crate::{
    condition::Conditions,
    credential::{self, CredentialStanding},
    object,
    outcome::{ActResult, Blocker},
    rollout::Rollout,
    workload, workspace_access,
};

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong with children.
    pub done: ActResult,
    /// The Deployment as it is now.
    pub deployment: Option<Arc<Deployment>>,
    /// What pods of a rollout that does not get on say.
    pub pod_message: Option<String>,
    /// Grants that failed, with the namespace.
    pub grant_blockers: Vec<(String, Blocker)>,
}

impl Outcome {
    /// All that failed, for the retry.
    pub fn into_done(self) -> ActResult {
        let mut done = self.done;
        done.failures.extend(self.grant_blockers.into_iter().map(|(_, failure)| failure));
        done
    }
}

/// Says how things stand after the plan was carried out as far as the outcome tells, and the key as far as decided.
pub fn status(
    observed: &Observed,
    plan: &Plan,
    outcome: &Outcome,
    key: &Decision,
    daemons: &DaemonHealth,
    now: Timestamp,
) -> CoderProvisionerStatus {
    let object = &*observed.object;
    let generation = object.metadata.generation;
    let before = object.status.clone().unwrap_or_default();
    let mut next = before.clone();
    if let NextStep::Record(record) = &key.next {
        record.write(&mut next);
    }
    show_tags(object, &mut next);
    let rollout = match observed.scaling {
        Some(_) => Rollout::of_scaled(outcome.deployment.as_deref()),
        None => Rollout::of(outcome.deployment.as_deref()),
    };
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    if object::is_deleting(object) {
        let grant_blockers = || outcome.grant_blockers.first().map(|(_, failure)| failure);
        let failure = outcome.done.failures.first().or_else(grant_blockers);
        let workload = credential::deleting(&before.workload, generation, conditions, failure, &key.verdict);
        return CoderProvisionerStatus { workload, ..next };
    }
    let plane = object.spec.control_plane_ref.name.as_str();
    credential::set_control_plane_ready(&mut conditions, plane, control_plane(observed));
    set_credentials_ready(&mut conditions, observed);
    let license_gate::LicenseGate { reason: why, message, .. } = &observed.gate;
    conditions.set(kind::EXTERNAL_PROVISIONERS_ENTITLED, observed.gate.state(), *why, message.clone());
    key.verdict.set_conditions(&mut conditions, &CONDITIONS);
    let said_ready = conditions.said(kind::PROVISIONER_KEY_READY).is_some_and(|c| c.status == "True");
    let standing = CredentialStanding {
        verdict: &key.verdict,
        said_good: said_ready,
        gate: Some(&observed.gate),
        can_run: outcome.deployment.is_some() || observed.image().is_some(),
        rollout: &rollout,
        pod_message: outcome.pod_message.as_deref(),
    };
    let verdict = standing.not_ready().unwrap_or_else(|| standing.ready());
    conditions.set_common(&outcome.done, verdict);
    set_deployment_ready(&mut conditions, &rollout, outcome.pod_message.as_deref());
    daemons.set_conditions(&mut conditions);
    next.daemons = daemons.report(before.daemons.as_ref(), now);
    let (scaling, decided) = (observed.scaling.as_ref(), before.autoscaling.as_ref());
    let is_plane_paused = observed.control_plane.as_deref().is_some_and(object::is_paused);
    next.autoscaling =
        scaling::set_conditions(&mut conditions, object, scaling, &observed.gate, is_plane_paused, decided);
    let own = object.namespace().unwrap_or_default();
    workspace_access::set_conditions(&mut conditions, &own, &plan.workspaces, &outcome.grant_blockers);
    conditions.clear(kind::PAUSED);
    let workload =
        workload::status(&before.workload, generation, outcome.deployment.as_deref(), &rollout, conditions);
    CoderProvisionerStatus { workload, ..next }
}

/// Shows the tags of the key in use. While that is the key of an earlier spec, they stay as they were shown.
fn show_tags(object: &CoderProvisioner, next: &mut CoderProvisionerStatus) {
    match &next.tags_hash {
        Some(hash) if *hash == tags::hash(&object.spec.tags) => {
            next.tags = Some(tags::shown(&object.spec.tags));
        }
        Some(_) => {}
        None => next.tags = None,
    }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
/// `lost` is what it was granted in other namespaces and no longer has, and `grant_blockers` what could not be withdrawn.
pub fn paused(
    object: &CoderProvisioner,
    lost: &workspace_access::Plan,
    grant_blockers: &[(String, Blocker)],
    now: Timestamp,
) -> CoderProvisionerStatus {
    let mut status = object.status.clone().unwrap_or_default();
    let own = object.namespace().unwrap_or_default();
    workload::set_paused(&mut status.workload, object.metadata.generation, now, |conditions| {
        // A read that failed is retried and says nothing about the grants.
        if !lost.without_consent.is_empty() {
            workspace_access::set_conditions(conditions, &own, lost, grant_blockers);
        }
    });
    status
}

/// The control plane, if daemons can join it.
pub fn control_plane(observed: &Observed) -> Result<&CoderControlPlane, Blocker> {
    let name = observed.object.spec.control_plane_ref.name.as_str();
    credential::usable(name, observed.control_plane.as_deref(), observed.deployment_id.as_ref())
}

/// Of a pool the Go operator says whether any pod is ready, and so do scripts that wait for it. Whether all are as
/// the spec asks is what `Ready` says.
fn set_deployment_ready(conditions: &mut Conditions<'_>, rollout: &Rollout, pod_message: Option<&str>) {
    let ready = rollout.ready > 0;
    let reason = if ready { Reason::MinimumReplicasReady } else { Reason::NoReplicasReady };
    conditions.set(kind::DEPLOYMENT_READY, ready, reason, workload::with_words(rollout, pod_message));
}

fn set_credentials_ready(conditions: &mut Conditions<'_>, observed: &Observed) {
    let bootstrap =
        (Reason::BootstrapSecretAvailable, "the Secret of bootstrap.credentialsSecretRef holds a token");
    let operator = (Reason::OperatorAccessReady, "the pool uses the operator token of its control plane");
    let (type_, other, ready) = if observed.object.spec.bootstrap.is_some() {
        (kind::BOOTSTRAP_SECRET_READY, kind::OPERATOR_ACCESS_READY, bootstrap)
    } else {
        (kind::OPERATOR_ACCESS_READY, kind::BOOTSTRAP_SECRET_READY, operator)
    };
    conditions.clear(other);
    credential::set_credentials_ready(conditions, type_, &observed.credentials, ready);
}
