//! The status of a pod, from the state of its containers. Pure.
//!
//! Times and restart counts are taken from the present status, so that the result equals it if nothing has changed.
//! Conditions of others are never touched.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::Behaviour;
use super::container::{Ended, Observed, Phase};

const OWN_CONDITIONS: [&str; 4] = ["PodScheduled", "Initialized", "ContainersReady", "Ready"];

/// State of a container: set by a rule, or observed from its process.
pub(super) enum StateSource {
    Told(Behaviour),
    Observed(Observed),
}

/// The status to report. `None` for a pod that does not exist or has finished.
pub(super) fn desired(
    pod: &Pod,
    ip: Ipv4Addr,
    host_ip: &str,
    now: Timestamp,
    state_of: impl Fn(&Container) -> StateSource,
) -> Option<PodStatus> {
    let spec = pod.spec.as_ref()?;
    let mut status = pod.status.clone().unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let now = Time(now);

    let init: Vec<_> = spec
        .init_containers
        .iter()
        .flatten()
        .map(|container| {
            let previous = find(status.init_container_statuses.as_ref(), &container.name);
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            match state_of(container) {
                StateSource::Told(Behaviour::Ready | Behaviour::Unready) if !sidecar => {
                    completed(container, previous, &now)
                }
                StateSource::Told(behaviour) => running(container, behaviour, previous, &now),
                StateSource::Observed(seen) => observed(container, seen, previous),
            }
        })
        .collect();
    let initialized = init.iter().all(|status| !is_waiting(status));
    let containers: Vec<_> = spec
        .containers
        .iter()
        .map(|container| {
            let previous = find(status.container_statuses.as_ref(), &container.name);
            match state_of(container) {
                _ if !initialized => waiting(container, previous, "PodInitializing", None),
                StateSource::Told(behaviour) => running(container, behaviour, previous, &now),
                StateSource::Observed(seen) => observed(container, seen, previous),
            }
        })
        .collect();

    let unready: Vec<_> =
        containers.iter().filter(|status| !status.ready).map(|status| status.name.as_str()).collect();
    let unready = (!unready.is_empty())
        .then(|| ("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" "))));
    let uninitialized =
        (!initialized).then(|| ("ContainersNotInitialized", String::from("init containers are waiting")));
    let unborn = ["ImagePullBackOff", "ContainerCreating", "CreateContainerConfigError"];
    let pending =
        containers.iter().any(|status| reason(status).is_some_and(|reason| unborn.contains(&reason)));
    let conditions = status.conditions.get_or_insert_default();
    for (type_, problem) in [
        ("PodScheduled", None),
        ("Initialized", uninitialized),
        ("ContainersReady", unready.clone()),
        ("Ready", unready),
    ] {
        set_condition(conditions, type_, problem, &now);
    }
    status.phase = Some(if pending || !initialized { "Pending" } else { "Running" }.into());
    status.start_time.get_or_insert(now);
    status.host_ip = Some(host_ip.into());
    status.host_ips = Some(vec![HostIP { ip: host_ip.into() }]);
    status.pod_ip = Some(ip.to_string());
    status.pod_ips = Some(vec![PodIP { ip: ip.to_string() }]);
    status.container_statuses = Some(containers);
    if !init.is_empty() {
        status.init_container_statuses = Some(init);
    }
    Some(status)
}

/// The strategic merge patch to this status. It contains the uid of the pod, so that a successor with the same name
/// never gets it.
pub(super) fn patch(pod: &Pod, desired: &PodStatus) -> Value {
    let conditions: Vec<_> = desired
        .conditions
        .iter()
        .flatten()
        .filter(|condition| OWN_CONDITIONS.contains(&condition.type_.as_str()))
        .map(|PodCondition { type_, status, reason, message, last_transition_time, .. }| {
            // A strategic merge patch merges conditions by type, so a field to be removed must be named with null.
            json!({
                "type": type_, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": last_transition_time,
            })
        })
        .collect();
    json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": {
            "phase": desired.phase,
            "conditions": conditions,
            "startTime": desired.start_time,
            "hostIP": desired.host_ip,
            "hostIPs": desired.host_ips,
            "podIP": desired.pod_ip,
            "podIPs": desired.pod_ips,
            "containerStatuses": desired.container_statuses,
            "initContainerStatuses": desired.init_container_statuses,
        },
    })
}

fn set_condition(
    conditions: &mut Vec<PodCondition>,
    type_: &str,
    problem: Option<(&str, String)>,
    now: &Time,
) {
    let status = if problem.is_none() { "True" } else { "False" };
    let (reason, message) = problem.map(|(reason, message)| (reason.to_owned(), message)).unzip();
    let condition = match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(condition) => condition,
        None => conditions.push_mut(PodCondition { type_: type_.into(), ..PodCondition::default() }),
    };
    if condition.status != status {
        status.clone_into(&mut condition.status);
        condition.last_transition_time = Some(now.clone());
    }
    condition.reason = reason;
    condition.message = message;
}

fn running(
    container: &Container,
    behaviour: Behaviour,
    previous: Option<&ContainerStatus>,
    now: &Time,
) -> ContainerStatus {
    let ready = match behaviour {
        Behaviour::Ready => true,
        Behaviour::Unready => false,
        Behaviour::ImagePullBackOff => {
            let image = container.image.as_deref().unwrap_or_default();
            return waiting(
                container,
                previous,
                "ImagePullBackOff",
                Some(format!("Back-off pulling image \"{image}\"")),
            );
        }
        Behaviour::CrashLoop => return crashing(container, previous, now),
    };
    let since = previous
        .and_then(|status| status.state.as_ref()?.running.as_ref()?.started_at.clone())
        .unwrap_or_else(|| now.clone());
    ContainerStatus {
        ready,
        started: Some(true),
        state: Some(ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(since) }),
            ..ContainerState::default()
        }),
        ..base(container, previous)
    }
}

fn observed(container: &Container, seen: Observed, previous: Option<&ContainerStatus>) -> ContainerStatus {
    let Observed { phase, restarts, last } = seen;
    let status = match phase {
        Phase::Waiting { reason, message } => {
            waiting(container, previous, reason, Some(message).filter(|message| !message.is_empty()))
        }
        Phase::Running { since, started, ready } => ContainerStatus {
            ready,
            started: Some(started),
            state: Some(ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(Time(since)) }),
                ..ContainerState::default()
            }),
            ..base(container, previous)
        },
    };
    let last = last.map(|Ended { exit_code, began, finished }| ContainerStateTerminated {
        exit_code,
        reason: Some(if exit_code == 0 { "Completed" } else { "Error" }.into()),
        started_at: Some(Time(began)),
        finished_at: Some(Time(finished)),
        ..ContainerStateTerminated::default()
    });
    ContainerStatus {
        restart_count: restarts,
        last_state: last.map(|last| ContainerState { terminated: Some(last), ..ContainerState::default() }),
        ..status
    }
}

fn waiting(
    container: &Container,
    previous: Option<&ContainerStatus>,
    reason: &str,
    message: Option<String>,
) -> ContainerStatus {
    ContainerStatus {
        started: Some(false),
        state: Some(ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message }),
            ..ContainerState::default()
        }),
        ..base(container, previous)
    }
}

fn crashing(container: &Container, previous: Option<&ContainerStatus>, now: &Time) -> ContainerStatus {
    let name = &container.name;
    let message = format!("back-off restarting failed container {name}");
    let last = previous
        .and_then(|status| status.last_state.as_ref()?.terminated.clone())
        .unwrap_or_else(|| terminated(1, "Error", now));
    ContainerStatus {
        restart_count: previous.map_or(0, |status| status.restart_count).max(1),
        last_state: Some(ContainerState { terminated: Some(last), ..ContainerState::default() }),
        ..waiting(container, previous, "CrashLoopBackOff", Some(message))
    }
}

fn completed(container: &Container, previous: Option<&ContainerStatus>, now: &Time) -> ContainerStatus {
    let ended = previous
        .and_then(|status| status.state.as_ref()?.terminated.clone())
        .unwrap_or_else(|| terminated(0, "Completed", now));
    ContainerStatus {
        ready: true,
        started: Some(false),
        state: Some(ContainerState { terminated: Some(ended), ..ContainerState::default() }),
        ..base(container, previous)
    }
}

fn terminated(exit_code: i32, reason: &str, now: &Time) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code,
        reason: Some(reason.into()),
        started_at: Some(now.clone()),
        finished_at: Some(now.clone()),
        ..ContainerStateTerminated::default()
    }
}

fn base(container: &Container, previous: Option<&ContainerStatus>) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        restart_count: previous.map_or(0, |status| status.restart_count),
        last_state: previous.and_then(|status| status.last_state.clone()),
        ..ContainerStatus::default()
    }
}

fn find<'a>(statuses: Option<&'a Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    statuses?.iter().find(|status| status.name == name)
}

fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.waiting.is_some())
}

fn reason(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

#[cfg(test)]
mod tests;
