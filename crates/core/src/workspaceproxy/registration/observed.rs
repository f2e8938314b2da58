//! What can be observed of a registration, and what a decision asks for. Nothing here holds a token: a Secret shows a
//! checksum of it.

use std::collections::BTreeMap;

use coder_k8s_api::condition::kind;
use jiff::{SignedDuration, Timestamp};

use super::record::{RegistrationDetails, RegistrationIntent, RegistrationRecord};
use crate::{
    credential::{self, CredentialConditions, Listed},
    object::Deletion,
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef, Version},
    workload::Workload,
};

/// The conditions that report the registration.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: kind::REGISTERED,
    in_place: kind::TOKEN_SECRET_READY,
    held: "the Secret holds the token",
};

/// What was observed so far. Maps grow as [`super::RegistrationQuery`] asks for it.
#[derive(Clone, Debug)]
pub struct ObservedRegistration {
    /// What the spec asks for. None: a person supplies the token.
    pub desired: Option<DesiredRegistration>,
    /// The token that a person supplies, where one does.
    pub given: Result<SuppliedToken, Blocker>,
    /// What the status remembers.
    pub record: RegistrationRecord,
    /// Whether the finalizer keeps the object until its registration is deleted.
    pub has_finalizer: bool,
    /// Whether coderd is to be asked even if nothing changed: on a change of the spec or a Secret, and at an interval.
    pub verify_due: bool,
    /// Whether a registration or a token may be made: license and credentials.
    pub may_make: Result<(), Blocker>,
    /// The coderd that the spec leads to, with identity and credentials; or why there is none.
    pub target: Result<CoderdTarget, Blocker>,
    /// Another object that asks for the same name in the same coderd, and was there first.
    pub name_conflict: Option<String>,
    /// The address that pods connect to.
    pub url: Option<String>,
    /// The wanted Secret, the recorded one, and every other with our annotations.
    pub secrets: BTreeMap<SecretDataRef, Secret>,
    /// The Deployment, if there is one.
    pub workload: Option<Workload>,
    /// How long after an announcement a registration may still appear that was not there.
    pub late_effect_window: SignedDuration,
    /// Whether the object is being deleted.
    pub deletion: Option<Deletion>,
    /// What coderd answers about the token in a Secret.
    pub proofs: BTreeMap<SecretDataRef, TokenProof>,
    /// The registrations of a coderd.
    pub listings: BTreeMap<CoderdTarget, Listing>,
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

/// A Secret, read live.
pub type Secret = credential::Secret<TokenFacts, RegistrationMarks>;

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

/// What coderd answers about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenProof {
    /// coderd knows it.
    Good,
    /// coderd does not know it.
    Refused,
    /// This release of coderd has no such endpoint.
    Unsupported,
    /// No definite answer.
    Unknown(Blocker),
}

/// The registrations of a coderd, but for deleted ones.
pub type Listing = credential::Listing<ListedProxy>;

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

/// A decision about a registration.
pub type Decision = credential::Decision<RegistrationQuery, RegistrationRecord, Effect>;
/// The next step of a [`Decision`].
pub type NextStep = credential::NextStep<RegistrationQuery, RegistrationRecord, Effect>;
/// An effect that a [`NextStep`] asks for.
pub type Effect = credential::Effect<RegistrationEffect, RegistrationMarks>;

/// The health of the proxy as coderd reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    pub status: String,
    /// Version of the proxy that registered last.
    pub version: Option<String>,
}

/// What a decision needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationQuery {
    /// The registrations of a coderd.
    Registrations(CoderdTarget),
    /// What the target answers about the token in this Secret.
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

/// An effect in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegistrationEffect {
    /// Make what was announced: the registration, or without one to be made another token of it. The UUID goes to the
    /// status before the token is stored. Whatever fails on the way ends it: a token that was not stored is of no use, and
    /// a later reconcile makes another one.
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
        /// The coderd that knows it.
        target: CoderdTarget,
        /// Its UUID.
        id: String,
        /// How it is to be called.
        settings: ProxyProfile,
    },
    /// Delete a registration.
    Deregister {
        /// The coderd that knows it.
        target: CoderdTarget,
        /// Its UUID.
        id: String,
        /// Its name, for people.
        name: String,
    },
}
