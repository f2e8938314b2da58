//! What can be observed of a pool's keys, and what a decision asks for. Plain data: the operator fills it in, and so does
//! the model.
//!
//! Nothing here holds key material: a Secret shows checksums of it.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_api::{Reason, condition::kind};
use jiff::{SignedDuration, Timestamp};

use super::{
    record::{KeyDetails, KeyIntent, KeyRecord, KeyScope},
    tags::{self, Tags},
};
use crate::{
    credential::{self, CredentialConditions, CredentialVerdict, Listed},
    provisioner::names::KeyBase,
    target::{CoderdTarget, SecretDataRef},
};
pub use crate::{
    object::Deletion,
    outcome::Blocker,
    target::{Obstacle, Version},
    workload::{Run, Workload},
};

/// The conditions that report the key.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: kind::PROVISIONER_KEY_READY,
    in_place: kind::PROVISIONER_KEY_SECRET_READY,
    held: "the Secret holds the key",
};

/// What was observed so far. Maps and options grow as [`super::KeyQuery`] asks for it.
#[derive(Clone, Debug)]
pub struct ObservedKeys {
    /// The object itself: of two that claim one name the older wins.
    pub object: Claimant,
    /// What the spec asks for.
    pub desired: DesiredKey,
    /// What the status remembers.
    pub record: KeyRecord,
    /// Whether the finalizer keeps the object until its keys are deleted.
    pub has_finalizer: bool,
    /// Whether coderd is to be asked even if nothing changed: on a change of the spec or the Secret, and at an interval.
    pub verify_due: bool,
    /// Whether a key may be made: license and credentials.
    pub may_make: Result<(), Blocker>,
    /// The coderd that the spec leads to, with identity and credentials; or why there is none.
    pub target: Result<CoderdTarget, Blocker>,
    /// Other objects that claim the same name in the same organization of the same coderd.
    pub claimants: Vec<Claimant>,
    /// The wanted Secret, the recorded one, and every other with our annotations. Always there.
    pub secrets: BTreeMap<SecretDataRef, Secret>,
    /// The Deployment, if there is one. Always there.
    pub workload: Option<Workload>,
    /// How long after an announcement a key may still appear: coderd may carry out a request whose sender died.
    pub late_effect_window: SignedDuration,
    /// Whether the object is being deleted.
    pub deletion: Option<Deletion>,
    /// The UUID of the wanted organization; none in it: coderd knows no such organization.
    pub organization: Option<Result<Option<String>, Blocker>>,
    /// What coderd answers about the material in a Secret.
    pub proofs: BTreeMap<SecretDataRef, KeyProof>,
    /// The keys of organizations.
    pub listings: BTreeMap<KeyScope, Listing>,
    /// Whether a pod is left that is not of the Deployment's newest template, terminating ones included. Read live.
    pub old_pods: Option<Result<bool, Blocker>>,
}

/// An object that claims a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claimant {
    /// Creation time of the object.
    pub created: Option<Timestamp>,
    /// UID, which decides between objects of the same second.
    pub uid: String,
    /// `namespace/name`, for messages.
    pub called: String,
}

impl Claimant {
    /// Whether it was there first.
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

/// A Secret, read live. Its content is two checksums: ours, and that of the Go operator.
pub type Secret = credential::Secret<[String; 2], KeyMarks>;

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

/// What coderd answers about key material.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyProof {
    /// It belongs to this key.
    Is(FoundKey),
    /// It belongs to no key: 401, or 400 for what cannot be one.
    Refused,
    /// This release of coderd has no such endpoint.
    Unsupported,
    /// No definite answer.
    Unknown(Blocker),
}

/// A key in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// The key.
    pub key: FoundKey,
    /// Creation time of the object.
    pub created: Option<Timestamp>,
    /// Whether a daemon ever connected with it, offline ones included.
    pub was_used: bool,
    /// The latest sign of life of a daemon that is listed with it.
    pub last_seen: Option<Timestamp>,
}

/// The keys of an organization, but for reserved ones.
pub type Listing = credential::Listing<ListedKey>;

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

/// A decision about keys.
pub type Decision = credential::Decision<KeyQuery, KeyRecord, Effect>;
/// The next step of a [`Decision`].
pub type NextStep = credential::NextStep<KeyQuery, KeyRecord, Effect>;
/// An effect that a [`NextStep`] asks for.
pub type Effect = credential::Effect<KeyEffect, KeyMarks>;

/// The pool is being deleted, and its daemons drain: they need their key until then.
pub fn leaving(again: Duration) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "waiting for the daemons of the pool to stop");
    Decision { again: Some(again), ..Decision::rest(None, verdict) }
}

/// What a decision needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyQuery {
    /// The UUID of the wanted organization.
    Organization,
    /// What the target answers about the material in this Secret.
    KeyProof(SecretDataRef),
    /// The keys of an organization, and the daemons that use them.
    Keys(KeyScope),
    /// Whether pods of an older template are left.
    Pods,
}

/// An effect in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyEffect {
    /// Make the announced key, ask coderd for its UUID, write that to the status as the ID of [`KeyIntent`] with the
    /// resourceVersion that was decided on, and then store the material with the annotations. Whatever fails on the way
    /// ends it: a key whose material was not stored is of no use, and a later reconcile makes another one.
    Make {
        /// The key, as announced.
        key: Box<KeyIntent>,
        /// Its tags.
        tags: Tags,
        /// Where the material goes.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations, to which the UUID is added.
        marks: KeyMarks,
    },
    /// Delete a key. A listing has shown its UUID under this name.
    Delete {
        /// The organization that it is in.
        scope: KeyScope,
        /// Its name, which is what coderd deletes by.
        name: String,
        /// Its UUID.
        id: String,
    },
}
