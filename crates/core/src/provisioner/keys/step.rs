//! What a decision asks for.

use std::time::Duration;

use super::{
    finding::Finding,
    place::{At, SecretPlace},
    record::{Pending, Record},
    seen::{Marks, Run, Version},
    tags::Tags,
};
use crate::outcome::Note;

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is next.
    pub next: Next,
    /// What pods are to run with. None: there is no key for them yet, or the object is going.
    pub run: Option<Run>,
    /// What to say.
    pub finding: Finding,
    /// When to look again, if nothing else happens.
    pub again: Option<Duration>,
    /// What to tell people, before anything else is done.
    pub notes: Vec<Note>,
}

impl Decision {
    /// The pool is being deleted, and its daemons have not all left: they need their key until then.
    pub fn leaving(again: Duration) -> Self {
        let finding = Finding::working("Deleting", "the daemons of the pool are leaving");
        Self { next: Next::Rest, run: None, finding, again: Some(again), notes: Vec::new() }
    }
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Look, and decide again.
    Look(Look),
    /// Write the status. The pass ends.
    Record(Box<Record>),
    /// Do this. The pass ends.
    Do(Box<Step>),
    /// Nothing is left outside, or what is left was named: the object may go.
    Release,
    /// Nothing.
    Rest,
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

/// An effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Put the finalizer on the object.
    Hold,
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
    /// Copy material and annotations from one place to another.
    Copy {
        /// From here.
        from: SecretPlace,
        /// To here.
        to: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: Marks,
    },
    /// Write the annotations of a Secret anew, and leave its data.
    Annotate {
        /// Which.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: Marks,
    },
    /// Take a place that nothing reads any more: its data key, and with the last of ours the Secret.
    Remove {
        /// Which.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
    },
}
