//! Keys and Secrets that are no longer wanted go when nothing uses them any more: every pod is of the newest template,
//! none of an older one is left, and no daemon was seen with the key after that moment.
//!
//! A key that was announced and perhaps made was never given to anybody and waits for no pod; but a request that coderd
//! got may still be carried out for a while.

use coder_k8s_api::Reason;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    effect::{Effect, KeyEffect, KeyQuery, NextStep},
    evidence::{KeyFacts, Live},
    observed::{FoundKey, KeyProof, ListedKey, Listing, Secret, Version},
    ownership,
    record::{KeyRecord, ProvisionerKeyRecord, RetiredKey},
    target::{CoderdTarget, KeyScope, Organization, SecretDataRef},
};
use crate::outcome::EventNote;

/// How soon to look again for pods and daemons to be gone.
const SOON: Duration = Duration::from_secs(15);
/// How long a key stays on the list that nothing is left to delete with.
const PATIENCE: SignedDuration = SignedDuration::from_hours(1);

/// What is to be done about what is no longer wanted.
#[derive(Debug, Default)]
pub(super) struct Retired {
    pub(super) next: Option<NextStep>,
    pub(super) again: Option<Duration>,
    pub(super) events: Vec<EventNote>,
}

impl Retired {
    fn next(next: NextStep) -> Self {
        Self { next: Some(next), ..Self::default() }
    }

    fn again(again: Duration) -> Self {
        Self { again: Some(again), ..Self::default() }
    }
}

/// What is to become of one key.
pub(super) enum Fate {
    /// It must be looked for.
    Ask(Box<KeyScope>),
    /// It is there and ours.
    Delete(Box<Effect>),
    /// It is not there any more, or never was.
    Gone,
    /// It bears an announced name and is not known to be ours: it stays, and people are told.
    Left,
    /// It cannot be reached; for good: nothing is left to reach it with.
    Unreachable { for_good: bool },
    /// It may still appear, or is still used.
    Wait,
}

pub(super) fn retire(facts: &KeyFacts<'_>, live: Option<&Live>) -> Retired {
    let leftovers = facts.leftovers();
    if facts.record.stale.is_empty() && leftovers.is_empty() {
        return Retired::default();
    }
    let Some(is_clear) = is_clear(facts, live) else {
        return Retired::next(NextStep::Ask(KeyQuery::Pods));
    };
    if is_clear {
        if let Some((secret, version)) = leftovers.into_iter().next() {
            return Retired::next(NextStep::Act(Box::new(Effect::RemoveSecret { secret, version })));
        }
        if facts.record.stale.iter().any(|stale| stale.key.id.is_some() && stale.unused_since.is_none()) {
            return Retired::next(NextStep::Record(Box::new(unused(facts.record, facts.now))));
        }
    }
    let mut kept = Vec::new();
    let mut retired = Retired::default();
    for stale in &facts.record.stale {
        match fate(facts, live, stale) {
            Fate::Ask(at) => return Retired::next(NextStep::Ask(KeyQuery::Keys(*at))),
            Fate::Delete(step) => return Retired::next(NextStep::Act(step)),
            Fate::Gone => {}
            Fate::Left => retired.events.push(left(&stale.key)),
            Fate::Unreachable { for_good: true } if is_older(facts.now, stale.since, PATIENCE) => {
                retired.events.push(abandoned(&stale.key));
            }
            Fate::Unreachable { .. } | Fate::Wait => kept.push(stale.clone()),
        }
    }
    if kept.len() == facts.record.stale.len() {
        return Retired::again(SOON);
    }
    retired.next = Some(NextStep::Record(Box::new(KeyRecord { stale: kept, ..facts.record.clone() })));
    retired
}

/// Whether every pod runs with the live key, and with nothing else. None: pods must be looked at.
fn is_clear(facts: &KeyFacts<'_>, live: Option<&Live>) -> Option<bool> {
    let Some(live) = live else { return Some(false) };
    let run = facts.run(live);
    let rolled = facts.observed.workload.as_ref().is_some_and(|workload| {
        workload.settled && Some(&workload.run) == run.as_ref() && live.place == facts.observed.desired.secret
    });
    match &facts.observed.old_pods {
        _ if !rolled => Some(false),
        None => None,
        Some(left) => Some(*left == Ok(false)),
    }
}

/// Records that nothing uses the old keys from now on.
fn unused(record: &KeyRecord, now: Timestamp) -> KeyRecord {
    // A status holds whole seconds; rounded down, a daemon that left in the same second would seem to be there still.
    let now = Timestamp::from_second(now.as_second() + 1).unwrap_or(now);
    let mut record = record.clone();
    for stale in record.stale.iter_mut().filter(|stale| stale.key.id.is_some()) {
        stale.unused_since.get_or_insert(now);
    }
    record
}

fn fate(facts: &KeyFacts<'_>, live: Option<&Live>, stale: &RetiredKey) -> Fate {
    if stale.key.id.is_some() && (live.is_none() || stale.unused_since.is_none()) {
        return Fate::Wait;
    }
    match look_for(facts, &stale.key, stale.since) {
        Ok(Some(listed)) if listed.last_seen.is_some_and(|observed| Some(observed) > stale.unused_since) => {
            Fate::Wait
        }
        Ok(Some(listed)) => Fate::Delete(Box::new(delete(stale.key.at(), listed))),
        Ok(None) => Fate::Gone,
        Err(fate) => fate,
    }
}

/// Looks for a key of ours where it was made.
pub(super) fn look_for<'a>(
    facts: &KeyFacts<'a>,
    key: &ProvisionerKeyRecord,
    since: Timestamp,
) -> Result<Option<&'a ListedKey>, Fate> {
    let at = key.at();
    let listing = match facts.observed.listings.get(&at) {
        None => return Err(Fate::Ask(Box::new(at))),
        Some(Listing::Known(listing)) => listing,
        Some(Listing::Unknown(_)) => return Err(Fate::Unreachable { for_good: false }),
        Some(Listing::Gone) => return Err(Fate::Unreachable { for_good: true }),
    };
    if let Some(id) = &key.id {
        return Ok(listing.iter().find(|listed| listed.key.id == *id));
    }
    let named = listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&key.name));
    // One that is known by its UUID is on the list by itself.
    let named = named.filter(|listed| !facts.record.knows(&listed.key.id));
    match named {
        Some(listed) if ownership::is_leftover(listed, key, since) => Ok(Some(listed)),
        Some(_) => Err(Fate::Left),
        None if !is_older(facts.now, since, facts.observed.late_effect_window) => Err(Fate::Wait),
        None => Ok(None),
    }
}

/// Whether something is older than that. A time that was lost reads as one far ahead, and is as old as can be.
fn is_older(now: Timestamp, since: Timestamp, than: SignedDuration) -> bool {
    let age = now.duration_since(since);
    age > than || age < -PATIENCE
}

pub(super) fn delete(at: KeyScope, listed: &ListedKey) -> Effect {
    Effect::Coderd(KeyEffect::Delete { at, name: listed.key.name.clone(), id: listed.key.id.clone() })
}

/// Tells that a key stays behind that nothing is left to delete with.
pub(super) fn abandoned(key: &ProvisionerKeyRecord) -> EventNote {
    let message = format!(
        "{} could not be deleted and is left behind: delete it there",
        called(&key.name, key.id.as_deref(), &key.at())
    );
    EventNote { warning: true, reason: Reason::KeyAbandoned, message }
}

/// Tells of a key that nothing is known of but that a Secret of ours held it: neither status nor annotations say more.
pub(super) fn perhaps(facts: &KeyFacts<'_>) -> Option<EventNote> {
    let is_unmarked = |place: &SecretDataRef| {
        let secret = facts.observed.secrets.get(place);
        matches!(secret, Some(Secret::Ours { holds: Some(_), marks: None, .. }))
    };
    let is_asked = |place: &SecretDataRef| {
        matches!(facts.observed.proofs.get(place), Some(KeyProof::Is(_) | KeyProof::Refused))
    };
    facts
        .observed
        .secrets
        .keys()
        .find(|place| is_unmarked(place) && !is_asked(place))
        .filter(|_| facts.record.is_empty())?;
    let desired = &facts.observed.desired;
    let url = facts.observed.workload.as_ref().map(|workload| workload.run.url.clone()).unwrap_or_default();
    let place = CoderdTarget { url, ..CoderdTarget::default() };
    let organization = Organization { id: None, name: desired.organization.clone() };
    Some(abandoned(&ProvisionerKeyRecord {
        id: None,
        name: desired.name.name.clone(),
        organization,
        tags_hash: None,
        place,
    }))
}

/// Tells that a key stays that may or may not be ours.
pub(super) fn left(key: &ProvisionerKeyRecord) -> EventNote {
    let message = format!(
        "{} is in use or was made by somebody else, and is left alone: delete it there if nobody needs it",
        called(&key.name, key.id.as_deref(), &key.at())
    );
    EventNote { warning: true, reason: Reason::KeyLeftAlone, message }
}

/// Tells that a key is not taken for ours.
pub(super) fn stranger(key: &FoundKey, place: &CoderdTarget) -> EventNote {
    let organization = Organization { id: Some(key.organization.clone()), name: String::new() };
    let message = format!(
        "{} was not made by this pool, as far as it knows, and is left alone",
        called(&key.name, Some(&key.id), &KeyScope { place: place.clone(), organization })
    );
    EventNote { warning: false, reason: Reason::KeyLeftAlone, message }
}

/// Tells of keys whose material is in our Secret and that are not known to be ours.
pub(super) fn strangers(facts: &KeyFacts<'_>) -> Vec<EventNote> {
    let Ok(target) = &facts.observed.target else { return Vec::new() };
    let held = facts.observed.proofs.values().filter_map(|proof| match proof {
        KeyProof::Is(key) => {
            Some(key).filter(|key| !ownership::is_known(&key.id, facts.record, &facts.marks()))
        }
        KeyProof::Refused | KeyProof::Unsupported | KeyProof::Unknown(_) => None,
    });
    held.map(|key| stranger(key, target)).collect()
}

/// A key, for people: enough to find it.
pub(super) fn called(name: &str, id: Option<&str>, at: &KeyScope) -> String {
    let id = id.map_or_else(String::new, |id| format!(" ({id})"));
    let server = if at.place.url.is_empty() { "another coderd" } else { &at.place.url };
    format!("provisioner key {name}{id} in organization {} of {server}", at.organization.word())
}

impl KeyFacts<'_> {
    /// Places of ours, other than the wanted one, that hold something.
    pub(super) fn leftovers(&self) -> Vec<(SecretDataRef, Version)> {
        let others =
            self.observed.secrets.iter().filter(|(place, _)| **place != self.observed.desired.secret);
        let ours = others.filter_map(|(place, secret)| match secret {
            Secret::Ours { version, .. } => Some((place.clone(), Version::Is(version.clone()))),
            Secret::Absent | Secret::Blocked(_) | Secret::Unknown(_) => None,
        });
        ours.collect()
    }
}
