//! What the conditions report about a credential in coderd, and about an object that needs one.

use coder_k8s_api::{CoderControlPlane, Reason, WorkloadStatus, condition::condition_type};

use crate::{
    condition::{Conditions, Progress, Verdict},
    license_gate::{GateState, LicenseGate},
    outcome::Blocker,
    target::{Obstacle, SecretDataRef},
    workload::{self, Rollout},
};

/// The state of a credential, as conditions report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialVerdict {
    /// How far the credential has come.
    pub stage: CredentialProgress,
    /// For the condition.
    pub reason: Reason,
    /// For the condition. The same text on every retry, so that the status is not rewritten.
    pub message: String,
    /// Whether the wanted Secret holds the credential. None: not known, and the condition stays as it is.
    pub in_place: Option<bool>,
}

/// How far a credential has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialProgress {
    /// The credential is as the spec asks, and in its Secret.
    Ready,
    /// It is being made.
    Working,
    /// The state is unknown, or a blocker may pass. What works is left as it is.
    Unsure,
    /// Nothing moves until a person changes something.
    Stalled,
}

/// The condition types of one kind of credential.
#[derive(Clone, Copy, Debug)]
pub struct CredentialConditions {
    /// Whether coderd knows the credential.
    pub known: &'static str,
    /// Whether the Secret holds it.
    pub in_place: &'static str,
    /// Message of `in_place` when it is true.
    pub held: &'static str,
}

impl CredentialVerdict {
    pub(crate) fn ready(reason: Reason, message: impl Into<String>) -> Self {
        Self { stage: CredentialProgress::Ready, reason, message: message.into(), in_place: Some(true) }
    }

    pub(crate) fn working(reason: Reason, message: impl Into<String>) -> Self {
        Self { stage: CredentialProgress::Working, reason, message: message.into(), in_place: None }
    }

    pub(crate) fn unsure(blocker: &Blocker) -> Self {
        let Blocker { reason, message, retry: _ } = blocker;
        Self { stage: CredentialProgress::Unsure, reason: *reason, message: message.clone(), in_place: None }
    }

    pub(crate) fn stalled(reason: Reason, message: impl Into<String>) -> Self {
        Self { stage: CredentialProgress::Stalled, reason, message: message.into(), in_place: None }
    }

    /// The Secret cannot be written. `field` of the spec chooses another one.
    pub(crate) fn blocked(place: &SecretDataRef, obstacle: &Obstacle, field: &str) -> Self {
        let name = &place.name;
        let (reason, message) = match obstacle {
            Obstacle::Foreign(hand_over) => {
                let message = format!(
                    "Secret {name} exists and belongs to somebody else; choose another name with {field}, or hand it over \
                     with the annotation {hand_over}"
                );
                (Reason::ForeignObject, message)
            }
            Obstacle::Immutable => {
                let message = format!("Secret {name} is immutable; delete it, so that it is written anew");
                (Reason::SecretImmutable, message)
            }
        };
        Self { in_place: Some(false), ..Self::stalled(reason, message) }
    }

    /// Turns Unsure into Working if the recorded credential is not the one that the spec asks for, so that the object
    /// is not reported ready. `is_intact`: the Secret holds what was verified.
    pub(crate) fn weighed_against_record(self, is_wanted_on_record: bool, is_intact: bool) -> Self {
        match self.stage {
            CredentialProgress::Unsure if !is_wanted_on_record => {
                let in_place = if is_intact { self.in_place } else { Some(false) };
                Self { stage: CredentialProgress::Working, in_place, ..self }
            }
            _ => self,
        }
    }

    /// The same verdict with the blocker of the last effect as its reason.
    #[must_use]
    pub fn delayed(self, blocker: Blocker) -> Self {
        let Blocker { reason, message, retry: _ } = blocker;
        if self.is_ready() { self } else { Self { reason, message, ..self } }
    }

    /// Whether the credential is as the spec asks.
    pub fn is_ready(&self) -> bool {
        self.stage == CredentialProgress::Ready
    }

    /// Sets the conditions. Keeps a true condition when the current state is unknown.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>, types: &CredentialConditions) {
        let worked = |type_: &str| conditions.said(type_).is_some_and(|said| said.status == "True");
        let keep = self.stage == CredentialProgress::Unsure && worked(types.known);
        // Its generation stays too: a condition of this generation would count as verified.
        if !keep {
            conditions.set(types.known, self.is_ready(), self.reason, self.message.clone());
        }
        match self.in_place {
            Some(true) => conditions.set(types.in_place, true, Reason::SecretReady, types.held),
            Some(false) => conditions.set(types.in_place, false, self.reason, self.message.clone()),
            None => {}
        }
    }
}

/// What the Ready condition of an object rests on, once its children could be written.
#[derive(Clone, Copy, Debug)]
pub struct CredentialStanding<'a> {
    /// The state of the credential.
    pub verdict: &'a CredentialVerdict,
    /// Whether the condition of the credential is true on the status.
    pub said_good: bool,
    /// The license gate. None: this object needs no license.
    pub gate: Option<&'a LicenseGate>,
    /// Whether there is a Deployment, or an image to create one with.
    pub can_run: bool,
    /// The rollout of the Deployment.
    pub rollout: &'a Rollout,
    /// What pods that do not start report.
    pub pod_message: Option<&'a str>,
}

impl CredentialStanding<'_> {
    /// Why the object is not ready. None: it is.
    pub fn not_ready(&self) -> Option<Verdict> {
        let verdict = self.verdict;
        let good = verdict.is_ready() || (verdict.stage == CredentialProgress::Unsure && self.said_good);
        if !good {
            // Without a license nothing moves until somebody installs one.
            let closed =
                |gate: &LicenseGate| gate.state == GateState::Closed && verdict.reason == gate.reason;
            let stalled = verdict.stage == CredentialProgress::Stalled || self.gate.is_some_and(closed);
            let progress = if stalled { Progress::Stalled } else { Progress::Working };
            let message = verdict.message.clone();
            return Some(Verdict { ready: false, progress, reason: verdict.reason, message });
        }
        if !self.can_run {
            let message = "waiting for the control plane to roll out an image, because spec.image is not set"
                .to_owned();
            let (progress, reason) = (Progress::Working, Reason::Pending);
            return Some(Verdict { ready: false, progress, reason, message });
        }
        (!self.rollout.is_rolled_out()).then(|| workload::still_rolling_out(self.rollout, self.pod_message))
    }

    /// The verdict about an object that is ready.
    pub fn ready(&self) -> Verdict {
        let (reason, message) = (self.rollout.reason(), self.rollout.message());
        Verdict { ready: true, progress: Progress::Settled, reason, message }
    }
}

/// The status of an object that is being deleted: as it was, with what delays the deletion.
pub fn deleting(
    before: &WorkloadStatus,
    generation: Option<i64>,
    mut conditions: Conditions<'_>,
    failure: Option<&Blocker>,
    verdict: &CredentialVerdict,
) -> WorkloadStatus {
    let (reason, message) = match failure {
        Some(failure) => (failure.reason, failure.message.clone()),
        None => (verdict.reason, verdict.message.clone()),
    };
    conditions.set(condition_type::READY, false, Reason::Deleting, "the object is being deleted");
    conditions.set(condition_type::RECONCILING, true, reason, message);
    WorkloadStatus { observed_generation: generation, conditions: conditions.into_vec(), ..before.clone() }
}

/// Reports whether there are credentials to manage keys or proxies with.
pub fn set_credentials_ready(
    conditions: &mut Conditions<'_>,
    type_: &str,
    credentials: &Result<(), Blocker>,
    (reason, message): (Reason, &str),
) {
    match credentials {
        Ok(()) => conditions.set(type_, true, reason, message),
        Err(blocker) => conditions.set(type_, false, blocker.reason, blocker.message.clone()),
    }
}

/// The control plane that an object names, if it exists and its deployment ID is known.
pub fn usable<'a>(
    name: &str,
    plane: Option<&'a CoderControlPlane>,
    deployment_id: Option<&String>,
) -> Result<&'a CoderControlPlane, Blocker> {
    let Some(plane) = plane else {
        let message = format!(
            "CoderControlPlane {name} does not exist: create it, or correct spec.controlPlaneRef.name"
        );
        return Err(Blocker::new(Reason::ControlPlaneUnavailable, message));
    };
    if deployment_id.is_none() {
        let message = format!("waiting for coderd of CoderControlPlane {name} to answer for the first time");
        return Err(Blocker::new(Reason::AwaitingControlPlane, message));
    }
    Ok(plane)
}

/// Reports whether the control plane can be used.
pub fn set_control_plane_ready<T>(conditions: &mut Conditions<'_>, name: &str, usable: Result<T, Blocker>) {
    let (ready, reason, message) = match usable {
        Ok(_) => {
            (true, Reason::ControlPlaneAvailable, format!("coderd of CoderControlPlane {name} has answered"))
        }
        Err(Blocker { reason, message, .. }) => (false, reason, message),
    };
    conditions.set(condition_type::CONTROL_PLANE_READY, ready, reason, message);
}
