//! Keys and Secrets that are no longer wanted go when nothing uses them any more: every pod is of the newest template,
//! none of an older one is left, and no daemon was seen with the key after that moment.
//!
//! How a key is looked for, deleted and abandoned is the same for every kind of credential: see
//! [`crate::credential::retirement`]. A deletion of the pool finds lost keys again first, and then empties the list.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    Decision, Deletion, FoundKey, KeyDetails, KeyProof, KeyQuery, KeyRecord, KeyRef, Keys, NextStep,
    Organization, Query, RetiredKey, Secret,
    evidence::{Flow, KeyFacts, Live, Stop},
};
use crate::{
    credential::{self, CredentialKind as _, CredentialVerdict},
    outcome::EventNote,
    target::{CoderdTarget, SecretDataRef},
};

/// What can go now. `rest` is the decision while nothing can.
pub(super) fn retire(facts: &KeyFacts<'_>, live: Option<&Live>, rest: Decision) -> Decision {
    let leftover = facts.leftover(&facts.observed.desired.secret);
    if facts.record.stale.is_empty() && leftover.is_none() {
        return rest;
    }
    let Some(is_clear) = is_clear(facts, live) else {
        return rest.then(NextStep::Ask(Query::Own(KeyQuery::Pods)));
    };
    let is_unmarked = |stale: &RetiredKey| stale.credential.id.is_some() && stale.unused_since.is_none();
    if is_clear {
        if let Some(removal) = leftover {
            return rest.then(NextStep::Act(Box::new(removal)));
        }
        if facts.record.stale.iter().any(is_unmarked) {
            return rest.then(NextStep::Record(Box::new(unused(facts.record, facts.now))));
        }
    }
    credential::retire(facts, live.is_some(), rest)
}

/// The pool is being deleted: every key of ours goes first.
pub(super) fn delete_all(facts: &KeyFacts<'_>, deletion: Deletion) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "the keys of the pool are being deleted");
    let mut decision = credential::clean_up(facts, deletion, verdict);
    match find_lost(facts) {
        Err(Stop::NextStep(next)) => (decision.next, decision.events) = (*next, Vec::new()),
        Err(Stop::Wait(_)) if !deletion.overdue => {
            (decision.next, decision.events) = (NextStep::Done, Vec::new());
        }
        Err(Stop::Wait(_)) | Ok(()) if decision.next == NextStep::RemoveFinalizer => {
            decision.events.extend(strangers(facts));
            decision.events.extend(unmarked_key(facts));
        }
        Err(Stop::Wait(_)) | Ok(()) => {}
    }
    decision
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
    match &facts.observed.own.old_pods {
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
    Some(Keys::abandoned(&KeyRef {
        id: None,
        name: desired.name.name.clone(),
        target: CoderdTarget { url, ..CoderdTarget::default() },
        details: KeyDetails { organization, tags_hash: None },
    }))
}

/// Tells that a key is not taken for ours.
pub(super) fn stranger(key: &FoundKey, target: &CoderdTarget) -> EventNote {
    let organization = Organization { id: Some(key.organization.clone()), name: String::new() };
    let key = KeyRef {
        id: Some(key.id.clone()),
        name: key.name.clone(),
        target: target.clone(),
        details: KeyDetails { organization, tags_hash: None },
    };
    let message =
        format!("{} was not made by this pool, as far as it knows, and is left alone", key.described());
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
