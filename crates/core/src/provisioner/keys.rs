//! The provisioner key of a pool: made before the last one is broken, identified by what proves it, deleted when nothing
//! uses it any more.
//!
//! coderd shows the material of a key once and cannot change a key, so that a rotation makes another key under a free name.
//! [`decide`] returns a query, after which it is called again, or the one thing to do next. Everything that is remembered
//! is in the [`KeyRecord`], which is the object's status, and in the annotations of the Secret. The process may die before
//! and after every effect; the next reconcile starts from what it finds.
//!
//! Ours are the keys whose UUID is on the status or in the annotations of our Secret; and one that has the announced name
//! and tags, was made after the announcement, and that no daemon ever connected with. No other key is touched. An answer
//! that is not definite rotates nothing and deletes nothing. No key is deleted before its successor is proven and every pod
//! that could hold it is gone.
//!
//! The caller guarantees the following:
//! - [`NextStep::WriteStatus`] is written with the resourceVersion that was decided on, and ends the reconcile.
//! - Before [`NextStep::Act`] the object, and the Secret of the effect, are read live; if either is not the one that was
//!   decided on, the reconcile ends. Keys are listed right before a deletion: coderd deletes by name.
//! - [`Decision::events`] are published before [`NextStep`] is done.
//! - [`Decision::pod_credential`] is what pods run with. The rest of the Deployment is no concern of the key.

mod decide;
mod evidence;
pub mod tags;

use std::time::Duration;

use coder_k8s_api::{self as api, CoderProvisionerStatus, Reason, condition::condition_type};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::tags::Tags;
use crate::{
    credential::{
        self, CredentialConditions, CredentialKind, CredentialRef, Details, Intent, Listed, Record, Retired,
        recorded_time, reported_target,
    },
    intervals::{REQUEUE_STALE_KEYS, STALE_KEY_WITHOUT_CREDENTIALS},
    outcome::EventNote,
    provisioner::names::KeyBase,
    target::nonempty,
};

pub use self::decide::decide;
pub use crate::{
    credential::{CredentialProgress, CredentialVerdict},
    object::Deletion,
    outcome::Blocker,
    target::{CoderdTarget, Credentials, CredentialsKind, Obstacle, SecretDataRef, Version},
    workload::{PodCredential, Workload},
};

/// The conditions that report the key.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: condition_type::PROVISIONER_KEY_READY,
    in_place: condition_type::PROVISIONER_KEY_SECRET_READY,
    held: "the Secret holds the key",
};

/// What was observed of the keys of a pool so far.
pub type ObservedKeys = credential::Observed<Keys>;
/// A decision about keys.
pub type Decision = credential::Decision<Keys>;
/// The next step of a [`Decision`].
pub type NextStep = credential::NextStep<Keys>;
/// What a decision needs to know.
pub type Query = credential::Query<Keys>;
/// An effect that a [`NextStep`] asks for.
pub type Effect = credential::Effect<Keys>;
/// A Secret, read live. Its content is two checksums: ours, and that of the Go operator.
pub type Secret = credential::Secret<[String; 2], KeyMarks>;
/// What coderd answers about key material. It refuses what belongs to no key: 401, or 400 for what cannot be one.
pub type KeyProof = credential::Proof<FoundKey>;
/// The keys of an organization, but for reserved ones.
pub type Listing = credential::Listing<ListedKey>;

/// What is observed of keys alone.
#[derive(Clone, Debug)]
pub struct KeyContext {
    /// The UUID of the wanted organization; none in it: coderd knows no such organization.
    pub organization: Option<Result<Option<String>, Blocker>>,
    /// Whether a pod is left that is not of the Deployment's newest template, terminating ones included. Read live.
    pub old_pods: Option<Result<bool, Blocker>>,
}

/// What the spec asks for, with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredKey {
    /// Name of the control plane.
    pub control_plane: String,
    /// Name or UUID of the organization, or `default`.
    pub organization: String,
    /// The name of the key.
    pub name: KeyBase,
    /// The tags of the key.
    pub tags: Tags,
    /// Where the key is kept.
    pub secret: SecretDataRef,
}

impl DesiredKey {
    /// Whether a recorded key has the wanted name and tags. Another hash of the tags only causes a query: the tags that
    /// coderd lists decide.
    fn describes(&self, key: &KeyRef) -> bool {
        self.name.covers(&key.name) && key.details.tags_hash.as_deref() == Some(&*tags::hash(&self.tags))
    }
}

/// The annotations of a Secret, which identify the key in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyMarks {
    /// UUID of the key.
    pub id: Option<String>,
    /// Its name.
    pub name: String,
    /// UUID of its organization.
    pub organization: Option<String>,
    /// Hash of its tags.
    pub tags_hash: Option<String>,
    /// The deployment that knows it.
    pub deployment_id: Option<String>,
}

/// A key that coderd knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundKey {
    /// Its UUID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// UUID of its organization.
    pub organization: String,
    /// Its tags.
    pub tags: Tags,
}

impl FoundKey {
    /// The key as the record keeps it. `organization` is what its organization is called.
    fn reference(&self, target: &CoderdTarget, organization: String) -> KeyRef {
        let organization = Organization { id: Some(self.organization.clone()), name: organization };
        let details = KeyDetails { organization, tags_hash: Some(tags::hash(&self.tags)) };
        KeyRef { id: Some(self.id.clone()), name: self.name.clone(), target: target.clone(), details }
    }
}

/// A key in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// The key.
    pub key: FoundKey,
    /// When coderd created the key.
    pub created: Option<Timestamp>,
    /// Whether a daemon ever connected with it, offline ones included.
    pub was_used: bool,
    /// The latest sign of life of a daemon that is listed with it.
    pub last_seen: Option<Timestamp>,
}

impl Listed<KeyDetails> for ListedKey {
    fn id(&self) -> &str {
        &self.key.id
    }

    fn name(&self) -> &str {
        &self.key.name
    }

    fn created(&self) -> Option<Timestamp> {
        self.created
    }

    fn is_unused(&self, announced: &KeyDetails) -> bool {
        announced.tags_hash.as_ref() == Some(&tags::hash(&self.key.tags)) && !self.was_used
    }
}

/// What is asked of keys alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyQuery {
    /// The UUID of the wanted organization.
    Organization,
    /// Whether pods of an older template are left.
    Pods,
}

/// The pool is being deleted, and its daemons drain: they need their key until then.
pub fn leaving(again: Duration) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "waiting for the daemons of the pool to stop");
    Decision { again: Some(again), ..Decision::rest(None, verdict) }
}

/// The keys of pools.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys;

impl CredentialKind for Keys {
    type Details = KeyDetails;
    type Desired = DesiredKey;
    type Observed = KeyContext;
    type Scope = KeyScope;
    type Listed = ListedKey;
    type Held = [String; 2];
    type Marks = KeyMarks;
    type Proven = FoundKey;
    type Query = KeyQuery;
    type Settings = Tags;
    type Effect = std::convert::Infallible;

    const REQUEUE: Duration = REQUEUE_STALE_KEYS;
    const ABANDON_AFTER: SignedDuration = STALE_KEY_WITHOUT_CREDENTIALS;
    const SECRET_FIELD: &'static str = "spec.key.secretName";

    fn scope(key: &KeyRef) -> KeyScope {
        KeyScope { target: key.target.clone(), organization: key.details.organization.clone() }
    }

    fn gone(scope: &KeyScope) -> Blocker {
        Blocker::new(Reason::Unreachable, format!("no credentials are left for {}", scope.target.url))
    }

    fn marks(key: &KeyRef) -> KeyMarks {
        let KeyRef { id, name, target, details: KeyDetails { organization, tags_hash } } = key.clone();
        let (organization, deployment_id) = (organization.id, target.deployment_id);
        KeyMarks { id, name, organization, tags_hash, deployment_id }
    }

    /// An organization that only annotations know is called by its UUID.
    fn marked(marks: &KeyMarks) -> KeyRef {
        let KeyMarks { id, name, organization, tags_hash, deployment_id } = marks.clone();
        let called = organization.clone().unwrap_or_default();
        let organization = Organization { id: organization, name: called };
        let target = CoderdTarget { deployment_id, ..CoderdTarget::default() };
        KeyRef { id, name, target, details: KeyDetails { organization, tags_hash } }
    }

    fn checksums(held: &[String; 2]) -> &[String] {
        held
    }

    fn wanted(desired: &DesiredKey) -> Option<(&str, &SecretDataRef)> {
        Some((&desired.control_plane, &desired.secret))
    }

    fn is_wanted(desired: &DesiredKey, key: &KeyRef) -> bool {
        desired.describes(key) && key.details.organization.name == desired.organization
    }

    fn url(observed: &ObservedKeys) -> Option<&String> {
        observed.target.as_ref().ok().map(|target| &target.url)
    }

    fn is_leftover(place: &SecretDataRef, wanted: &SecretDataRef, _: Option<&KeyMarks>) -> bool {
        place != wanted
    }

    fn abandoned(key: &KeyRef) -> EventNote {
        let message = format!("{} could not be deleted and is left behind: delete it there", key.described());
        EventNote { warning: true, reason: Reason::KeyAbandoned, message }
    }

    fn left_alone(key: &KeyRef) -> Option<EventNote> {
        let message = format!(
            "{} is in use or was made by somebody else, and is left alone: delete it there if nobody needs it",
            key.described()
        );
        Some(EventNote { warning: true, reason: Reason::KeyLeftAlone, message })
    }

    /// A key without a UUID was given to nobody.
    fn is_in_use(retired: &RetiredKey, listed: Option<&ListedKey>) -> bool {
        let unproven = retired.credential.id.is_some() && retired.unused_since.is_none();
        let last_seen = listed.and_then(|listed| listed.last_seen);
        unproven || (last_seen.is_some() && last_seen > retired.unused_since)
    }
}

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

#[cfg(test)]
mod tests;
