//! What the status of a CoderProvisioner remembers of keys.
//!
//! Fields that the Go operator writes are read as it leaves them: a part may be missing.

use coder_k8s_api::{self as api, CoderProvisionerStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    credential::{CredentialRef, Details, Intent, Record, Retired, recorded_time, reported_target},
    target::{CoderdTarget, SecretDataRef, nonempty},
};

/// The data key where none is recorded.
const DATA_KEY: &str = "key";

/// What status remembers of the keys of a pool.
pub type KeyRecord = Record<KeyDetails>;
/// A key.
pub type KeyRef = CredentialRef<KeyDetails>;
/// A key that is about to be made.
pub type KeyIntent = Intent<KeyDetails>;
/// A key that is no longer wanted.
pub type RetiredKey = Retired<KeyDetails>;

/// What is recorded of keys alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyDetails {
    /// The organization that the key belongs to.
    pub organization: Organization,
    /// Hash of its tags. None: a status of which a part was lost.
    pub tags_hash: Option<String>,
}

impl Details for KeyDetails {
    const MADE_ANEW: bool = true;

    fn shares_names(&self, other: &Self) -> bool {
        self.organization.is_same(&other.organization)
    }

    fn is_complete(&self) -> bool {
        self.organization.id.is_some()
    }
}

/// An organization.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Organization {
    /// UUID. None: coderd was not asked yet.
    pub id: Option<String>,
    /// What the spec called it. Several names can mean one: `default` is also what it is really called.
    pub name: String,
}

impl Organization {
    /// What coderd can find it by.
    pub fn word(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.name)
    }

    fn is_same(&self, other: &Self) -> bool {
        match (&self.id, &other.id) {
            (Some(one), Some(two)) => one == two,
            _ => self.name == other.name,
        }
    }

    fn recorded(id: Option<&String>, name: Option<&String>) -> Self {
        Self { id: nonempty(id), name: name.cloned().unwrap_or_default() }
    }
}

/// An organization of a coderd: what a listing of keys is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyScope {
    /// The coderd.
    pub target: CoderdTarget,
    /// The organization.
    pub organization: Organization,
}

impl KeyScope {
    /// Whether a key is in this organization of this coderd.
    pub fn holds(&self, key: &KeyRef) -> bool {
        self.organization.is_same(&key.details.organization) && self.target.is_same(&key.target)
    }
}

impl KeyRef {
    /// For people: enough to find it.
    pub(super) fn described(&self) -> String {
        let Self { id, name, target, details } = self;
        let id = id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
        let server = if target.url.is_empty() { "another coderd" } else { &target.url };
        format!("provisioner key {name}{id} in organization {} of {server}", details.organization.word())
    }
}

impl KeyRecord {
    /// Makes a proven key the current one. What was current before is to go.
    pub(super) fn promote(&mut self, key: KeyRef, secret: SecretDataRef, now: Timestamp) {
        let old = self.current.take().filter(|old| !old.is_same(&key));
        self.adopt(key);
        self.stale.extend(old.map(|credential| Retired { credential, since: now, unused_since: None }));
        self.secret = Some(secret);
    }

    /// Reads a status.
    pub fn of(status: &CoderProvisionerStatus) -> Self {
        let current = nonempty(status.provisioner_key_name.as_ref()).map(|name| KeyRef {
            id: nonempty(status.provisioner_key_id.as_ref()),
            name,
            target: CoderdTarget::recorded(
                status.control_plane_ref_name.as_ref(),
                status.control_plane_url.as_ref(),
                status.deployment_id.as_ref(),
                status.credentials_source.as_ref(),
            ),
            details: KeyDetails {
                organization: Organization::recorded(
                    status.organization_id.as_ref(),
                    status.organization_name.as_ref(),
                ),
                tags_hash: status.tags_hash.clone(),
            },
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
        let key = current.as_ref();
        let organization = key.map(|key| &key.details.organization);
        status.provisioner_key_id = key.and_then(|key| key.id.clone());
        status.provisioner_key_name = key.map(|key| key.name.clone());
        status.organization_id = organization.and_then(|organization| organization.id.clone());
        status.organization_name = nonempty(organization.map(|organization| &organization.name));
        status.tags_hash = key.and_then(|key| key.details.tags_hash.clone());
        (
            status.control_plane_ref_name,
            status.control_plane_url,
            status.deployment_id,
            status.credentials_source,
        ) = reported_target(key.map(|key| &key.target));
        status.secret_ref = secret.as_ref().map(SecretDataRef::reported);
        status.pending_key = pending.as_ref().map(pending_key);
        status.stale_keys = stale.iter().map(stale_key).collect();
    }
}

fn pending(key: &api::PendingKey) -> KeyIntent {
    let target = CoderdTarget::recorded(
        key.control_plane_ref_name.as_ref(),
        key.control_plane_url.as_ref(),
        key.deployment_id.as_ref(),
        key.credentials_source.as_ref(),
    );
    let organization = Organization::recorded(key.organization_id.as_ref(), key.organization_name.as_ref());
    let details = KeyDetails { organization, tags_hash: key.tags_hash.clone() };
    KeyIntent {
        credential: KeyRef { id: nonempty(key.id.as_ref()), name: key.name.clone(), target, details },
        reason: key.reason.clone().unwrap_or_default(),
        since: recorded_time(key.since.as_ref()),
    }
}

fn pending_key(intent: &KeyIntent) -> api::PendingKey {
    let KeyIntent { credential: KeyRef { id, name, target, details }, reason, since } = intent.clone();
    let KeyDetails { organization, tags_hash } = details;
    let (control_plane_ref_name, control_plane_url, deployment_id, credentials_source) =
        reported_target(Some(&target));
    api::PendingKey {
        name,
        id,
        organization_id: organization.id,
        organization_name: nonempty(Some(&organization.name)),
        tags_hash,
        control_plane_ref_name,
        control_plane_url,
        deployment_id,
        credentials_source,
        reason: Some(reason),
        since: Some(Time(since)),
    }
}

fn stale(stale: &api::StaleKey) -> RetiredKey {
    let target = CoderdTarget::recorded(
        stale.control_plane_ref_name.as_ref(),
        stale.control_plane_url.as_ref(),
        stale.deployment_id.as_ref(),
        stale.credentials_source.as_ref(),
    );
    let organization =
        Organization::recorded(stale.organization_id.as_ref(), stale.organization_name.as_ref());
    let details = KeyDetails { organization, tags_hash: stale.tags_hash.clone() };
    let credential = KeyRef { id: nonempty(stale.id.as_ref()), name: stale.name.clone(), target, details };
    let unused_since = stale.unused_since.as_ref().map(|time| time.0);
    RetiredKey { credential, since: recorded_time(stale.since.as_ref()), unused_since }
}

fn stale_key(stale: &RetiredKey) -> api::StaleKey {
    let RetiredKey { credential: KeyRef { id, name, target, details }, since, unused_since } = stale.clone();
    let KeyDetails { organization, tags_hash } = details;
    let (control_plane_ref_name, control_plane_url, deployment_id, credentials_source) =
        reported_target(Some(&target));
    api::StaleKey {
        name,
        id,
        organization_id: organization.id,
        organization_name: nonempty(Some(&organization.name)),
        tags_hash,
        control_plane_ref_name,
        control_plane_url,
        deployment_id,
        credentials_source,
        since: Some(Time(since)),
        unused_since: unused_since.map(Time),
    }
}
