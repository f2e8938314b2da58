//! The status of a CoderWorkspaceProxy.

use std::sync::Arc;

use coder_k8s_api::{
    CoderControlPlane, CoderWorkspaceProxy, CoderWorkspaceProxyStatus, Reason, condition::kind,
};
use jiff::Timestamp;
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Time};

use super::{
    Observed, addresses,
    registration::{CONDITIONS, Decision, Health, NextStep},
};
use crate::{
    condition::{ConditionStatus, Conditions, whole_seconds},
    credential::{self, CredentialProgress, CredentialStanding, CredentialVerdict},
    exposure::Exposure,
    object,
    outcome::{ActResult, Blocker},
    rollout::Rollout,
    workload,
};

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong with children.
    pub done: ActResult,
    /// Whether the Service is written.
    pub service: bool,
    /// Whether the pods have IPv6 addresses.
    pub ipv6: bool,
    /// The Deployment as it is now.
    pub deployment: Option<Arc<Deployment>>,
    /// What pods of a rollout that does not get on say.
    pub pod_message: Option<String>,
    /// What became of the exposure.
    pub exposure: Exposure,
}

/// Says how things stand after the plan was carried out as far as the outcome tells, and the registration as far as
/// decided.
pub fn status(
    observed: &Observed,
    outcome: &Outcome,
    decision: &Decision,
    health: Option<&Health>,
    now: Timestamp,
) -> CoderWorkspaceProxyStatus {
    let object = &*observed.object;
    let generation = object.metadata.generation;
    let before = object.status.clone().unwrap_or_default();
    let mut next = before.clone();
    if let NextStep::Record(record) = &decision.next {
        record.write(&mut next);
    }
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    if object::is_deleting(object) {
        let failure = outcome.done.failures.first();
        let workload =
            credential::deleting(&before.workload, generation, conditions, failure, &decision.verdict);
        return CoderWorkspaceProxyStatus { workload, ..next };
    }
    let rollout = Rollout::of(outcome.deployment.as_deref());
    set_control_plane_ready(&mut conditions, observed);
    set_credentials_ready(&mut conditions, observed);
    say_license(&mut conditions, observed);
    next.registered = Some(say_registration(&mut conditions, observed, decision));
    let standing = CredentialStanding {
        verdict: &decision.verdict,
        said_good: next.registered == Some(true),
        gate: observed.gate.as_ref(),
        can_run: outcome.deployment.is_some() || observed.image().is_some(),
        rollout: &rollout,
        pod_message: outcome.pod_message.as_deref(),
    };
    let not_ready = standing.not_ready().or_else(|| outcome.exposure.verdict());
    let hindered = not_ready.is_some() || !outcome.done.failures.is_empty();
    conditions.set_common(&outcome.done, not_ready.unwrap_or_else(|| standing.ready()));
    if !hindered {
        say_doubt(&mut conditions, &decision.verdict, generation);
    }
    let (reason, message) = if outcome.service {
        (Reason::ServiceWritten, "the Service is written")
    } else {
        (Reason::Pending, "waiting for the Service to be written")
    };
    conditions.set(kind::SERVICE_READY, outcome.service, reason, message);
    workload::set_deployment_ready(&mut conditions, &rollout, outcome.pod_message.as_deref());
    outcome.exposure.set_conditions(object.spec.expose.as_ref(), &mut conditions);
    say_health(&mut conditions, &mut next, observed, health, rollout.ready > 0, now);
    conditions.clear(kind::PAUSED);
    if let Ok(found) = &observed.sources {
        next.access_url = addresses(object).settled(&object.spec.pod, found).shown;
    }
    let deployment = outcome.deployment.as_deref();
    let workload = workload::status(&before.workload, generation, deployment, &rollout, conditions);
    CoderWorkspaceProxyStatus { workload, ..next }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
pub fn paused(object: &CoderWorkspaceProxy, now: Timestamp) -> CoderWorkspaceProxyStatus {
    let mut status = object.status.clone().unwrap_or_default();
    workload::set_paused(&mut status.workload, object.metadata.generation, now, |_| {});
    status
}

fn set_control_plane_ready(conditions: &mut Conditions<'_>, observed: &Observed) {
    let Some(reference) = &observed.object.spec.control_plane_ref else {
        return conditions.clear(kind::CONTROL_PLANE_READY);
    };
    let name = reference.name.as_str();
    let usable = control_plane(name, observed.control_plane.as_deref());
    credential::set_control_plane_ready(conditions, name, usable);
}

/// The control plane, if the proxy can register through it.
pub fn control_plane<'a>(
    name: &str,
    plane: Option<&'a CoderControlPlane>,
) -> Result<&'a CoderControlPlane, Blocker> {
    let deployment_id = plane.and_then(|plane| plane.status.as_ref()?.deployment_id.as_ref());
    credential::usable(name, plane, deployment_id)
}

fn set_credentials_ready(conditions: &mut Conditions<'_>, observed: &Observed) {
    match &observed.credentials {
        None => conditions.clear(kind::CREDENTIALS_READY),
        Some(found) => {
            let ready = (Reason::CredentialsAvailable, "the operator has a token to register the proxy with");
            credential::set_credentials_ready(conditions, kind::CREDENTIALS_READY, found, ready);
        }
    }
}

fn say_license(conditions: &mut Conditions<'_>, observed: &Observed) {
    match &observed.gate {
        None => conditions.clear(kind::ENTITLED),
        Some(gate) => conditions.set(kind::ENTITLED, gate.state(), gate.reason, gate.message.clone()),
    }
}

/// Says how things stand with the registration, and returns whether there is one.
fn say_registration(conditions: &mut Conditions<'_>, observed: &Observed, decision: &Decision) -> bool {
    let verdict = &decision.verdict;
    if observed.gate.is_some() {
        verdict.set_conditions(conditions, &CONDITIONS);
        return conditions.said(kind::REGISTERED).is_some_and(|said| said.status == "True");
    }
    conditions.clear(kind::REGISTERED);
    conditions.set(kind::TOKEN_SECRET_READY, verdict.is_ready(), verdict.reason, verdict.message.clone());
    false
}

/// Says that an edit may not have reached coderd yet. What coderd shows of a proxy is on record nowhere else, so nobody
/// knows before it answers.
fn say_doubt(conditions: &mut Conditions<'_>, verdict: &CredentialVerdict, generation: Option<i64>) {
    let edited = conditions.said(kind::REGISTERED).is_some_and(|said| said.observed_generation != generation);
    if verdict.stage == CredentialProgress::Unsure && edited {
        conditions.set(kind::RECONCILING, true, verdict.reason, verdict.message.clone());
    }
}

/// Says what coderd sees of the proxy. It is written only when it is something else than before: that it was asked again
/// is no news.
fn say_health(
    conditions: &mut Conditions<'_>,
    next: &mut CoderWorkspaceProxyStatus,
    observed: &Observed,
    health: Option<&Health>,
    any_pod_ready: bool,
    now: Timestamp,
) {
    if observed.gate.is_none() {
        conditions.clear(kind::HEALTHY);
        (next.health, next.health_last_checked, next.version) = (None, None, None);
        return;
    }
    let Some(Health { status, version }) = health else {
        // Pods that became ready, or no longer are, change what a proxy that never reported waits for.
        if next.health.as_deref() == Some(UNREGISTERED) {
            let (reason, message) = unreported(any_pod_ready);
            let is_said = conditions.said(kind::HEALTHY).is_some_and(|said| Reason::of(said) == Some(reason));
            if !is_said {
                conditions.set(kind::HEALTHY, false, reason, message);
            }
        }
        return;
    };
    let known = (next.health.as_ref(), next.version.as_ref());
    if known != (Some(status), version.as_ref()) {
        next.health_last_checked = Some(Time(whole_seconds(now)));
    }
    next.health = Some(status.clone());
    next.version.clone_from(version);
    let (state, (reason, message)) = match status.as_str() {
        "ok" => (ConditionStatus::True, (Reason::Healthy, "coderd reaches the proxy")),
        UNREGISTERED => (ConditionStatus::False, unreported(any_pod_ready)),
        "unreachable" => {
            let message = "coderd does not reach the proxy at status.accessURL: check DNS, network policies and \
                           certificates on the way";
            (ConditionStatus::False, (Reason::Unreachable, message))
        }
        "unhealthy" => {
            let message =
                "the proxy reports errors to coderd: see the dashboard of coderd and the logs of the pods";
            (ConditionStatus::False, (Reason::Unhealthy, message))
        }
        _ => (ConditionStatus::Unknown, (Reason::Unknown, "waiting for coderd to check the proxy")),
    };
    conditions.set(kind::HEALTHY, state, reason, message);
}

/// What coderd calls a registration whose proxy has never run: no pod has told it its address and version.
const UNREGISTERED: &str = "unregistered";

/// What a proxy that never reported to coderd waits for.
fn unreported(any_pod_ready: bool) -> (Reason, &'static str) {
    if any_pod_ready {
        let message = "waiting for the pods to report to coderd, which has not heard from them yet; their logs say why if \
                       it stays";
        (Reason::NotReported, message)
    } else {
        (Reason::NoPodsReady, "waiting for a ready pod, which reports to coderd (condition DeploymentReady)")
    }
}
