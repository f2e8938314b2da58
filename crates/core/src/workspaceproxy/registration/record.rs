//! What the status of a CoderWorkspaceProxy remembers of registrations.
//!
//! The Go operator writes where the token is and nothing else: a token tells which registration it is for.

use coder_k8s_api::{self as api, CoderWorkspaceProxyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    credential::{CredentialRef, Details, Intent, Record, Retired, recorded_time, reported_target},
    target::{CoderdTarget, SecretDataRef, nonempty},
};

/// The data key where none is recorded.
const TOKEN: &str = "token";

/// What status remembers of the registrations of a proxy.
pub type RegistrationRecord = Record<RegistrationDetails>;
/// A registration. The current one always has a UUID.
pub type RegistrationRef = CredentialRef<RegistrationDetails>;
/// A registration, or a token of one, that is about to be made.
pub type RegistrationIntent = Intent<RegistrationDetails>;
/// A registration that is no longer wanted.
pub type RetiredRegistration = Retired<RegistrationDetails>;

/// A registration has nothing of its own to record: coderd regenerates its token in place and renames it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegistrationDetails;

impl Details for RegistrationDetails {
    const MADE_ANEW: bool = false;
}

impl RegistrationRef {
    /// A registration by its UUID, or one that was perhaps made.
    pub fn new(id: Option<String>, name: String, target: CoderdTarget) -> Self {
        Self { id, name, target, details: RegistrationDetails }
    }
}

impl RegistrationRecord {
    /// Reads a status.
    pub fn of(status: &CoderWorkspaceProxyStatus) -> Self {
        let target = CoderdTarget::recorded(
            status.control_plane_ref_name.as_ref(),
            status.coder_url.as_ref(),
            status.deployment_id.as_ref(),
            status.credentials_source.as_ref(),
        );
        let name = status.proxy_name.clone().unwrap_or_default();
        let id = nonempty(status.proxy_id.as_ref());
        Self {
            current: id.map(|id| RegistrationRef::new(Some(id), name, target)),
            secret: status.proxy_token_secret_ref.as_ref().map(|secret| SecretDataRef::of(secret, TOKEN)),
            pending: status.pending_registration.as_ref().map(pending),
            stale: status.stale_registrations.iter().map(stale).collect(),
        }
    }

    /// Writes it into a status.
    pub fn write(&self, status: &mut CoderWorkspaceProxyStatus) {
        let Self { current, secret, pending, stale } = self;
        status.proxy_id = current.as_ref().and_then(|current| current.id.clone());
        status.proxy_name = current.as_ref().map(|current| current.name.clone());
        (status.control_plane_ref_name, status.coder_url, status.deployment_id, status.credentials_source) =
            reported_target(current.as_ref().map(|current| &current.target));
        status.proxy_token_secret_ref = secret.as_ref().map(SecretDataRef::reported);
        status.pending_registration = pending.as_ref().map(written);
        status.stale_registrations = stale
            .iter()
            .map(|Retired { credential, since, unused_since: _ }| {
                written(&Intent { credential: credential.clone(), reason: String::new(), since: *since })
            })
            .collect();
    }
}

fn pending(pending: &api::PendingRegistration) -> RegistrationIntent {
    let target = CoderdTarget::recorded(
        pending.control_plane_ref_name.as_ref(),
        pending.coder_url.as_ref(),
        pending.deployment_id.as_ref(),
        pending.credentials_source.as_ref(),
    );
    RegistrationIntent {
        credential: RegistrationRef::new(nonempty(pending.id.as_ref()), pending.name.clone(), target),
        reason: pending.reason.clone().unwrap_or_default(),
        since: recorded_time(pending.since.as_ref()),
    }
}

fn stale(stale: &api::PendingRegistration) -> RetiredRegistration {
    let Intent { credential, reason: _, since } = pending(stale);
    Retired { credential, since, unused_since: None }
}

fn written(intent: &RegistrationIntent) -> api::PendingRegistration {
    let Intent { credential: RegistrationRef { id, name, target, details: _ }, reason, since } = intent;
    let (control_plane_ref_name, coder_url, deployment_id, credentials_source) =
        reported_target(Some(target));
    api::PendingRegistration {
        name: name.clone(),
        id: id.clone(),
        control_plane_ref_name,
        coder_url,
        deployment_id,
        credentials_source,
        reason: nonempty(Some(reason)),
        since: Some(Time(*since)),
    }
}
