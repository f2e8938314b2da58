//! What a decision asks for.

use super::{
    observed::RegistrationMarks,
    record::{RegistrationIntent, RegistrationRecord},
};
use crate::{
    credential,
    target::{CoderdTarget, SecretDataRef, Version},
};

/// What was decided.
pub type Decision = credential::Decision<RegistrationQuery, RegistrationRecord, Effect>;
/// What is next.
pub type NextStep = credential::NextStep<RegistrationQuery, RegistrationRecord, Effect>;
/// An effect.
pub type Effect = credential::Effect<RegistrationEffect, RegistrationMarks>;

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
pub enum RegistrationQuery {
    /// The registrations of a coderd.
    Registrations(CoderdTarget),
    /// What the target makes of the token in this Secret.
    TokenProof(SecretDataRef),
}

/// How a registration is to be called. coderd takes only what is complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxyProfile {
    /// Name.
    pub name: String,
    /// Name for people.
    pub display_name: String,
    /// Icon.
    pub icon: String,
}

/// What can be done in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegistrationEffect {
    /// Make what was announced: the registration, or without one to be made another token of it. The UUID goes to the
    /// status before the token is stored. Whatever fails on the way ends it: a token that was not stored is of no use, and
    /// a later pass makes another one.
    Make {
        /// What was announced.
        pending: Box<RegistrationIntent>,
        /// How the registration is called.
        settings: ProxyProfile,
        /// Where the token goes.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
    },
    /// Change what a registration is called, and leave its token.
    Update {
        /// Where.
        place: CoderdTarget,
        /// Its UUID.
        id: String,
        /// How it is to be called.
        settings: ProxyProfile,
    },
    /// Delete a registration.
    Deregister {
        /// Where.
        place: CoderdTarget,
        /// Its UUID.
        id: String,
        /// Its name, for people.
        name: String,
    },
}
