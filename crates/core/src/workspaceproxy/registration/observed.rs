//! What can be observed of a registration. Nothing here holds a token: a Secret shows a checksum of it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::record::RegistrationRecord;
use crate::{
    credential,
    object::Deletion,
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef},
    workload::Workload,
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
    /// Whether the finalizer is there, so that the object cannot go without its registration.
    pub has_finalizer: bool,
    /// Whether what is known is to be verified: on a change of the spec or of a Secret, and at an interval.
    pub verify_due: bool,
    /// Whether a registration or a token may be made: credentials and license.
    pub may_make: Result<(), Blocker>,
    /// The coderd that the spec leads to, with identity and credentials; or why there is none.
    pub target: Result<CoderdTarget, Blocker>,
    /// Another object that asks for the same name in the same coderd, and was there first.
    pub name_conflict: Option<String>,
    /// The address that pods connect to.
    pub url: Option<String>,
    /// The Secrets of the wanted place, of the recorded one, and of every other that bears our marks.
    pub secrets: BTreeMap<SecretDataRef, Secret>,
    /// The Deployment, if there is one.
    pub workload: Option<Workload>,
    /// How long after an announcement a registration may still appear that was not there.
    pub late_effect_window: SignedDuration,
    /// Whether the object is being deleted.
    pub deletion: Option<Deletion>,
    /// What coderd makes of the token in a Secret.
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
    /// Where.
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

/// What the annotations of a Secret say of the token in it.
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

/// What coderd makes of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenProof {
    /// It knows it.
    Good,
    /// It does not.
    Refused,
    /// This server cannot be asked.
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
    /// What coderd sees of it.
    pub health: String,
}
