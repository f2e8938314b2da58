//! What is remembered of registrations: the part of a proxy's status that the protocol rests on.

use jiff::{SignedDuration, Timestamp};

use super::seen::Listed;
use crate::place::{Place, SecretPlace};

/// How far the clocks of coderd and of the operator may be apart. A listing showed the name to be free before it was
/// announced, so that this lets no older registration pass for ours.
const CLOCKS: SignedDuration = SignedDuration::from_mins(5);

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The registration that is ours.
    pub current: Option<Registration>,
    /// The Secret with its token.
    pub secret: Option<SecretPlace>,
    /// What is about to be made.
    pub pending: Option<Pending>,
    /// Registrations that are no longer wanted, the oldest first.
    pub stale: Vec<Stale>,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its UUID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The coderd that knows it.
    pub place: Place,
}

/// A registration, or a token of one, that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Name of the registration. Without a UUID: a listing showed it to be free.
    pub name: String,
    /// UUID of the registration that gets another token.
    pub id: Option<String>,
    /// The coderd.
    pub place: Place,
    /// Why.
    pub reason: String,
    /// When that was decided.
    pub since: Timestamp,
}

/// A registration that is no longer wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stale {
    /// Its UUID. None: it was announced, and perhaps never made.
    pub id: Option<String>,
    /// Its name.
    pub name: String,
    /// The coderd that knows it.
    pub place: Place,
    /// When it was replaced; or, without a UUID, announced.
    pub since: Timestamp,
}

impl Stale {
    /// The listed registration that it is.
    pub(super) fn find<'a>(&self, listing: &'a [Listed]) -> Option<&'a Listed> {
        match &self.id {
            Some(id) => listing.iter().find(|listed| listed.id == *id),
            None => listing.iter().find(|listed| was_announced(listed, &self.name, self.since)),
        }
    }
}

/// Whether a listed registration was made after it was announced, and no proxy ever ran with it.
pub(super) fn was_announced(listed: &Listed, name: &str, since: Timestamp) -> bool {
    let after = listed.created.is_some_and(|created| created.duration_since(since) >= -CLOCKS);
    listed.name.eq_ignore_ascii_case(name) && after && listed.version.is_empty()
}

impl Record {
    /// Whether nothing outside the cluster would be left if the object went.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.pending.is_none() && self.stale.is_empty()
    }

    /// All that is to go when nothing is wanted any more.
    pub(super) fn all(&self, now: Timestamp) -> Vec<Stale> {
        let mut record = self.clone();
        record.give_up(now);
        record.stale
    }

    /// Puts what there is, and what was announced, among what is to go.
    pub(super) fn give_up(&mut self, now: Timestamp) {
        self.drop_pending();
        if let Some(Registration { id, name, place }) = self.current.take() {
            self.stale.push(Stale { id: Some(id), name, place, since: now });
        }
    }

    /// Gives an announcement up. What was perhaps made because of it is to go.
    pub(super) fn drop_pending(&mut self) {
        if let Some(Pending { name, id: None, place, reason: _, since }) = self.pending.take() {
            self.stale.push(Stale { id: None, name, place, since });
        }
    }
}
