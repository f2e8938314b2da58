//! What a decision asks for.

use std::time::Duration;

use super::{
    finding::Finding,
    place::{At, SecretPlace},
    record::{Pending, Record},
    seen::{Marks, Version},
    tags::Tags,
};
use crate::credential;

/// What was decided.
pub type Decision = credential::Decision<Look, Record, Step>;
/// What is next.
pub type Next = credential::Next<Look, Record, Step>;
/// An effect.
pub type Step = credential::Step<Act, Marks>;

/// The pool is being deleted, and its daemons have not all left: they need their key until then.
pub fn leaving(again: Duration) -> Decision {
    let finding = Finding::working("Deleting", "the daemons of the pool are leaving");
    Decision { again: Some(again), ..Decision::rest(None, finding) }
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// What coderd knows the wanted organization as.
    Organization,
    /// What the target makes of the material in this Secret.
    Proof(SecretPlace),
    /// The keys of an organization, and the daemons that use them.
    Keys(At),
    /// Whether pods of an older template are left.
    Pods,
}

/// What can be done in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Make the announced key, ask coderd for its UUID, write that to the status as [`Pending::id`] with the
    /// resourceVersion that was decided on, and then store the material with the annotations. Whatever fails on the way
    /// ends it: a key whose material was not stored is of no use, and a later pass makes another one.
    Make {
        /// The key, as announced.
        key: Box<Pending>,
        /// Its tags.
        tags: Tags,
        /// Where the material goes.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations, to which the UUID is added.
        marks: Marks,
    },
    /// Delete a key. A listing has shown its UUID under this name.
    Delete {
        /// Where.
        at: At,
        /// Its name, which is what coderd deletes by.
        name: String,
        /// Its UUID.
        id: String,
    },
}
