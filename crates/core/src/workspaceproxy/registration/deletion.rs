//! The object is going: every registration of ours goes first. What cannot be deleted in time is named and left behind.

use coder_k8s_api::Reason;
use std::time::Duration;

use super::{
    decide::{RegistrationFacts, Stop},
    effect::{Decision, NextStep},
    record::{RegistrationRecord, RegistrationRef},
    retire::{self, Fate},
    verdict::CredentialVerdict,
};
use crate::{object::Deletion, outcome::EventNote};

/// How soon to look again.
const AGAIN: Duration = Duration::from_secs(5);

pub(super) fn decide(facts: &RegistrationFacts<'_>, deadline: Deletion) -> Decision {
    let verdict =
        CredentialVerdict::working(Reason::Deleting, "the registration of the proxy is being deleted");
    let mut decision = Decision { again: Some(AGAIN), ..Decision::rest(None, verdict) };
    (decision.next, decision.events) = match forgotten(facts) {
        Some(Stop::NextStep(next)) => (*next, Vec::new()),
        _ => empty(facts, deadline),
    };
    decision
}

/// A status that was lost is found again first, by the annotations of the Secret or by the token in it.
fn forgotten(facts: &RegistrationFacts<'_>) -> Option<Stop> {
    let observed = facts.observed;
    if facts.record.current.is_some() || !observed.has_finalizer {
        return None;
    }
    let Some(desired) = &observed.desired else {
        let supplied = observed.given.as_ref().ok().and_then(|given| given.token.id.as_ref());
        return facts.unrecorded(|marks| Some(&marks.id) == supplied).map(Stop::record);
    };
    let Ok(place) = &observed.target else { return None };
    if let Some(record) = facts.unrecorded(|marks| marks.is_of(place)) {
        return Some(Stop::record(record));
    }
    let retired = |id: &String| facts.record.stale.iter().any(|stale| stale.id.as_ref() == Some(id));
    let id = facts.known_ids().find(|id| !retired(id))?.clone();
    let current = RegistrationRef { id, name: desired.name.clone(), place: place.clone() };
    Some(Stop::record(RegistrationRecord { current: Some(current), ..facts.record.clone() }))
}

/// Empties the list, the current registration last.
fn empty(facts: &RegistrationFacts<'_>, deadline: Deletion) -> (NextStep, Vec<EventNote>) {
    let (mut events, mut waits) = (Vec::new(), false);
    // Nothing is wanted any more, what is current neither.
    let none = RegistrationRecord { current: None, ..facts.record.clone() };
    let asked = RegistrationFacts { record: &none, ..*facts };
    for stale in facts.record.all(facts.now) {
        match retire::fate(&asked, &stale) {
            Fate::Ask(look) => return (NextStep::Ask(look), Vec::new()),
            Fate::Delete(step) => return (NextStep::Act(step), Vec::new()),
            Fate::Gone => {}
            Fate::Unreachable => events.push(retire::abandoned(&stale)),
            Fate::Wait if deadline.overdue => events.push(retire::abandoned(&stale)),
            Fate::Wait => waits = true,
        }
    }
    if waits { (NextStep::Done, Vec::new()) } else { (NextStep::RemoveFinalizer, events) }
}
