//! The key in use is not what the spec asks for, or there is none: another one is announced, made, and stored.

use std::collections::BTreeSet;

use coder_k8s_api::Reason;

use super::{
    evidence::{Flow, KeyFacts, Live, Stop},
    observed::{Blocker, Effect, KeyEffect, KeyMarks, ListedKey, Listing, NextStep},
    record::{KeyDetails, KeyIntent, KeyRecord, KeyRef, KeyScope, Organization, RetiredKey},
    retire, tags,
};
use crate::{
    credential::{CredentialVerdict, Listed as _},
    outcome::EventNote,
    target::CoderdTarget,
};

pub(super) fn replace(facts: &KeyFacts<'_>, live: Option<&Live>) -> Flow<()> {
    let observed = facts.observed;
    if let Err(closed) = &observed.may_make {
        return Err(Stop::Wait(CredentialVerdict::working(closed.reason, closed.message.clone())));
    }
    let scope = facts.target_scope()?;
    let version = facts.writable()?;
    let listing = facts.listing(&scope)?;
    is_complete(live, &scope, listing)?;
    remember_marked(facts, &scope, listing)?;
    if let Some(pending) = facts.record.pending.as_ref().filter(|pending| is_wanted(facts, pending, &scope)) {
        let listed =
            listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&pending.credential.name));
        match listed {
            None if !observed.has_finalizer => return Err(Stop::act(Effect::AddFinalizer)),
            None => {
                return Err(Stop::act(Effect::Coderd(KeyEffect::Make {
                    key: Box::new(pending.clone()),
                    tags: observed.desired.tags.clone(),
                    secret: observed.desired.secret.clone(),
                    version,
                    marks: marks_of(pending),
                })));
            }
            // Made in an earlier attempt, whose material is lost.
            Some(listed) if listed.was_announced(&pending.credential, pending.since) => {
                let (name, id) = (listed.key.name.clone(), listed.key.id.clone());
                return Err(Stop::act(Effect::Coderd(KeyEffect::Delete { scope, name, id })));
            }
            // Somebody else took the name, or pods already use it: another name.
            Some(_) => {}
        }
    }
    announce(facts, live, &scope, listing)
}

/// What to say while a step is under way.
pub(super) fn progress(facts: &KeyFacts<'_>, live: Option<&Live>, next: &NextStep) -> CredentialVerdict {
    let making = facts.record.pending.is_some()
        || matches!(next, NextStep::Record(record) if record.pending.is_some());
    if !making && live.is_some() && matches!(next, NextStep::Act(_) | NextStep::Record(_)) {
        return CredentialVerdict::working(
            Reason::Recording,
            "the key is proven; its records are brought up to date",
        );
    }
    match &facts.record.current {
        Some(key) => {
            CredentialVerdict::working(Reason::Rotating, format!("key {} is being replaced", key.name))
        }
        None => CredentialVerdict::working(Reason::Creating, "the key is being made"),
    }
}

/// Keys that could be taken for ours and are not, when a key is announced beside them: one that has a name of ours, and
/// one whose material is in the Secret and about to be overwritten.
pub(super) fn passed_over(facts: &KeyFacts<'_>, next: &NextStep) -> Vec<EventNote> {
    let announced = match next {
        NextStep::Record(record) => {
            record.pending.as_ref().filter(|key| Some(*key) != facts.record.pending.as_ref())
        }
        _ => None,
    };
    let Some(scope) = announced.map(|key| key.credential.scope()) else { return Vec::new() };
    let Some(Listing::Known(listing)) = facts.observed.listings.get(&scope) else { return Vec::new() };
    let named = listing.iter().filter(|listed| facts.observed.desired.name.covers(&listed.key.name));
    let named = named.filter(|listed| !is_one_of_ours(facts, listed)).map(|listed| &listed.key);
    let named = named.map(|key| retire::stranger(key, &scope.target));
    let mut events: Vec<_> =
        named.chain(retire::strangers(facts)).chain(retire::unmarked_key(facts)).collect();
    events.dedup();
    events
}

/// coderd lists what a credential may see. A list without a key that was proven a moment ago is not the whole of it.
fn is_complete(live: Option<&Live>, scope: &KeyScope, listing: &[ListedKey]) -> Flow<()> {
    let here = live.filter(|live| scope.organization.id.as_ref() == Some(&live.key.organization));
    match here {
        Some(live) if !listing.iter().any(|listed| listed.key.id == live.key.id) => {
            let message = "coderd does not list all keys to these credentials".to_owned();
            Err(Stop::unsure(&Blocker::new(Reason::ListIncomplete, message)))
        }
        _ => Ok(()),
    }
}

/// A key that only the annotations of the Secret know is put on the record before they are overwritten.
fn remember_marked(facts: &KeyFacts<'_>, scope: &KeyScope, listing: &[ListedKey]) -> Flow<()> {
    for marks in facts.marks() {
        let here =
            marks.deployment_id == scope.target.deployment_id && marks.organization == scope.organization.id;
        let is_gone = here && !listing.iter().any(|listed| Some(&listed.key.id) == marks.id.as_ref());
        if let Some(record) = facts.unrecorded(marks).filter(|_| !is_gone) {
            return Err(Stop::record(record));
        }
    }
    Ok(())
}

/// The record with what it lost of the current key, if annotations speak of that one.
fn completed(record: &KeyRecord, marks: &KeyMarks) -> Option<KeyRecord> {
    let mut record = record.clone();
    let key = record.current.as_mut().filter(|key| key.id.is_none())?;
    let agrees = |lost: &Option<String>, marked: &Option<String>| lost.is_none() || lost == marked;
    let is_it = key.name.eq_ignore_ascii_case(&marks.name)
        && agrees(&key.details.organization.id, &marks.organization)
        && agrees(&key.target.deployment_id, &marks.deployment_id);
    if !is_it {
        return None;
    }
    key.id.clone_from(&marks.id);
    key.details.organization.id.clone_from(&marks.organization);
    key.details.tags_hash.clone_from(&marks.tags_hash);
    key.target.deployment_id.clone_from(&marks.deployment_id);
    Some(record)
}

/// Announces a key under a free name. What was announced before and is not wanted any more is to go.
fn announce(facts: &KeyFacts<'_>, live: Option<&Live>, scope: &KeyScope, listing: &[ListedKey]) -> Flow<()> {
    let name = match free_name(facts, scope, listing) {
        Ok(name) => name,
        Err(verdict) if facts.record.pending.is_none() => return Err(Stop::Wait(verdict)),
        Err(_) => {
            let mut record = facts.record.clone();
            record.drop_pending();
            return Err(Stop::record(record));
        }
    };
    if !facts.observed.has_finalizer {
        return Err(Stop::act(Effect::AddFinalizer));
    }
    let mut record = facts.record.clone();
    record.drop_pending();
    let details = KeyDetails {
        organization: scope.organization.clone(),
        tags_hash: Some(tags::hash(&facts.observed.desired.tags)),
    };
    record.pending = Some(KeyIntent {
        credential: KeyRef { id: None, name, target: scope.target.clone(), details },
        reason: reason(facts, live).to_string(),
        since: facts.now,
    });
    Err(Stop::record(record))
}

/// Whether an announced key is still the one to make.
fn is_wanted(facts: &KeyFacts<'_>, pending: &KeyIntent, scope: &KeyScope) -> bool {
    let key = &pending.credential;
    scope.holds(key)
        && key.details.tags_hash.as_deref() == Some(&*tags::hash(&facts.observed.desired.tags))
        && facts.observed.desired.name.covers(&key.name)
}

/// A name that nobody has: the base, unless somebody with a better claim asks for it, or the base with a hash. A base
/// that the user chose is not evaded when somebody else has it.
fn free_name(
    facts: &KeyFacts<'_>,
    scope: &KeyScope,
    listing: &[ListedKey],
) -> Result<String, CredentialVerdict> {
    let base = &facts.observed.desired.name;
    let older = facts.observed.claimants.iter().find(|other| other.is_before(&facts.observed.object));
    if let Some(older) = older.filter(|_| base.chosen) {
        let message = format!(
            "{} asks for the key {} too, and was there first; choose another name with spec.key.name",
            older.called, base.name
        );
        return Err(CredentialVerdict::stalled(Reason::KeyConflict, message));
    }
    let has_base = listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&base.name));
    if base.chosen && has_base.is_some_and(|listed| !is_one_of_ours(facts, listed)) {
        let message = format!(
            "coderd has a key {} that this pool did not make; delete it, or choose another name with spec.key.name",
            base.name
        );
        return Err(CredentialVerdict::stalled(Reason::KeyConflict, message));
    }
    let mut taken: BTreeSet<_> = listing.iter().map(|listed| listed.key.name.to_lowercase()).collect();
    taken.extend(facts.record.names_in(scope));
    if older.is_some() {
        taken.insert(base.name.clone());
    }
    base.candidates().find(|name| !taken.contains(name)).ok_or_else(|| {
        CredentialVerdict::stalled(
            Reason::KeyConflict,
            format!("every name that starts with {} is taken in coderd", base.name),
        )
    })
}

fn is_one_of_ours(facts: &KeyFacts<'_>, listed: &ListedKey) -> bool {
    let half_made = facts.record.stale.iter().filter(|stale| stale.credential.id.is_none());
    let half_made = half_made.map(|stale| (&stale.credential, stale.since));
    let pending = facts.record.pending.iter().map(|pending| (&pending.credential, pending.since));
    facts.is_known(&listed.key.id)
        || pending.chain(half_made).any(|(announced, since)| listed.was_announced(announced, since))
}

/// Why a key is made.
fn reason(facts: &KeyFacts<'_>, live: Option<&Live>) -> Reason {
    let desired = &facts.observed.desired;
    let Some(current) = &facts.record.current else { return Reason::FirstKey };
    let moved = facts.observed.target.as_ref().is_ok_and(|target| !current.target.is_same(target));
    match live {
        _ if moved => Reason::ControlPlaneChanged,
        Some(live) if !desired.name.covers(&live.key.name) => Reason::KeyNameChanged,
        Some(live) if !tags::mean_the_same(&desired.tags, &live.key.tags) => Reason::TagsChanged,
        Some(_) => Reason::OrganizationChanged,
        None if facts.is_refused() => Reason::KeyRefused,
        None => Reason::SecretLost,
    }
}

/// The annotations for a key that was announced; the UUID is not known before it is made.
fn marks_of(pending: &KeyIntent) -> KeyMarks {
    let KeyRef { id: _, name, target, details } = &pending.credential;
    KeyMarks {
        id: None,
        name: name.clone(),
        organization: details.organization.id.clone(),
        tags_hash: details.tags_hash.clone(),
        deployment_id: target.deployment_id.clone(),
    }
}

impl KeyFacts<'_> {
    /// The record with a key on it that so far only annotations know.
    pub(super) fn unrecorded(&self, marks: &KeyMarks) -> Option<KeyRecord> {
        let id = marks.id.as_ref().filter(|id| !self.record.knows(id))?;
        if let Some(record) = completed(self.record, marks) {
            return Some(record);
        }
        let known = [self.observed.target.as_ref().ok(), self.record.current.as_ref().map(|key| &key.target)];
        let target = known.into_iter().flatten().find(|known| known.deployment_id == marks.deployment_id);
        let elsewhere =
            || CoderdTarget { deployment_id: marks.deployment_id.clone(), ..CoderdTarget::default() };
        let name = marks.organization.clone().unwrap_or_default();
        let organization = Organization { id: marks.organization.clone(), name };
        let credential = KeyRef {
            id: Some(id.clone()),
            name: marks.name.clone(),
            target: target.cloned().unwrap_or_else(elsewhere),
            details: KeyDetails { organization, tags_hash: marks.tags_hash.clone() },
        };
        let mut record = self.record.clone();
        record.retire(RetiredKey { credential, since: self.now, unused_since: None });
        Some(record)
    }

    /// Whether a UUID is known to be ours: it is on the status, or in the annotations of our Secrets.
    pub(super) fn is_known(&self, id: &str) -> bool {
        self.record.knows(id) || self.marks().iter().any(|marks| marks.id.as_deref() == Some(id))
    }
}
