//! The record as the status of a CoderWorkspaceProxy holds it.
//!
//! The existing operator writes where the token is and nothing else: a token tells which registration it is for.

use coder_k8s_api::{self as api, CoderWorkspaceProxyStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::record::{RegistrationIntent, RegistrationRecord, RegistrationRef, RetiredRegistration};
use crate::target::{CoderdTarget, Credentials, SecretDataRef};

/// The data key where none is recorded.
const TOKEN: &str = "token";

impl RegistrationRecord {
    /// What a status remembers.
    pub fn of(status: &CoderWorkspaceProxyStatus) -> Self {
        let place = CoderdTarget {
            control_plane: status.control_plane_ref_name.clone().unwrap_or_default(),
            url: status.coder_url.clone().unwrap_or_default(),
            deployment_id: status.deployment_id.clone(),
            credentials: Credentials::of(status.credentials_source.as_ref()),
        };
        let id = status.proxy_id.clone().filter(|id| !id.is_empty());
        let name = status.proxy_name.clone().unwrap_or_default();
        Self {
            current: id.map(|id| RegistrationRef { id, name, place }),
            secret: status.proxy_token_secret_ref.as_ref().map(|secret| SecretDataRef::of(secret, TOKEN)),
            pending: status.pending_registration.as_ref().map(pending),
            stale: status.stale_registrations.iter().map(pending).map(stale).collect(),
        }
    }

    /// Writes it into a status.
    pub fn write(&self, status: &mut CoderWorkspaceProxyStatus) {
        let Self { current, secret, pending, stale } = self;
        let place = current.as_ref().map(|current| &current.place);
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        status.proxy_id = current.as_ref().map(|current| current.id.clone());
        status.proxy_name = current.as_ref().map(|current| current.name.clone());
        status.control_plane_ref_name = place.and_then(|place| some(&place.control_plane));
        status.coder_url = place.and_then(|place| some(&place.url));
        status.deployment_id = place.and_then(|place| place.deployment_id.clone());
        status.credentials_source =
            place.and_then(|place| place.credentials.as_ref()).map(Credentials::source);
        status.proxy_token_secret_ref = secret.as_ref().map(SecretDataRef::reported);
        status.pending_registration = pending.as_ref().map(shown);
        status.stale_registrations = stale.iter().map(|stale| shown(&announced(stale))).collect();
    }
}

fn pending(shown: &api::PendingRegistration) -> RegistrationIntent {
    RegistrationIntent {
        name: shown.name.clone(),
        id: shown.id.clone().filter(|id| !id.is_empty()),
        place: CoderdTarget {
            control_plane: shown.control_plane_ref_name.clone().unwrap_or_default(),
            url: shown.coder_url.clone().unwrap_or_default(),
            deployment_id: shown.deployment_id.clone(),
            credentials: Credentials::of(shown.credentials_source.as_ref()),
        },
        reason: shown.reason.clone().unwrap_or_default(),
        // A time that was lost makes nothing ours: nothing was made after it.
        since: shown.since.as_ref().map_or(Timestamp::MAX, |time| time.0),
    }
}

fn shown(pending: &RegistrationIntent) -> api::PendingRegistration {
    let RegistrationIntent { name, id, place, reason, since } = pending;
    let CoderdTarget { control_plane, url, deployment_id, credentials } = place;
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    api::PendingRegistration {
        name: name.clone(),
        id: id.clone(),
        control_plane_ref_name: some(control_plane),
        coder_url: some(url),
        deployment_id: deployment_id.clone(),
        credentials_source: credentials.as_ref().map(Credentials::source),
        reason: some(reason),
        since: Some(Time(*since)),
    }
}

fn stale(pending: RegistrationIntent) -> RetiredRegistration {
    let RegistrationIntent { name, id, place, reason: _, since } = pending;
    RetiredRegistration { id, name, place, since }
}

fn announced(stale: &RetiredRegistration) -> RegistrationIntent {
    let RetiredRegistration { id, name, place, since } = stale.clone();
    RegistrationIntent { name, id, place, reason: String::new(), since }
}
