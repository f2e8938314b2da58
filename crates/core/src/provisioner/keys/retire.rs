//! Keys and Secrets that are no longer wanted go when nothing uses them any more: every pod is of the newest template,
//! none of an older one is left, and no daemon was seen with the key after that moment.
//!
//! How a key is looked for, deleted and abandoned is the same for every kind of credential: see
//! [`crate::credential::retirement`]. A deletion of the pool finds lost keys again first, and then empties the list.

use std::time::Duration;

use coder_k8s_api::Reason;
use jiff::{SignedDuration, Timestamp};

use super::{
    evidence::{Flow, KeyFacts, Live, Stop},
    observed::{
        Decision, Deletion, Effect, FoundKey, KeyEffect, KeyMarks, KeyProof, KeyQuery, ListedKey, Listing,
        NextStep, Secret, Version,
    },
    record::{KeyDetails, KeyRecord, KeyRef, KeyScope, Organization, RetiredKey},
};
use crate::{
    credential::{self, CredentialVerdict, Retirement, Retiring},
    intervals::{REQUEUE_STALE_KEYS, STALE_KEY_WITHOUT_CREDENTIALS},
    outcome::EventNote,
    target::{CoderdTarget, SecretDataRef},
};

impl Retirement for KeyFacts<'_> {
    type Details = KeyDetails;
    type Listed = ListedKey;
    type Query = KeyQuery;
    type Effect = KeyEffect;
    type Marks = KeyMarks;

    const REQUEUE: Duration = REQUEUE_STALE_KEYS;
    const ABANDON_AFTER: SignedDuration = STALE_KEY_WITHOUT_CREDENTIALS;

    fn record(&self) -> &KeyRecord {
        self.record
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn late_effect_window(&self) -> SignedDuration {
        self.observed.late_effect_window
    }

    fn listing(&self, key: &KeyRef) -> Option<&Listing> {
        self.observed.listings.get(&key.scope())
    }

    fn query(key: &KeyRef) -> KeyQuery {
        KeyQuery::Keys(key.scope())
    }

    fn delete(key: &KeyRef, listed: &ListedKey) -> KeyEffect {
        let FoundKey { id, name, .. } = &listed.key;
        KeyEffect::Delete { scope: key.scope(), name: name.clone(), id: id.clone() }
    }

    /// A key without a UUID was given to nobody.
    fn is_in_use(&self, retired: &RetiredKey, listed: Option<&ListedKey>) -> bool {
        let unproven = retired.credential.id.is_some() && retired.unused_since.is_none();
        let last_seen = listed.and_then(|listed| listed.last_seen);
        unproven || (last_seen.is_some() && last_seen > retired.unused_since)
    }

    fn abandoned(key: &KeyRef) -> EventNote {
        let message = format!(
            "{} could not be deleted and is left behind: delete it there",
            described(&key.name, key.id.as_deref(), &key.scope())
        );
        EventNote { warning: true, reason: Reason::KeyAbandoned, message }
    }

    fn left_alone(key: &KeyRef) -> Option<EventNote> {
        let message = format!(
            "{} is in use or was made by somebody else, and is left alone: delete it there if nobody needs it",
            described(&key.name, key.id.as_deref(), &key.scope())
        );
        Some(EventNote { warning: true, reason: Reason::KeyLeftAlone, message })
    }
}

pub(super) fn retire<'a>(facts: &KeyFacts<'a>, live: Option<&Live>) -> Retiring<KeyFacts<'a>> {
    let leftovers = facts.leftovers();
    if facts.record.stale.is_empty() && leftovers.is_empty() {
        return Retiring::next(NextStep::Done);
    }
    let Some(is_clear) = is_clear(facts, live) else {
        return Retiring::next(NextStep::Ask(KeyQuery::Pods));
    };
    let is_unmarked = |stale: &RetiredKey| stale.credential.id.is_some() && stale.unused_since.is_none();
    if is_clear {
        if let Some((secret, version)) = leftovers.into_iter().next() {
            return Retiring::next(NextStep::Act(Box::new(Effect::RemoveSecret { secret, version })));
        }
        if facts.record.stale.iter().any(is_unmarked) {
            return Retiring::next(NextStep::Record(Box::new(unused(facts.record, facts.now))));
        }
    }
    credential::retire(facts, live.is_some())
}

/// The pool is being deleted: every key of ours goes first.
pub(super) fn delete_all(facts: &KeyFacts<'_>, deletion: Deletion) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "the keys of the pool are being deleted");
    let mut clean_up = credential::clean_up(facts, deletion);
    match find_lost(facts) {
        Err(Stop::NextStep(next)) => (clean_up.next, clean_up.events) = (*next, Vec::new()),
        Err(Stop::Wait(_)) if !deletion.overdue => {
            (clean_up.next, clean_up.events) = (NextStep::Done, Vec::new());
        }
        Err(Stop::Wait(_)) | Ok(()) if clean_up.next == NextStep::RemoveFinalizer => {
            clean_up.events.extend(strangers(facts));
            clean_up.events.extend(unmarked_key(facts));
        }
        Err(Stop::Wait(_)) | Ok(()) => {}
    }
    let Retiring { next, again, events } = clean_up;
    Decision { next, again, events, ..Decision::rest(None, verdict) }
}

/// A status that was lost, or a part of it, is found again first: by the annotations of the Secret, or by what it holds.
fn find_lost(facts: &KeyFacts<'_>) -> Flow<()> {
    if facts.record.current_id().is_some() || !facts.observed.has_finalizer {
        return Ok(());
    }
    if let Some(record) = facts.marks().into_iter().find_map(|marks| facts.unrecorded(marks)) {
        return Err(Stop::record(record));
    }
    facts.secrets_are_known()?;
    match facts.live()? {
        Some(live) if !facts.record.knows(&live.key.id) => {
            let mut record = facts.record.clone();
            record.promote(facts.as_recorded(&live.key)?, live.secret, facts.now);
            Err(Stop::record(record))
        }
        _ => Ok(()),
    }
}

/// Whether every pod runs with the live key, and with nothing else. None: the pods must be listed.
fn is_clear(facts: &KeyFacts<'_>, live: Option<&Live>) -> Option<bool> {
    let Some(live) = live else { return Some(false) };
    let run = facts.run(live);
    let rolled = facts.observed.workload.as_ref().is_some_and(|workload| {
        workload.settled
            && Some(&workload.run) == run.as_ref()
            && live.secret == facts.observed.desired.secret
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
    for stale in record.stale.iter_mut().filter(|stale| stale.credential.id.is_some()) {
        stale.unused_since.get_or_insert(now);
    }
    record
}

/// Tells of a key that nothing is known of but that a Secret of ours held it: neither status nor annotations say more.
pub(super) fn unmarked_key(facts: &KeyFacts<'_>) -> Option<EventNote> {
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
    let organization = Organization { id: None, name: desired.organization.clone() };
    Some(KeyFacts::abandoned(&KeyRef {
        id: None,
        name: desired.name.name.clone(),
        target: CoderdTarget { url, ..CoderdTarget::default() },
        details: KeyDetails { organization, tags_hash: None },
    }))
}

/// Tells that a key is not taken for ours.
pub(super) fn stranger(key: &FoundKey, target: &CoderdTarget) -> EventNote {
    let organization = Organization { id: Some(key.organization.clone()), name: String::new() };
    let message = format!(
        "{} was not made by this pool, as far as it knows, and is left alone",
        described(&key.name, Some(&key.id), &KeyScope { target: target.clone(), organization })
    );
    EventNote { warning: false, reason: Reason::KeyLeftAlone, message }
}

/// Tells of keys whose material is in our Secret and that are not known to be ours.
pub(super) fn strangers(facts: &KeyFacts<'_>) -> Vec<EventNote> {
    let Ok(target) = &facts.observed.target else { return Vec::new() };
    let stored = facts.observed.proofs.values().filter_map(|proof| match proof {
        KeyProof::Is(key) => Some(key).filter(|key| !facts.is_known(&key.id)),
        KeyProof::Refused | KeyProof::Unsupported | KeyProof::Unknown(_) => None,
    });
    stored.map(|key| stranger(key, target)).collect()
}

/// A key, for people: enough to find it.
fn described(name: &str, id: Option<&str>, scope: &KeyScope) -> String {
    let id = id.map_or_else(String::new, |id| format!(" ({id})"));
    let server = if scope.target.url.is_empty() { "another coderd" } else { &scope.target.url };
    format!("provisioner key {name}{id} in organization {} of {server}", scope.organization.word())
}

impl KeyFacts<'_> {
    /// Secrets of ours other than the wanted one.
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
