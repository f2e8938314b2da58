//! What is remembered of registrations: the part of a proxy's status that the protocol rests on.

use jiff::{SignedDuration, Timestamp};

use super::observed::ListedProxy;
use crate::target::{CoderdTarget, SecretDataRef};

/// How far the clocks of coderd and of the operator may be apart. A listing showed the name to be free before it was
/// announced, so that this lets no older registration pass for ours.
const CLOCKS: SignedDuration = SignedDuration::from_mins(5);

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegistrationRecord {
    /// The registration that is ours.
    pub current: Option<RegistrationRef>,
    /// The Secret with its token.
    pub secret: Option<SecretDataRef>,
    /// What is about to be made.
    pub pending: Option<RegistrationIntent>,
    /// Registrations that are no longer wanted, the oldest first.
    pub stale: Vec<RetiredRegistration>,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegistrationRef {
    /// Its UUID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The coderd that knows it.
    pub place: CoderdTarget,
}

/// A registration, or a token of one, that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegistrationIntent {
    /// Name of the registration. Without a UUID: a listing showed it to be free.
    pub name: String,
    /// UUID of the registration that gets another token.
    pub id: Option<String>,
    /// The coderd.
    pub place: CoderdTarget,
    /// Why.
    pub reason: String,
    /// When that was decided.
    pub since: Timestamp,
}

/// A registration that is no longer wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetiredRegistration {
    /// Its UUID. None: it was announced, and perhaps never made.
    pub id: Option<String>,
    /// Its name.
    pub name: String,
    /// The coderd that knows it.
    pub place: CoderdTarget,
    /// When it was replaced; or, without a UUID, announced.
    pub since: Timestamp,
}

impl RetiredRegistration {
    /// The listed registration that it is.
    pub(super) fn find<'a>(&self, listing: &'a [ListedProxy]) -> Option<&'a ListedProxy> {
        match &self.id {
            Some(id) => listing.iter().find(|listed| listed.id == *id),
            None => listing.iter().find(|listed| was_announced(listed, &self.name, self.since)),
        }
    }
}

/// Whether a listed registration was made after it was announced, and no proxy ever ran with it.
pub(super) fn was_announced(listed: &ListedProxy, name: &str, since: Timestamp) -> bool {
    let after = listed.created.is_some_and(|created| created.duration_since(since) >= -CLOCKS);
    listed.name.eq_ignore_ascii_case(name) && after && listed.version.is_empty()
}

impl RegistrationRecord {
    /// Whether nothing outside the cluster would be left if the object went.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.pending.is_none() && self.stale.is_empty()
    }

    /// All that is to go when nothing is wanted any more.
    pub(super) fn all(&self, now: Timestamp) -> Vec<RetiredRegistration> {
        let mut record = self.clone();
        record.give_up(now);
        record.stale
    }

    /// Puts what there is, and what was announced, among what is to go.
    pub(super) fn give_up(&mut self, now: Timestamp) {
        self.drop_pending();
        if let Some(RegistrationRef { id, name, place }) = self.current.take() {
            self.stale.push(RetiredRegistration { id: Some(id), name, place, since: now });
        }
    }

    /// Gives an announcement up. What was perhaps made because of it is to go.
    pub(super) fn drop_pending(&mut self) {
        if let Some(RegistrationIntent { name, id: None, place, reason: _, since }) = self.pending.take() {
            self.stale.push(RetiredRegistration { id: None, name, place, since });
        }
    }
}
