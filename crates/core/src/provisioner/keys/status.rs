//! The record as the status of a CoderProvisioner holds it.
//!
//! Fields that the existing operator writes are read as it leaves them: a part may be missing.

use coder_k8s_api::{self as api, CoderProvisionerStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    record::{KeyIntent, KeyRecord, ProvisionerKeyRecord, RetiredKey},
    target::{CoderdTarget, Credentials, Organization, SecretDataRef},
};

/// The data key where none is recorded.
const DATA_KEY: &str = "key";

impl KeyRecord {
    /// What a status remembers.
    pub fn of(status: &CoderProvisionerStatus) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let place = CoderdTarget {
            control_plane: text(&status.control_plane_ref_name),
            url: text(&status.control_plane_url),
            deployment_id: status.deployment_id.clone(),
            credentials: Credentials::of(status.credentials_source.as_ref()),
        };
        let current = status.provisioner_key_name.as_ref().filter(|name| !name.is_empty()).map(|name| {
            ProvisionerKeyRecord {
                id: status.provisioner_key_id.clone().filter(|id| !id.is_empty()),
                name: name.clone(),
                organization: organization(
                    status.organization_id.as_ref(),
                    status.organization_name.as_ref(),
                ),
                tags_hash: status.tags_hash.clone(),
                place,
            }
        });
        Self {
            current,
            secret: status.secret_ref.as_ref().map(|secret| SecretDataRef::of(secret, DATA_KEY)),
            pending: status.pending_key.as_ref().map(pending),
            stale: status.stale_keys.iter().map(stale).collect(),
        }
    }

    /// Writes it into a status.
    pub fn write(&self, status: &mut CoderProvisionerStatus) {
        let Self { current, secret, pending, stale } = self;
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let key = current.as_ref();
        status.provisioner_key_id = key.and_then(|key| key.id.clone());
        status.provisioner_key_name = key.map(|key| key.name.clone());
        status.organization_id = key.and_then(|key| key.organization.id.clone());
        status.organization_name = key.and_then(|key| some(&key.organization.name));
        status.tags_hash = key.and_then(|key| key.tags_hash.clone());
        status.control_plane_ref_name = key.and_then(|key| some(&key.place.control_plane));
        status.control_plane_url = key.and_then(|key| some(&key.place.url));
        status.deployment_id = key.and_then(|key| key.place.deployment_id.clone());
        status.credentials_source =
            key.and_then(|key| key.place.credentials.as_ref()).map(Credentials::source);
        status.secret_ref = secret.as_ref().map(SecretDataRef::reported);
        status.pending_key = pending.as_ref().map(pending_key);
        status.stale_keys = stale.iter().map(stale_key).collect();
    }
}

fn organization(id: Option<&String>, name: Option<&String>) -> Organization {
    let id = id.cloned().filter(|id| !id.is_empty());
    Organization { id, name: name.cloned().unwrap_or_default() }
}

/// A time that a lost field cannot make younger: nothing was made before it.
fn time(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::MAX, |time| time.0)
}

fn pending(key: &api::PendingKey) -> KeyIntent {
    let place = CoderdTarget {
        control_plane: key.control_plane_ref_name.clone().unwrap_or_default(),
        url: key.control_plane_url.clone().unwrap_or_default(),
        deployment_id: key.deployment_id.clone(),
        credentials: Credentials::of(key.credentials_source.as_ref()),
    };
    KeyIntent {
        name: key.name.clone(),
        id: key.id.clone().filter(|id| !id.is_empty()),
        organization: organization(key.organization_id.as_ref(), key.organization_name.as_ref()),
        tags_hash: key.tags_hash.clone().unwrap_or_default(),
        place,
        reason: key.reason.clone().unwrap_or_default(),
        since: time(key.since.as_ref()),
    }
}

fn pending_key(key: &KeyIntent) -> api::PendingKey {
    let KeyIntent { name, id, organization, tags_hash, place, reason, since } = key;
    api::PendingKey {
        name: name.clone(),
        id: id.clone(),
        organization_id: organization.id.clone(),
        organization_name: Some(organization.name.clone()),
        tags_hash: Some(tags_hash.clone()),
        control_plane_ref_name: Some(place.control_plane.clone()),
        control_plane_url: Some(place.url.clone()),
        deployment_id: place.deployment_id.clone(),
        credentials_source: place.credentials.as_ref().map(Credentials::source),
        reason: Some(reason.clone()),
        since: Some(Time(*since)),
    }
}

fn stale(stale: &api::StaleKey) -> RetiredKey {
    let place = CoderdTarget {
        control_plane: stale.control_plane_ref_name.clone().unwrap_or_default(),
        url: stale.control_plane_url.clone().unwrap_or_default(),
        deployment_id: stale.deployment_id.clone(),
        credentials: Credentials::of(stale.credentials_source.as_ref()),
    };
    let key = ProvisionerKeyRecord {
        id: stale.id.clone().filter(|id| !id.is_empty()),
        name: stale.name.clone(),
        organization: organization(stale.organization_id.as_ref(), stale.organization_name.as_ref()),
        tags_hash: stale.tags_hash.clone(),
        place,
    };
    let unused_since = stale.unused_since.as_ref().map(|time| time.0);
    RetiredKey { key, since: time(stale.since.as_ref()), unused_since }
}

fn stale_key(stale: &RetiredKey) -> api::StaleKey {
    let RetiredKey { key, since, unused_since } = stale;
    let ProvisionerKeyRecord { id, name, organization, tags_hash, place } = key;
    api::StaleKey {
        name: name.clone(),
        id: id.clone(),
        organization_id: organization.id.clone(),
        organization_name: Some(organization.name.clone()).filter(|name| !name.is_empty()),
        tags_hash: tags_hash.clone(),
        control_plane_ref_name: Some(place.control_plane.clone()).filter(|name| !name.is_empty()),
        control_plane_url: Some(place.url.clone()).filter(|url| !url.is_empty()),
        deployment_id: place.deployment_id.clone(),
        credentials_source: place.credentials.as_ref().map(Credentials::source),
        since: Some(Time(*since)),
        unused_since: unused_since.map(Time),
    }
}
