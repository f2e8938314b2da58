//! The registration of a workspace proxy and its token: made once, kept, and given another token only when the one in the
//! Secret is lost or dead.
//!
//! Unlike a provisioner key, a registration can be renamed and its token regenerated in place, so that there is one for
//! each coderd that the spec leads to. [`decide`] returns a query, after which it is called again, or the one thing to do
//! next. What is remembered is in the [`RegistrationRecord`], which is the object's status, and in the annotations of the
//! Secret. The process may die before and after every effect.
//!
//! A token names its registration. A registration is ours if its UUID is on the status, in the annotations of our Secret
//! or in the token that our Secret holds; or if it has a name that was announced when it was free, was made after that, and
//! no proxy ever ran with it. No other registration is touched. An answer that is not definite makes no token and deletes
//! nothing. No registration is deleted before its successor runs.
//!
//! The caller guarantees the following:
//! - [`NextStep::Record`] is written with the resourceVersion that was decided on, and ends the reconcile.
//! - Before [`NextStep::Act`] the object is read live; a Secret is written onto the version that was decided on.
//! - [`Decision::events`] are published before [`NextStep`] is done.

mod decide;
mod record;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, slice, time::Duration};

use coder_k8s_api::{Reason, condition::kind};
use jiff::{SignedDuration, Timestamp};

pub use self::{
    decide::{decide, health},
    record::{
        RegistrationDetails, RegistrationIntent, RegistrationRecord, RegistrationRef, RetiredRegistration,
    },
};
pub use crate::credential::{CredentialProgress, CredentialVerdict};
use crate::{
    credential::{self, CredentialConditions, CredentialKind, Listed},
    intervals::REQUEUE_STALE_REGISTRATIONS,
    outcome::{Blocker, EventNote},
    target::{CoderdTarget, SecretDataRef},
};

/// The conditions that report the registration.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: kind::REGISTERED,
    in_place: kind::TOKEN_SECRET_READY,
    held: "the Secret holds the token",
};

/// What was observed of the registrations of a proxy so far.
pub type ObservedRegistration = credential::Observed<Registrations>;
/// A decision about a registration.
pub type Decision = credential::Decision<Registrations>;
/// The next step of a [`Decision`].
pub type NextStep = credential::NextStep<Registrations>;
/// What a decision needs to know.
pub type Query = credential::Query<Registrations>;
/// An effect that a [`NextStep`] asks for.
pub type Effect = credential::Effect<Registrations>;
/// A Secret, read live. It shows a checksum of its token, never the token.
pub type Secret = credential::Secret<TokenFacts, RegistrationMarks>;
/// What coderd answers about a token.
pub type TokenProof = credential::Proof<()>;
/// The registrations of a coderd, but for deleted ones.
pub type Listing = credential::Listing<ListedProxy>;

/// What is observed of registrations alone.
#[derive(Clone, Debug)]
pub struct RegistrationContext {
    /// The token that a person supplies, where one does.
    pub given: Result<SuppliedToken, Blocker>,
    /// The address that pods connect to.
    pub url: Option<String>,
}

/// What the spec asks for, with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredRegistration {
    /// The control plane that leads there. Empty: an address does.
    pub control_plane: String,
    /// Name in coderd.
    pub name: String,
    /// Name for people. None: as it is, or the name.
    pub display_name: Option<String>,
    /// Icon. None: as it is, or a default.
    pub icon: Option<String>,
    /// Where the token is kept.
    pub secret: SecretDataRef,
}

/// A token that a person supplies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuppliedToken {
    /// The Secret that a person writes.
    pub place: SecretDataRef,
    /// The token.
    pub token: TokenFacts,
}

/// A token, without its secret part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    /// A salted checksum of it.
    pub checksum: String,
    /// UUID of the registration that it is for. None: no token looks like this.
    pub id: Option<String>,
}

/// The UUID of the registration that a token is for, which is its public half.
pub fn token_id(token: &str) -> Option<String> {
    let (id, secret) = token.trim().split_once(':')?;
    let is_uuid = id.len() == 36 && id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    (is_uuid && !secret.is_empty()).then(|| id.to_ascii_lowercase())
}

/// The annotations of a Secret, which identify the token in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegistrationMarks {
    /// UUID of the registration.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The deployment that knows it.
    pub deployment_id: Option<String>,
}

impl RegistrationMarks {
    /// Whether the registration may be one of this coderd. Annotations that name no deployment say nothing against it.
    pub(super) fn is_of(&self, target: &CoderdTarget) -> bool {
        self.deployment_id.is_none() || self.deployment_id == target.deployment_id
    }
}

/// A registration in a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedProxy {
    /// Its UUID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
    /// Its icon.
    pub icon: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Version of the proxy that registered last. Empty: none ever did.
    pub version: String,
    /// Health as coderd reports it.
    pub health: String,
}

impl Listed<RegistrationDetails> for ListedProxy {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn created(&self) -> Option<Timestamp> {
        self.created
    }

    fn is_unused(&self, _: &RegistrationDetails) -> bool {
        self.version.is_empty()
    }
}

/// The health of the proxy as coderd reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    pub status: String,
    /// Version of the proxy that registered last.
    pub version: Option<String>,
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

/// What is changed of registrations alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegistrationEffect {
    /// Change what a registration is called, and leave its token.
    Update {
        /// The coderd that knows it.
        target: CoderdTarget,
        /// Its UUID.
        id: String,
        /// How it is to be called.
        settings: ProxyProfile,
    },
}

/// The registrations of proxies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registrations;

impl CredentialKind for Registrations {
    type Details = RegistrationDetails;
    /// None: a person supplies the token.
    type Desired = Option<DesiredRegistration>;
    type Observed = RegistrationContext;
    type Scope = CoderdTarget;
    type Listed = ListedProxy;
    type Held = TokenFacts;
    type Marks = RegistrationMarks;
    type Proven = ();
    type Query = Infallible;
    type Settings = ProxyProfile;
    type Effect = RegistrationEffect;

    const REQUEUE: Duration = REQUEUE_STALE_REGISTRATIONS;
    const ABANDON_AFTER: SignedDuration = SignedDuration::ZERO;
    const SECRET_FIELD: &'static str = "generatedTokenSecretName";

    fn scope(registration: &RegistrationRef) -> CoderdTarget {
        registration.target.clone()
    }

    fn gone(_: &CoderdTarget) -> Blocker {
        let message = "another deployment answers than the one that holds the registration: let the address lead there again";
        Blocker::new(Reason::ControlPlaneUnavailable, message)
    }

    fn marks(registration: &RegistrationRef) -> RegistrationMarks {
        let RegistrationRef { id, name, target, details: _ } = registration.clone();
        RegistrationMarks { id: id.unwrap_or_default(), name, deployment_id: target.deployment_id }
    }

    fn marked(marks: &RegistrationMarks) -> RegistrationRef {
        let RegistrationMarks { id, name, deployment_id } = marks.clone();
        RegistrationRef::new(Some(id), name, CoderdTarget { deployment_id, ..CoderdTarget::default() })
    }

    fn checksums(token: &TokenFacts) -> &[String] {
        slice::from_ref(&token.checksum)
    }

    fn wanted(desired: &Option<DesiredRegistration>) -> Option<(&str, &SecretDataRef)> {
        desired.as_ref().map(|desired| (desired.control_plane.as_str(), &desired.secret))
    }

    fn is_wanted(desired: &Option<DesiredRegistration>, recorded: &RegistrationRef) -> bool {
        desired.as_ref().is_some_and(|desired| recorded.name.eq_ignore_ascii_case(&desired.name))
    }

    fn url(observed: &ObservedRegistration) -> Option<&String> {
        observed.own.url.as_ref()
    }

    /// The Secret of the Go operator has no annotations, and stays.
    fn is_leftover(place: &SecretDataRef, wanted: &SecretDataRef, marks: Option<&RegistrationMarks>) -> bool {
        place.name != wanted.name && marks.is_some()
    }

    fn abandoned(registration: &RegistrationRef) -> EventNote {
        let RegistrationRef { id, name, target, details: _ } = registration;
        let which = id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
        let server = if target.url.is_empty() { "another coderd" } else { &target.url };
        let message = format!(
            "the workspace proxy {name}{which} could not be deleted from {server}; delete it there: its token still works"
        );
        EventNote { warning: true, reason: Reason::ProxyAbandoned, message }
    }
}
