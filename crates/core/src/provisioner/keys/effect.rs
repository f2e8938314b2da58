//! What a decision asks for.

use coder_k8s_api::Reason;
use std::time::Duration;

use super::{
    observed::{KeyMarks, Version},
    record::{KeyIntent, KeyRecord},
    tags::Tags,
    target::{KeyScope, SecretDataRef},
    verdict::CredentialVerdict,
};
use crate::credential;

/// What was decided.
pub type Decision = credential::Decision<KeyQuery, KeyRecord, Effect>;
/// What is next.
pub type NextStep = credential::NextStep<KeyQuery, KeyRecord, Effect>;
/// An effect.
pub type Effect = credential::Effect<KeyEffect, KeyMarks>;

/// The pool is being deleted, and its daemons have not all left: they need their key until then.
pub fn leaving(again: Duration) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "the daemons of the pool are leaving");
    Decision { again: Some(again), ..Decision::rest(None, verdict) }
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyQuery {
    /// What coderd knows the wanted organization as.
    Organization,
    /// What the target makes of the material in this Secret.
    KeyProof(SecretDataRef),
    /// The keys of an organization, and the daemons that use them.
    Keys(KeyScope),
    /// Whether pods of an older template are left.
    Pods,
}

/// What can be done in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyEffect {
    /// Make the announced key, ask coderd for its UUID, write that to the status as [`KeyIntent::id`] with the
    /// resourceVersion that was decided on, and then store the material with the annotations. Whatever fails on the way
    /// ends it: a key whose material was not stored is of no use, and a later pass makes another one.
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
        /// Where.
        at: KeyScope,
        /// Its name, which is what coderd deletes by.
        name: String,
        /// Its UUID.
        id: String,
    },
}
