//! What a CoderControlPlane says about itself.

use std::sync::Arc;

use coder_k8s_api::{
    CoderControlPlane, CoderControlPlaneStatus,
    condition::{kind, reason},
};
use jiff::Timestamp;
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;

use super::{Plan, Seen, access_url, coderd, downgrade};
use crate::{
    condition::{Conditions, Progress, Verdict},
    exposure::Exposure,
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
    /// What became of the exposure.
    pub exposure: Exposure,
    /// Grants that failed, with the namespace.
    pub ungranted: Vec<(String, Failure)>,
    /// Whether the object itself was written, so that what was seen of it is outdated and another pass follows.
    pub touched: bool,
}

impl Outcome {
    /// All that failed, for the retry.
    pub fn into_done(self) -> Done {
        let mut done = self.done;
        done.failures.extend(self.ungranted.into_iter().map(|(_, failure)| failure));
        done
    }
}

/// Says how things stand after the plan was carried out as far as the outcome tells.
pub fn status(seen: &Seen, plan: &Plan, outcome: &Outcome, now: Timestamp) -> CoderControlPlaneStatus {
    let object = &*seen.object;
    let before = object.status.clone().unwrap_or_default();
    let rollout = Rollout::of(outcome.deployment.as_deref());
    let mut conditions = Conditions::new(&before.workload.conditions, object.metadata.generation, now);
    if seen.is_going() {
        say_going(&mut conditions, seen, outcome);
        let workload = coder_k8s_api::WorkloadStatus {
            observed_generation: object.metadata.generation,
            conditions: conditions.into_vec(),
            ..before.workload.clone()
        };
        return CoderControlPlaneStatus { workload, ..before };
    }
    let mut next = before.clone();
    coderd::tell(object, &seen.coderd, &mut conditions, &mut next, now);
    let verdict = verdict(object, outcome, &rollout, conditions.said(kind::LICENSE_APPLIED));
    conditions.set_common(&outcome.done, verdict);
    workload::say_rollout(&mut conditions, &rollout, outcome.pods_say.as_deref());
    outcome.exposure.tell(object.spec.expose.as_ref(), &mut conditions);
    let own = object.namespace().unwrap_or_default();
    workspace_access::tell(&mut conditions, &own, &plan.workspaces, &outcome.ungranted);
    seen.jobs.tell(&mut conditions);
    conditions.clear(kind::PAUSED);
    match downgrade::warning(object.spec.image.as_str(), next.version.as_deref()) {
        Some(why) => conditions.set(kind::DOWNGRADE, true, reason::OLDER_THAN_DATABASE, why),
        None => conditions.clear(kind::DOWNGRADE),
    }
    let workload = workload::status(
        &before.workload,
        object.metadata.generation,
        outcome.deployment.as_deref(),
        &rollout,
        conditions,
    );
    let shown = match &seen.sources {
        Ok(found) => access_url::addresses(object, found).shown,
        Err(_) => before.access_url.clone(),
    };
    CoderControlPlaneStatus {
        workload,
        url: Some(access_url::cluster_url(object)),
        access_url: shown,
        ..next
    }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
pub fn paused(object: &CoderControlPlane, now: Timestamp) -> CoderControlPlaneStatus {
    let mut status = object.status.clone().unwrap_or_default();
    workload::say_paused(&mut status.workload, object.metadata.generation, now);
    status
}

/// Whether the object is as its spec asks, if nothing failed.
fn verdict(
    object: &CoderControlPlane,
    outcome: &Outcome,
    rollout: &Rollout,
    license: Option<&Condition>,
) -> Verdict {
    if !rollout.is_settled() {
        return workload::unsettled(rollout, outcome.pods_say.as_deref());
    }
    if let Some(waiting) = outcome.exposure.verdict() {
        return waiting;
    }
    if let Some((progress, message)) = coderd::license_verdict(object, license) {
        let reason = if progress == Progress::Stalled { reason::LICENSE_REFUSED } else { reason::PENDING };
        return Verdict { ready: false, progress, reason, message };
    }
    Verdict { ready: true, progress: Progress::Settled, reason: rollout.reason(), message: rollout.message() }
}

fn say_going(conditions: &mut Conditions<'_>, seen: &Seen, outcome: &Outcome) {
    let failure =
        outcome.done.failures.first().or_else(|| outcome.ungranted.first().map(|(_, failure)| failure));
    let (reason, message) = match (failure, &seen.coderd.revocation) {
        (Some(failure), _) => (failure.reason, failure.message.clone()),
        (None, Some(coderd::Revocation::Failing(trouble))) => {
            (trouble.reason, format!("the operator's token is still to be revoked: {}", trouble.message))
        }
        (None, None) if coderd::access::needs_cleaning(&seen.object, &seen.coderd) => {
            (reason::REVOKING, "the operator's token is being revoked".to_owned())
        }
        (None, _) => (reason::DELETING, "the object is being deleted".to_owned()),
    };
    conditions.set(kind::READY, false, reason::DELETING, "the object is being deleted");
    conditions.set(kind::RECONCILING, true, reason, message);
}
