//! The object is going: every registration of ours goes first. What cannot be deleted in time is named and left behind.

use std::time::Duration;

use super::{
    decide::{Pass, Stop},
    finding::Finding,
    record::{Record, Registration},
    retire::{self, Fate},
    seen::Secret,
    step::{Decision, Next},
};
use crate::{object::Going, outcome::Note};

/// How soon to look again.
const AGAIN: Duration = Duration::from_secs(5);

pub(super) fn decide(pass: &Pass<'_>, deadline: Going) -> Decision {
    let finding = Finding::working("Deleting", "the registration of the proxy is being deleted");
    let mut decision = Decision { again: Some(AGAIN), ..Decision::rest(None, finding) };
    (decision.next, decision.notes) = match forgotten(pass) {
        Some(Stop::Next(next)) => (*next, Vec::new()),
        _ => empty(pass, deadline),
    };
    decision
}

/// A status that was lost is found again first, by the annotations of the Secret or by the token in it.
fn forgotten(pass: &Pass<'_>) -> Option<Stop> {
    let (None, true, Some(wanted)) = (&pass.record.current, pass.seen.is_held, &pass.seen.wanted) else {
        return None;
    };
    let Ok(place) = &pass.seen.target else { return None };
    let Some(Secret::Ours { holds: token, marks, .. }) = pass.seen.secrets.get(&wanted.secret) else {
        return None;
    };
    let marked = marks.as_ref().map(|marks| marks.id.clone());
    let id = marked.or_else(|| token.as_ref().and_then(|token| token.id.clone()))?;
    if pass.record.stale.iter().any(|stale| stale.id.as_ref() == Some(&id)) {
        return None;
    }
    let current = Registration { id, name: wanted.name.clone(), place: place.clone() };
    Some(Stop::record(Record { current: Some(current), ..pass.record.clone() }))
}

/// Empties the list, the current registration last.
fn empty(pass: &Pass<'_>, deadline: Going) -> (Next, Vec<Note>) {
    let (mut notes, mut waits) = (Vec::new(), false);
    // Nothing is wanted any more, what is current neither.
    let none = Record { current: None, ..pass.record.clone() };
    let asked = Pass { record: &none, ..*pass };
    for stale in pass.record.all(pass.now) {
        match retire::fate(&asked, &stale) {
            Fate::Look(look) => return (Next::Look(look), Vec::new()),
            Fate::Delete(step) => return (Next::Do(step), Vec::new()),
            Fate::Gone => {}
            Fate::Unreachable => notes.push(retire::abandoned(&stale)),
            Fate::Wait if deadline.overdue => notes.push(retire::abandoned(&stale)),
            Fate::Wait => waits = true,
        }
    }
    if waits { (Next::Rest, Vec::new()) } else { (Next::Release, notes) }
}
