//! What a decision asks for.

use std::time::Duration;

use super::{
    finding::Finding,
    record::{Pending, Record},
    seen::Marks,
};
use crate::{
    outcome::Note,
    place::{Place, SecretPlace, Version},
    workload::Run,
};

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is next.
    pub next: Next,
    /// What pods are to run with. None: there is no token for them yet, or the object is going.
    pub run: Option<Run>,
    /// What to say.
    pub finding: Finding,
    /// What coderd sees of the proxy. None: it was not asked.
    pub health: Option<Health>,
    /// When to look again, if nothing else happens.
    pub again: Option<Duration>,
    /// What to tell people, before anything else is done.
    pub notes: Vec<Note>,
}

/// What coderd sees of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    pub status: String,
    /// Version of the proxy that registered last.
    pub version: Option<String>,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look, and decide again.
    Look(Look),
    /// Write the status. The pass ends.
    Record(Box<Record>),
    /// Do this. The pass ends.
    Do(Box<Step>),
    /// Nothing is left outside, or what is left was named: the finalizer may go.
    Release,
    /// Nothing.
    Rest,
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// The registrations of a coderd.
    Registrations(Place),
    /// What the target makes of the token in this Secret.
    Proof(SecretPlace),
}

/// How a registration is to be called. coderd takes only what is complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Name.
    pub name: String,
    /// Name for people.
    pub display_name: String,
    /// Icon.
    pub icon: String,
}

/// An effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Put the finalizer on the object.
    Hold,
    /// Make what was announced: the registration, or without one to be made another token of it. The UUID goes to the
    /// status before the token is stored. Whatever fails on the way ends it: a token that was not stored is of no use, and
    /// a later pass makes another one.
    Make {
        /// What was announced.
        pending: Box<Pending>,
        /// How the registration is called.
        settings: Settings,
        /// Where the token goes.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
    },
    /// Change what a registration is called, and leave its token.
    Update {
        /// Where.
        place: Place,
        /// Its UUID.
        id: String,
        /// How it is to be called.
        settings: Settings,
    },
    /// Delete a registration.
    Deregister {
        /// Where.
        place: Place,
        /// Its UUID.
        id: String,
        /// Its name, for people.
        name: String,
    },
    /// Copy a token from one place to another.
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
    /// Remove a Secret that nothing reads any more.
    Remove {
        /// Which.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
    },
}
