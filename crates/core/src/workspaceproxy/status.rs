//! What a CoderWorkspaceProxy says about itself.

use std::sync::Arc;

use coder_k8s_api::{
    CoderControlPlane, CoderWorkspaceProxy, CoderWorkspaceProxyStatus, WorkloadStatus,
    condition::{kind, reason},
};
use jiff::Timestamp;
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Time};

use super::{
    Seen, addresses,
    registration::{Decision, Health, Next, TOLD},
};
use crate::{
    condition::{Conditions, State, whole_seconds},
    credential::{self, Standing},
    exposure::Exposure,
    finding::{Finding, Stage},
    object,
    outcome::Done,
    rollout::Rollout,
    workload,
};

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong with children.
    pub done: Done,
    /// Whether the Service is written.
    pub service: bool,
    /// Whether the pods have IPv6 addresses.
    pub ipv6: bool,
    /// The Deployment as it is now.
    pub deployment: Option<Arc<Deployment>>,
    /// What pods of a rollout that does not get on say.
    pub pods_say: Option<String>,
    /// What became of the exposure.
    pub exposure: Exposure,
}

/// Says how things stand after the plan was carried out as far as the outcome tells, and the registration as far as
/// decided.
pub fn status(
    seen: &Seen,
    outcome: &Outcome,
    decision: &Decision,
    health: Option<&Health>,
    now: Timestamp,
) -> CoderWorkspaceProxyStatus {
    let object = &*seen.object;
    let generation = object.metadata.generation;
    let before = object.status.clone().unwrap_or_default();
    let mut next = before.clone();
    if let Next::Record(record) = &decision.next {
        record.write(&mut next);
    }
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    if object::is_going(object) {
        credential::say_going(&mut conditions, outcome.done.failures.first(), &decision.finding);
        let workload = WorkloadStatus {
            observed_generation: generation,
            conditions: conditions.into_vec(),
            ..before.workload.clone()
        };
        return CoderWorkspaceProxyStatus { workload, ..next };
    }
    let rollout = Rollout::of(outcome.deployment.as_deref());
    say_control_plane(&mut conditions, seen);
    say_credentials(&mut conditions, seen);
    say_license(&mut conditions, seen);
    next.registered = Some(say_registration(&mut conditions, seen, decision));
    let standing = Standing {
        finding: &decision.finding,
        said_good: next.registered == Some(true),
        gate: seen.gate.as_ref(),
        can_run: outcome.deployment.is_some() || seen.image().is_some(),
        rollout: &rollout,
        pods_say: outcome.pods_say.as_deref(),
    };
    let hindrance = standing.hindrance().or_else(|| outcome.exposure.verdict());
    let hindered = hindrance.is_some() || !outcome.done.failures.is_empty();
    conditions.set_common(&outcome.done, hindrance.unwrap_or_else(|| standing.ready()));
    if !hindered {
        say_doubt(&mut conditions, &decision.finding, generation);
    }
    let (reason, message) = if outcome.service {
        ("ServiceWritten", "the Service is written")
    } else {
        (reason::PENDING, "the Service is not written yet")
    };
    conditions.set(kind::SERVICE_READY, outcome.service, reason, message);
    workload::say_rollout(&mut conditions, &rollout, outcome.pods_say.as_deref());
    outcome.exposure.tell(object.spec.expose.as_ref(), &mut conditions);
    say_health(&mut conditions, &mut next, seen, health, now);
    conditions.clear(kind::PAUSED);
    if let Ok(found) = &seen.sources {
        next.access_url = addresses(object).settled(&object.spec.pod, found).shown;
    }
    let deployment = outcome.deployment.as_deref();
    let workload = workload::status(&before.workload, generation, deployment, &rollout, conditions);
    CoderWorkspaceProxyStatus { workload, ..next }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
pub fn paused(object: &CoderWorkspaceProxy, now: Timestamp) -> CoderWorkspaceProxyStatus {
    let mut status = object.status.clone().unwrap_or_default();
    workload::say_paused(&mut status.workload, object.metadata.generation, now);
    status
}

fn say_control_plane(conditions: &mut Conditions<'_>, seen: &Seen) {
    match &seen.object.spec.control_plane_ref {
        None => conditions.clear(kind::CONTROL_PLANE_READY),
        Some(reference) => {
            let name = reference.name.as_str();
            credential::say_control_plane(
                conditions,
                name,
                control_plane(name, seen.control_plane.as_deref()),
            );
        }
    }
}

/// The control plane, if the proxy can register through it.
pub fn control_plane<'a>(
    name: &str,
    plane: Option<&'a CoderControlPlane>,
) -> Result<&'a CoderControlPlane, String> {
    let deployment_id = plane.and_then(|plane| plane.status.as_ref()?.deployment_id.as_ref());
    credential::usable(name, plane, deployment_id)
}

fn say_credentials(conditions: &mut Conditions<'_>, seen: &Seen) {
    match &seen.credentials {
        None => conditions.clear(kind::CREDENTIALS_READY),
        Some(Ok(())) => {
            let message = "there is a token to register the proxy with";
            conditions.set(kind::CREDENTIALS_READY, true, "CredentialsAvailable", message);
        }
        Some(Err(trouble)) => {
            conditions.set(kind::CREDENTIALS_READY, false, trouble.reason, trouble.message.clone());
        }
    }
}

fn say_license(conditions: &mut Conditions<'_>, seen: &Seen) {
    match &seen.gate {
        None => conditions.clear(kind::ENTITLED),
        Some(gate) => conditions.set(kind::ENTITLED, gate.state(), gate.reason, gate.message.clone()),
    }
}

/// Says how things stand with the registration, and returns whether there is one.
fn say_registration(conditions: &mut Conditions<'_>, seen: &Seen, decision: &Decision) -> bool {
    let finding = &decision.finding;
    if seen.gate.is_some() {
        finding.tell(conditions, &TOLD);
        return conditions.said(kind::REGISTERED).is_some_and(|said| said.status == "True");
    }
    conditions.clear(kind::REGISTERED);
    conditions.set(kind::TOKEN_SECRET_READY, finding.is_ready(), finding.reason, finding.message.clone());
    false
}

/// Says that an edit may not have reached coderd yet. What coderd shows of a proxy is on record nowhere else, so nobody
/// knows before it answers.
fn say_doubt(conditions: &mut Conditions<'_>, finding: &Finding, generation: Option<i64>) {
    let edited = conditions.said(kind::REGISTERED).is_some_and(|said| said.observed_generation != generation);
    if finding.stage == Stage::Unsure && edited {
        conditions.set(kind::RECONCILING, true, finding.reason, finding.message.clone());
    }
}

/// Says what coderd sees of the proxy. It is written only when it is something else than before: that it was asked again
/// is no news.
fn say_health(
    conditions: &mut Conditions<'_>,
    next: &mut CoderWorkspaceProxyStatus,
    seen: &Seen,
    health: Option<&Health>,
    now: Timestamp,
) {
    if seen.gate.is_none() {
        conditions.clear(kind::HEALTHY);
        (next.health, next.health_last_checked, next.version) = (None, None, None);
        return;
    }
    let Some(Health { status, version }) = health else { return };
    let known = (next.health.as_ref(), next.version.as_ref());
    if known != (Some(status), version.as_ref()) {
        next.health_last_checked = Some(Time(whole_seconds(now)));
    }
    next.health = Some(status.clone());
    next.version.clone_from(version);
    match status.as_str() {
        "ok" => conditions.set(kind::HEALTHY, true, "Healthy", "coderd reaches the proxy"),
        "unregistered" => {
            let message = "no pod of the proxy has registered with coderd yet";
            conditions.set(kind::HEALTHY, false, "Unregistered", message);
        }
        "unreachable" => {
            let message = "coderd does not reach the proxy at its access URL";
            conditions.set(kind::HEALTHY, false, "Unreachable", message);
        }
        "unhealthy" => {
            let message =
                "the proxy tells coderd of errors; coderd's dashboard and the log of the pods show them";
            conditions.set(kind::HEALTHY, false, "Unhealthy", message);
        }
        _ => {
            let message = "coderd has not looked at the proxy yet";
            conditions.set(kind::HEALTHY, State::Unknown, "Unknown", message);
        }
    }
}
