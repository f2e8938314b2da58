//! The conditions of an object with a credential in coderd, whatever the kind.

use coder_k8s_api::{CoderControlPlane, Reason, condition::kind};

use crate::{
    condition::{Conditions, Progress, Verdict},
    credential::{CredentialProgress, CredentialVerdict},
    license_gate::{self, LicenseGate},
    outcome::Blocker,
    rollout::Rollout,
    workload,
};

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
            let closed = |gate: &LicenseGate| {
                gate.state == license_gate::GateState::Closed && verdict.reason == gate.reason
            };
            let stalled = verdict.stage == CredentialProgress::Stalled || self.gate.is_some_and(closed);
            let progress = if stalled { Progress::Stalled } else { Progress::Working };
            let message = verdict.message.clone();
            return Some(Verdict { ready: false, progress, reason: verdict.reason, message });
        }
        if !self.can_run {
            let message =
                "the control plane has not rolled out an image yet, and spec.image is not set".to_owned();
            let (progress, reason) = (Progress::Working, Reason::Pending);
            return Some(Verdict { ready: false, progress, reason, message });
        }
        (!self.rollout.is_settled()).then(|| workload::unsettled(self.rollout, self.pod_message))
    }

    /// The verdict about an object that is ready.
    pub fn ready(&self) -> Verdict {
        let (reason, message) = (self.rollout.reason(), self.rollout.message());
        Verdict { ready: true, progress: Progress::Settled, reason, message }
    }
}

/// Reports that the object is being deleted, and what delays it.
pub fn set_deleting(conditions: &mut Conditions<'_>, failure: Option<&Blocker>, verdict: &CredentialVerdict) {
    let (reason, message) = match failure {
        Some(failure) => (failure.reason, failure.message.clone()),
        None => (verdict.reason, verdict.message.clone()),
    };
    conditions.set(kind::READY, false, Reason::Deleting, "the object is being deleted");
    conditions.set(kind::RECONCILING, true, reason, message);
}

/// The control plane that an object names, if it exists and its deployment ID is known.
pub fn usable<'a>(
    name: &str,
    plane: Option<&'a CoderControlPlane>,
    deployment_id: Option<&String>,
) -> Result<&'a CoderControlPlane, String> {
    let plane = plane.ok_or_else(|| format!("CoderControlPlane {name} does not exist"))?;
    match deployment_id {
        Some(_) => Ok(plane),
        None => Err(format!("CoderControlPlane {name} has not answered yet")),
    }
}

/// Reports whether the control plane can be used.
pub fn set_control_plane_ready<T>(conditions: &mut Conditions<'_>, name: &str, usable: Result<T, String>) {
    let (ready, reason, message) = match usable {
        Ok(_) => (true, Reason::ControlPlaneAvailable, format!("{name} can be used")),
        Err(message) => (false, Reason::ControlPlaneUnavailable, message),
    };
    conditions.set(kind::CONTROL_PLANE_READY, ready, reason, message);
}
