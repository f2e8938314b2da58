//! The status of a CoderControlPlane.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderControlPlaneStatus, Reason, condition::kind};
use jiff::Timestamp;
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;

use super::{Observed, Plan, access_url, coderd, image};
use crate::{
    condition::{Conditions, Progress, Verdict},
    exposure::Exposure,
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
    /// What became of the exposure.
    pub exposure: Exposure,
    /// Grants that failed, with the namespace.
    pub grant_blockers: Vec<(String, Blocker)>,
    /// Whether the object itself was written, so that what was seen of it is outdated and another reconcile follows.
    pub object_written: bool,
}

impl Outcome {
    /// All that failed, for the retry.
    pub fn into_done(self) -> ActResult {
        let mut done = self.done;
        done.failures.extend(self.grant_blockers.into_iter().map(|(_, failure)| failure));
        done
    }
}

/// Computes the status after the plan was carried out as far as the outcome shows.
pub fn status(
    observed: &Observed,
    plan: &Plan,
    outcome: &Outcome,
    now: Timestamp,
) -> CoderControlPlaneStatus {
    let object = &*observed.object;
    let before = object.status.clone().unwrap_or_default();
    let rollout = Rollout::of(outcome.deployment.as_deref());
    let mut conditions = Conditions::new(&before.workload.conditions, object.metadata.generation, now);
    if observed.is_deleting() {
        set_deleting(&mut conditions, observed, outcome);
        let workload = coder_k8s_api::WorkloadStatus {
            observed_generation: object.metadata.generation,
            conditions: conditions.into_vec(),
            ..before.workload.clone()
        };
        return CoderControlPlaneStatus { workload, ..before };
    }
    let mut next = before.clone();
    coderd::set_conditions(object, &observed.coderd, &observed.inputs, &mut conditions, &mut next, now);
    let image = observed.image();
    next.applied_image = image::applied(object, &image, outcome.deployment.as_deref());
    let downgrade = image::downgrade(object.spec.image.as_str(), &image, next.version.as_deref());
    let kept = downgrade.clone().filter(|_| matches!(image, image::Image::Kept(_)));
    let verdict = verdict(object, outcome, &rollout, kept, conditions.said(kind::LICENSE_APPLIED));
    conditions.set_common(&outcome.done, verdict);
    workload::set_deployment_ready(&mut conditions, &rollout, outcome.pod_message.as_deref());
    outcome.exposure.set_conditions(object.spec.expose.as_ref(), &mut conditions);
    let own = object.namespace().unwrap_or_default();
    workspace_access::set_conditions(&mut conditions, &own, &plan.workspaces, &outcome.grant_blockers);
    observed.jobs.set_conditions(&mut conditions);
    conditions.clear(kind::PAUSED);
    match downgrade {
        Some(why) => conditions.set(kind::DOWNGRADE, true, Reason::OlderThanDatabase, why),
        None => conditions.clear(kind::DOWNGRADE),
    }
    let workload = workload::status(
        &next.workload,
        object.metadata.generation,
        outcome.deployment.as_deref(),
        &rollout,
        conditions,
    );
    let shown = match &observed.sources {
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
/// `lost` is what it was granted in other namespaces and no longer has, and `grant_blockers` what could not be withdrawn.
pub fn paused(
    object: &CoderControlPlane,
    lost: &workspace_access::Plan,
    grant_blockers: &[(String, Blocker)],
    now: Timestamp,
) -> CoderControlPlaneStatus {
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

/// Whether the object is as its spec asks, if nothing failed.
fn verdict(
    object: &CoderControlPlane,
    outcome: &Outcome,
    rollout: &Rollout,
    kept_image: Option<String>,
    license: Option<&Condition>,
) -> Verdict {
    if !rollout.is_settled() {
        return workload::unsettled(rollout, outcome.pod_message.as_deref());
    }
    if let Some(message) = kept_image {
        let (progress, reason) = (Progress::Stalled, Reason::OlderThanDatabase);
        return Verdict { ready: false, progress, reason, message };
    }
    let waiting = outcome.exposure.verdict().or_else(|| coderd::license::unready(object, license));
    waiting.unwrap_or_else(|| Verdict {
        ready: true,
        progress: Progress::Settled,
        reason: rollout.reason(),
        message: rollout.message(),
    })
}

fn set_deleting(conditions: &mut Conditions<'_>, observed: &Observed, outcome: &Outcome) {
    let failure =
        outcome.done.failures.first().or_else(|| outcome.grant_blockers.first().map(|(_, failure)| failure));
    let (reason, message) = match (failure, &observed.coderd.revocation) {
        (Some(failure), _) => (failure.reason, failure.message.clone()),
        (None, Some(coderd::access::Revocation::Failing(blocker))) => {
            (blocker.reason, format!("the operator token is not revoked yet: {}", blocker.message))
        }
        (None, None) if coderd::access::needs_cleaning(&observed.object, &observed.coderd) => {
            (Reason::Revoking, "revoking the operator token".to_owned())
        }
        (None, _) => (Reason::Deleting, "the object is being deleted".to_owned()),
    };
    conditions.set(kind::READY, false, Reason::Deleting, "the object is being deleted");
    conditions.set(kind::RECONCILING, true, reason, message);
}
