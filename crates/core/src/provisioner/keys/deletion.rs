//! The object is going: every key of ours goes first. What cannot be deleted in time is named and left behind.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    effect::{Decision, KeyQuery, NextStep},
    evidence::{Flow, KeyFacts, Stop},
    observed::Deletion,
    record::ProvisionerKeyRecord,
    retire::{self, Fate},
    verdict::CredentialVerdict,
};
use crate::outcome::EventNote;

/// How soon to look again.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) fn decide(facts: &KeyFacts<'_>, deadline: Deletion) -> Decision {
    let verdict = CredentialVerdict::working(Reason::Deleting, "the keys of the pool are being deleted");
    let (next, events) = match forgotten(facts) {
        Err(Stop::NextStep(next)) => (*next, Vec::new()),
        Err(Stop::Wait(_)) if !deadline.overdue => (NextStep::Done, Vec::new()),
        Err(Stop::Wait(_)) | Ok(()) => empty(facts, deadline),
    };
    Decision { next, again: Some(AGAIN), events, ..Decision::rest(None, verdict) }
}

/// A status that was lost, or a part of it, is found again first: by the annotations of the Secret, or by what it holds.
fn forgotten(facts: &KeyFacts<'_>) -> Flow<()> {
    let known = facts.record.current.as_ref().is_some_and(|key| key.id.is_some());
    if known || !facts.observed.has_finalizer {
        return Ok(());
    }
    if let Some(record) = facts.marks().into_iter().find_map(|marks| facts.unrecorded(marks)) {
        return Err(Stop::record(record));
    }
    facts.secrets_are_known()?;
    match facts.live()? {
        Some(live) if !facts.record.knows(&live.key.id) => {
            let mut record = facts.record.clone();
            record.promote(facts.as_recorded(&live.key)?, live.place, facts.now);
            Err(Stop::record(record))
        }
        _ => Ok(()),
    }
}

/// Empties the list: pending, stale, and the current key last.
fn empty(facts: &KeyFacts<'_>, deadline: Deletion) -> (NextStep, Vec<EventNote>) {
    let mut events = Vec::new();
    let mut waits = false;
    for (key, since) in all(facts) {
        match fate(facts, &key, since) {
            Fate::Ask(at) => return (NextStep::Ask(KeyQuery::Keys(*at)), Vec::new()),
            Fate::Delete(step) => return (NextStep::Act(step), Vec::new()),
            Fate::Gone => {}
            Fate::Left => events.push(retire::left(&key)),
            Fate::Unreachable { for_good } if for_good || deadline.overdue => {
                events.push(retire::abandoned(&key));
            }
            Fate::Wait if deadline.overdue => events.push(retire::abandoned(&key)),
            Fate::Unreachable { .. } | Fate::Wait => waits = true,
        }
    }
    if waits {
        return (NextStep::Done, Vec::new());
    }
    events.extend(retire::strangers(facts));
    events.extend(retire::perhaps(facts));
    (NextStep::RemoveFinalizer, events)
}

fn all(facts: &KeyFacts<'_>) -> Vec<(ProvisionerKeyRecord, Timestamp)> {
    let mut record = facts.record.clone();
    record.drop_pending();
    let stale = record.stale.into_iter().map(|stale| (stale.key, stale.since));
    let current = record.current.map(|key| (key, Timestamp::MAX));
    stale.chain(current).collect()
}

fn fate(facts: &KeyFacts<'_>, key: &ProvisionerKeyRecord, since: Timestamp) -> Fate {
    match retire::look_for(facts, key, since) {
        Ok(Some(listed)) => Fate::Delete(Box::new(retire::delete(key.at(), listed))),
        Ok(None) => Fate::Gone,
        Err(fate) => fate,
    }
}
