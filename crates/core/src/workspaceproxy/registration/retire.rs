//! What is no longer wanted goes, once nothing runs with it any more: registrations, and the Secrets of their tokens.

use coder_k8s_api::Reason;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

use super::{
    decide::RegistrationFacts,
    effect::{Decision, Effect, NextStep, RegistrationEffect, RegistrationQuery},
    observed::{Listing, Secret},
    record::{RegistrationRecord, RetiredRegistration},
};
use crate::{
    outcome::EventNote,
    target::{SecretDataRef, Version},
    workload::Run,
};

/// How soon to look again whether something can go.
const AGAIN: Duration = Duration::from_secs(30);

/// What is to become of a registration that is no longer wanted.
pub(super) enum Fate {
    /// It must be looked for.
    Ask(RegistrationQuery),
    /// It is deleted.
    Delete(Box<Effect>),
    /// It is gone.
    Gone,
    /// Nobody can ask any more.
    Unreachable,
    /// It may be possible later.
    Wait,
}

/// Adds what can go now to a decision about which nothing else is to be done.
pub(super) fn add(facts: &RegistrationFacts<'_>, run: Option<&Run>, decision: &mut Decision) {
    let place = run.map(|run| &run.secret);
    let runs = facts
        .observed
        .workload
        .as_ref()
        .is_some_and(|workload| workload.settled && Some(&workload.run) == run);
    let idle =
        facts.record.stale.is_empty() && place.is_none_or(|place| leftovers(facts, place).next().is_none());
    if idle {
        return;
    }
    if !runs {
        decision.again = Some(AGAIN);
        return;
    }
    for stale in &facts.record.stale {
        match fate(facts, stale) {
            Fate::Ask(look) => decision.next = NextStep::Ask(look),
            Fate::Delete(step) => decision.next = NextStep::Act(step),
            Fate::Wait => {
                decision.again = Some(AGAIN);
                continue;
            }
            Fate::Gone => decision.next = without(facts, stale),
            Fate::Unreachable => {
                decision.events.push(abandoned(stale));
                decision.next = without(facts, stale);
            }
        }
        return;
    }
    let leftover = place.and_then(|place| leftovers(facts, place).next());
    if let Some((secret, version)) = leftover {
        decision.next = NextStep::Act(Box::new(Effect::RemoveSecret { secret, version }));
    }
}

/// Secrets of ours with tokens of ours that are not where the token is wanted.
pub(super) fn leftovers<'a>(
    facts: &RegistrationFacts<'a>,
    desired: &'a SecretDataRef,
) -> impl Iterator<Item = (SecretDataRef, Version)> + use<'a> {
    facts.observed.secrets.iter().filter(move |(place, _)| place.name != desired.name).filter_map(
        |(place, secret)| match secret {
            Secret::Ours { version, marks: Some(_), .. } => {
                Some((place.clone(), Version::Is(version.clone())))
            }
            _ => None,
        },
    )
}

fn without(facts: &RegistrationFacts<'_>, gone: &RetiredRegistration) -> NextStep {
    let stale = facts.record.stale.iter().filter(|stale| *stale != gone).cloned().collect();
    NextStep::Record(Box::new(RegistrationRecord { stale, ..facts.record.clone() }))
}

pub(super) fn fate(facts: &RegistrationFacts<'_>, stale: &RetiredRegistration) -> Fate {
    // What is there again under the same UUID is wanted.
    if stale.id.is_some() && facts.record.current.as_ref().map(|current| &current.id) == stale.id.as_ref() {
        return Fate::Gone;
    }
    match facts.observed.listings.get(&stale.place) {
        None => Fate::Ask(RegistrationQuery::Registrations(stale.place.clone())),
        Some(Listing::Gone) => Fate::Unreachable,
        Some(Listing::Unknown(_)) => Fate::Wait,
        Some(Listing::Known(listing)) => match stale.find(listing) {
            // A request that coderd got may still be carried out.
            None if stale.id.is_none()
                && !is_older(facts.now, stale.since, facts.observed.late_effect_window) =>
            {
                Fate::Wait
            }
            None => Fate::Gone,
            Some(listed) if facts.record.current.as_ref().is_some_and(|current| current.id == listed.id) => {
                Fate::Gone
            }
            Some(listed) => Fate::Delete(Box::new(Effect::Coderd(RegistrationEffect::Deregister {
                place: stale.place.clone(),
                id: listed.id.clone(),
                name: listed.name.clone(),
            }))),
        },
    }
}

/// Whether something is older than that. A time that was lost reads as one far ahead, and is as old as can be.
fn is_older(now: Timestamp, since: Timestamp, than: SignedDuration) -> bool {
    let age = now.duration_since(since);
    age > than || age < -than
}

/// Names what is left behind.
pub(super) fn abandoned(stale: &RetiredRegistration) -> EventNote {
    let RetiredRegistration { id, name, place, since: _ } = stale;
    let which = id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
    let message = format!(
        "the workspace proxy {name}{which} could not be deleted from {}; delete it there: its token still works",
        place.url
    );
    EventNote { warning: true, reason: Reason::ProxyAbandoned, message }
}
