//! What is remembered of keys: the part of a pool's status that the protocol rests on.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::target::{CoderdTarget, KeyScope, Organization, SecretDataRef};

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRecord {
    /// The key that the Secret holds, proven.
    pub current: Option<ProvisionerKeyRecord>,
    /// The Secret that holds it.
    pub secret: Option<SecretDataRef>,
    /// A key that is about to be made, or was made and is not proven yet.
    pub pending: Option<KeyIntent>,
    /// Keys that are no longer wanted, the oldest first.
    pub stale: Vec<RetiredKey>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProvisionerKeyRecord {
    /// Its UUID. None: a status of which a part was lost.
    pub id: Option<String>,
    /// Its name.
    pub name: String,
    /// Its organization.
    pub organization: Organization,
    /// Hash of its tags.
    pub tags_hash: Option<String>,
    /// The coderd that knows it.
    pub place: CoderdTarget,
}

/// A key that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyIntent {
    /// Its name, which a listing showed to be free.
    pub name: String,
    /// Its UUID, once it is made. Its material is stored only after that.
    pub id: Option<String>,
    /// Its organization.
    pub organization: Organization,
    /// Hash of its tags.
    pub tags_hash: String,
    /// The coderd that it is made in.
    pub place: CoderdTarget,
    /// Why it is made.
    pub reason: String,
    /// When that was decided.
    pub since: Timestamp,
}

/// A key that is no longer wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetiredKey {
    /// The key. Without a UUID: announced, and perhaps never made.
    pub key: ProvisionerKeyRecord,
    /// When it was replaced; or, without a UUID, announced.
    pub since: Timestamp,
    /// When the last pod that could hold it was gone.
    pub unused_since: Option<Timestamp>,
}

impl ProvisionerKeyRecord {
    /// Where to look for it.
    pub fn at(&self) -> KeyScope {
        KeyScope { place: self.place.clone(), organization: self.organization.clone() }
    }
}

impl KeyIntent {
    /// Where to look for it.
    pub fn at(&self) -> KeyScope {
        KeyScope { place: self.place.clone(), organization: self.organization.clone() }
    }

    /// The same as something to be got rid of: the one of this UUID, or one that was perhaps made since.
    pub(super) fn into_stale(self, id: Option<String>) -> RetiredKey {
        let Self { name, id: _, organization, tags_hash, place, reason: _, since } = self;
        let key = ProvisionerKeyRecord { id, name, organization, tags_hash: Some(tags_hash), place };
        RetiredKey { key, since, unused_since: None }
    }
}

impl KeyRecord {
    /// Whether anything outside the cluster would be left if the object went.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.pending.is_none() && self.stale.is_empty()
    }

    /// Whether a UUID is on it.
    pub fn knows(&self, id: &str) -> bool {
        let stale = self.stale.iter().map(|stale| &stale.key.id);
        let current = self.current.iter().map(|key| &key.id);
        let pending = self.pending.iter().map(|key| &key.id);
        current.chain(pending).chain(stale).any(|known| known.as_deref() == Some(id))
    }

    /// The names in use at one place: a new key must have another one, or the two would be taken for each other.
    pub fn names_at(&self, at: &KeyScope) -> BTreeSet<String> {
        let stale = self.stale.iter().map(|stale| &stale.key);
        let keys = self.current.iter().chain(stale).filter(|key| key.at().is_same(at)).map(|key| &key.name);
        let pending = self.pending.iter().filter(|key| key.at().is_same(at)).map(|key| &key.name);
        keys.chain(pending).map(|name| name.to_lowercase()).collect()
    }

    /// Makes a proven key the current one. What was current before is to go; what is known of the new one as pending
    /// or stale is forgotten.
    pub(super) fn promote(&mut self, key: ProvisionerKeyRecord, secret: SecretDataRef, now: Timestamp) {
        let is_it = |other: &ProvisionerKeyRecord| match (&other.id, &key.id) {
            (Some(one), Some(two)) => one == two,
            _ => other.name.eq_ignore_ascii_case(&key.name) && other.at().is_same(&key.at()),
        };
        self.stale.retain(|stale| !is_it(&stale.key));
        let its = |pending: &KeyIntent| pending.at().is_same(&key.at()) && pending.name == key.name;
        self.pending.take_if(|pending| its(pending));
        if let Some(old) = self.current.take().filter(|old| !is_it(old)) {
            self.stale.push(RetiredKey { key: old, since: now, unused_since: None });
        }
        self.current = Some(key);
        self.secret = Some(secret);
    }
}
