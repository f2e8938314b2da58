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
//! - [`NextStep::WriteStatus`] is written with the resourceVersion that was decided on, and ends the reconcile.
//! - Before [`NextStep::Act`] the object is read live; a Secret is written onto the version that was decided on.
//! - [`Decision::events`] are published before [`NextStep`] is done.

mod decide;

use std::{convert::Infallible, slice, time::Duration};

use coder_k8s_api::{self as api, CoderWorkspaceProxyStatus, Reason, condition::condition_type};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    credential::{
        self, CredentialConditions, CredentialKind, CredentialRef, Details, Intent, Listed, Record, Retired,
        recorded_time, reported_target,
    },
    intervals::REQUEUE_STALE_REGISTRATIONS,
    outcome::{Blocker, EventNote},
    target::{CoderdTarget, SecretDataRef, nonempty},
};

pub use self::decide::{decide, health};
pub use crate::credential::{CredentialProgress, CredentialVerdict};

/// The conditions that report the registration.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: condition_type::REGISTERED,
    in_place: condition_type::TOKEN_SECRET_READY,
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

/// The data key where none is recorded.
const DATA_KEY: &str = "token";

/// What status remembers of the registrations of a proxy.
pub type RegistrationRecord = Record<RegistrationDetails>;
/// A registration. The current one always has a UUID.
pub type RegistrationRef = CredentialRef<RegistrationDetails>;
/// A registration, or a token of one, that is about to be made.
pub type RegistrationIntent = Intent<RegistrationDetails>;
/// A registration that is no longer wanted.
pub type RetiredRegistration = Retired<RegistrationDetails>;

/// A registration has nothing of its own to record: coderd regenerates its token in place and renames it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegistrationDetails;

impl Details for RegistrationDetails {
    const MADE_ANEW: bool = false;
}

impl RegistrationRef {
    /// A registration by its UUID, or one that was perhaps made.
    pub fn new(id: Option<String>, name: String, target: CoderdTarget) -> Self {
        Self { id, name, target, details: RegistrationDetails }
    }
}

impl RegistrationRecord {
    /// Reads a status.
    pub fn of(status: &CoderWorkspaceProxyStatus) -> Self {
        let target = CoderdTarget::recorded(
            status.control_plane_ref_name.as_ref(),
            status.coder_url.as_ref(),
            status.deployment_id.as_ref(),
            status.credentials_source.as_ref(),
        );
        let name = status.proxy_name.clone().unwrap_or_default();
        let id = nonempty(status.proxy_id.as_ref());
        Self {
            current: id.map(|id| RegistrationRef::new(Some(id), name, target)),
            secret: status.proxy_token_secret_ref.as_ref().map(|secret| SecretDataRef::of(secret, DATA_KEY)),
            pending: status.pending_registration.as_ref().map(pending),
            stale: status.stale_registrations.iter().map(stale).collect(),
        }
    }

    /// Writes it into a status.
    pub fn write(&self, status: &mut CoderWorkspaceProxyStatus) {
        let Self { current, secret, pending, stale } = self;
        status.proxy_id = current.as_ref().and_then(|current| current.id.clone());
        status.proxy_name = current.as_ref().map(|current| current.name.clone());
        (status.control_plane_ref_name, status.coder_url, status.deployment_id, status.credentials_source) =
            reported_target(current.as_ref().map(|current| &current.target));
        status.proxy_token_secret_ref = secret.as_ref().map(SecretDataRef::reported);
        status.pending_registration = pending.as_ref().map(written);
        status.stale_registrations = stale
            .iter()
            .map(|Retired { credential, since, unused_since: _ }| {
                written(&Intent { credential: credential.clone(), reason: String::new(), since: *since })
            })
            .collect();
    }
}

fn pending(pending: &api::PendingRegistration) -> RegistrationIntent {
    let target = CoderdTarget::recorded(
        pending.control_plane_ref_name.as_ref(),
        pending.coder_url.as_ref(),
        pending.deployment_id.as_ref(),
        pending.credentials_source.as_ref(),
    );
    RegistrationIntent {
        credential: RegistrationRef::new(nonempty(pending.id.as_ref()), pending.name.clone(), target),
        reason: pending.reason.clone().unwrap_or_default(),
        since: recorded_time(pending.since.as_ref()),
    }
}

fn stale(stale: &api::PendingRegistration) -> RetiredRegistration {
    let Intent { credential, reason: _, since } = pending(stale);
    Retired { credential, since, unused_since: None }
}

fn written(intent: &RegistrationIntent) -> api::PendingRegistration {
    let Intent { credential: RegistrationRef { id, name, target, details: _ }, reason, since } = intent;
    let (control_plane_ref_name, coder_url, deployment_id, credentials_source) =
        reported_target(Some(target));
    api::PendingRegistration {
        name: name.clone(),
        id: id.clone(),
        control_plane_ref_name,
        coder_url,
        deployment_id,
        credentials_source,
        reason: nonempty(Some(reason)),
        since: Some(Time(*since)),
    }
}

#[cfg(test)]
mod tests;
