//! The object is going: every registration of ours goes first. What cannot be deleted in time is named and left behind.

use coder_k8s_api::Reason;
use std::time::Duration;

use super::{
    decide::{RegistrationFacts, Stop},
    effect::{Decision, NextStep},
    observed::Secret,
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
    let (None, true, Some(desired)) =
        (&facts.record.current, facts.observed.has_finalizer, &facts.observed.desired)
    else {
        return None;
    };
    let Ok(place) = &facts.observed.target else { return None };
    let Some(Secret::Ours { holds: token, marks, .. }) = facts.observed.secrets.get(&desired.secret) else {
        return None;
    };
    let marked = marks.as_ref().map(|marks| marks.id.clone());
    let id = marked.or_else(|| token.as_ref().and_then(|token| token.id.clone()))?;
    if facts.record.stale.iter().any(|stale| stale.id.as_ref() == Some(&id)) {
        return None;
    }
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
