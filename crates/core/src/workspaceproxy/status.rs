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
    registration::{Decision, Health, Next, Stage, TOLD},
};
use crate::{
    condition::{Conditions, Progress, State, Verdict, whole_seconds},
    exposure::Exposure,
    gate::{self, Gate},
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
        say_going(&mut conditions, outcome, decision);
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
    let good = decision.finding.is_ready()
        || (decision.finding.stage == Stage::Unsure && next.registered == Some(true));
    conditions.set_common(&outcome.done, verdict(seen, outcome, &rollout, decision, good));
    let (reason, message) = if outcome.service {
        ("ServiceWritten", "the Service is written")
    } else {
        (reason::PENDING, "the Service is not written yet")
    };
    conditions.set(kind::SERVICE_READY, outcome.service, reason, message);
    workload::say_rollout(&mut conditions, &rollout, outcome.pods_say.as_deref());
    outcome.exposure.tell(object.spec.expose.as_ref(), &mut conditions);
    say_health(&mut conditions, &mut next, seen, decision, now);
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

/// Whether the object is as its spec asks, if nothing failed. `good`: whether the token is.
fn verdict(seen: &Seen, outcome: &Outcome, rollout: &Rollout, decision: &Decision, good: bool) -> Verdict {
    let finding = &decision.finding;
    if !good {
        let closed = |gate: &Gate| gate.verdict == gate::Verdict::Closed && finding.reason == gate.reason;
        // Without a license nothing moves until somebody installs one.
        let stalled = finding.stage == Stage::Stalled || seen.gate.as_ref().is_some_and(closed);
        let progress = if stalled { Progress::Stalled } else { Progress::Working };
        return Verdict { ready: false, progress, reason: finding.reason, message: finding.message.clone() };
    }
    if outcome.deployment.is_none() && seen.image().is_none() {
        let message =
            "the control plane has not rolled out an image yet, and spec.image is not set".to_owned();
        return Verdict { ready: false, progress: Progress::Working, reason: reason::PENDING, message };
    }
    if !rollout.is_settled() {
        return workload::unsettled(rollout, outcome.pods_say.as_deref());
    }
    if let Some(waiting) = outcome.exposure.verdict() {
        return waiting;
    }
    Verdict { ready: true, progress: Progress::Settled, reason: rollout.reason(), message: rollout.message() }
}

fn say_going(conditions: &mut Conditions<'_>, outcome: &Outcome, decision: &Decision) {
    let (reason, message) = match outcome.done.failures.first() {
        Some(failure) => (failure.reason, failure.message.clone()),
        None => (decision.finding.reason, decision.finding.message.clone()),
    };
    conditions.set(kind::READY, false, reason::DELETING, "the object is being deleted");
    conditions.set(kind::RECONCILING, true, reason, message);
}

fn say_control_plane(conditions: &mut Conditions<'_>, seen: &Seen) {
    let Some(reference) = &seen.object.spec.control_plane_ref else {
        conditions.clear(kind::CONTROL_PLANE_READY);
        return;
    };
    let name = &reference.name;
    let answered = |plane: &CoderControlPlane| {
        plane.status.as_ref().is_some_and(|status| status.deployment_id.is_some())
    };
    let (ready, reason, message) = match seen.control_plane.as_deref() {
        None => (false, "ControlPlaneUnavailable", format!("CoderControlPlane {name} does not exist")),
        Some(plane) if !answered(plane) => {
            (false, "ControlPlaneUnavailable", format!("CoderControlPlane {name} has not answered yet"))
        }
        Some(_) => (true, "ControlPlaneAvailable", format!("{name} can be used")),
    };
    conditions.set(kind::CONTROL_PLANE_READY, ready, reason, message);
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

/// Says what coderd sees of the proxy. It is written only when it is something else than before: that it was asked again
/// is no news.
fn say_health(
    conditions: &mut Conditions<'_>,
    next: &mut CoderWorkspaceProxyStatus,
    seen: &Seen,
    decision: &Decision,
    now: Timestamp,
) {
    if seen.gate.is_none() {
        conditions.clear(kind::HEALTHY);
        (next.health, next.health_last_checked, next.version) = (None, None, None);
        return;
    }
    let Some(Health { status, version }) = &decision.health else { return };
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
