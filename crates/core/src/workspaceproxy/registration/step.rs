//! What a decision asks for.

use super::{
    record::{Pending, Record},
    seen::Marks,
};
use crate::{
    credential,
    place::{Place, SecretPlace, Version},
};

/// What was decided.
pub type Decision = credential::Decision<Look, Record, Step>;
/// What is next.
pub type Next = credential::Next<Look, Record, Step>;
/// An effect.
pub type Step = credential::Step<Act, Marks>;

/// What coderd sees of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    pub status: String,
    /// Version of the proxy that registered last.
    pub version: Option<String>,
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

/// What can be done in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
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
}
