//! What can be observed of a pool's keys. Plain data: whoever observes fills it in, and so does the model.
//!
//! Nothing here holds key material: a Secret shows a checksum of it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    record::KeyRecord,
    tags::Tags,
    target::{CoderdTarget, KeyScope, SecretDataRef},
};
use crate::{credential, provisioner::names::KeyBase};
pub use crate::{
    object::Deletion,
    outcome::Blocker,
    target::{Obstacle, Version},
    workload::{Run, Workload},
};

/// What was observed so far. Maps and options grow as [`super::KeyQuery`] asks for it.
#[derive(Clone, Debug)]
pub struct ObservedKeys {
    /// When the object was made, and its UID: of two that claim one name the older wins.
    pub object: Claimant,
    /// What the spec asks for.
    pub desired: DesiredKey,
    /// What the status remembers.
    pub record: KeyRecord,
    /// Whether the finalizer is there, so that the object cannot go without its keys.
    pub has_finalizer: bool,
    /// Whether what is known is to be verified: on a change of the spec or the Secret, and at an interval.
    pub verify_due: bool,
    /// Whether a key may be made: the license, and whatever else must be there first.
    pub may_make: Result<(), Blocker>,
    /// The coderd that the spec leads to, with identity and credentials; or why there is none.
    pub target: Result<CoderdTarget, Blocker>,
    /// Other objects that claim the same name in the same organization of the same coderd.
    pub claimants: Vec<Claimant>,
    /// The Secrets of the wanted place, of the recorded one, and of every other that bears our marks. Always there.
    pub secrets: BTreeMap<SecretDataRef, Secret>,
    /// The Deployment, if there is one. Always there.
    pub workload: Option<Workload>,
    /// How long after an announcement a key may still appear that was not there: coderd may carry a request out that
    /// was given up, or whose sender died.
    pub late_effect_window: SignedDuration,
    /// Whether the object is being deleted.
    pub deletion: Option<Deletion>,
    /// The UUID of the wanted organization; none in it: coderd knows no such organization.
    pub organization: Option<Result<Option<String>, Blocker>>,
    /// What coderd makes of the material in a Secret.
    pub proofs: BTreeMap<SecretDataRef, KeyProof>,
    /// The keys of organizations.
    pub listings: BTreeMap<KeyScope, Listing>,
    /// Whether a pod is left that is not of the Deployment's newest template; one that is going counts. Read live.
    pub old_pods: Option<Result<bool, Blocker>>,
}

/// An object that claims a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claimant {
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Its UID.
    pub uid: String,
    /// Namespace and name, for people.
    pub called: String,
}

impl Claimant {
    /// Whether it has the better claim.
    pub fn is_before(&self, other: &Self) -> bool {
        (self.created, &self.uid) < (other.created, &other.uid)
    }
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

/// A Secret, read live. Of what it holds it tells two checksums: ours, and that of the existing operator.
pub type Secret = credential::Secret<[String; 2], KeyMarks>;

/// What the annotations of a Secret say of the key in it.
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

/// What coderd makes of key material.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyProof {
    /// It is the material of this key.
    Is(FoundKey),
    /// It is that of no key: 401, or 400 for what cannot be one.
    Refused,
    /// This server cannot be asked.
    Unsupported,
    /// No definite answer.
    Unknown(Blocker),
}

/// A key in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// The key.
    pub key: FoundKey,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Whether a daemon ever connected with it, offline ones included.
    pub was_used: bool,
    /// The latest sign of life of a daemon that is listed with it.
    pub last_seen: Option<Timestamp>,
}

/// The keys of an organization, but for reserved ones.
pub type Listing = credential::Listing<ListedKey>;
