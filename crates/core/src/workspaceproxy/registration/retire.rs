//! What is no longer wanted goes, once nothing runs with it any more: registrations, and the Secrets of their tokens.

use std::time::Duration;

use super::{
    decide::Pass,
    record::{Record, Stale},
    seen::{Listing, Secret},
    step::{Act, Decision, Look, Next, Step},
};
use crate::{
    outcome::Note,
    place::{SecretPlace, Version},
    workload::Run,
};

/// How soon to look again whether something can go.
const AGAIN: Duration = Duration::from_secs(30);

/// What is to become of a registration that is no longer wanted.
pub(super) enum Fate {
    /// It must be looked for.
    Look(Look),
    /// It is deleted.
    Delete(Box<Step>),
    /// It is gone.
    Gone,
    /// Nobody can ask any more.
    Unreachable,
    /// It may be possible later.
    Wait,
}

/// Adds what can go now to a decision about which nothing else is to be done.
pub(super) fn add(pass: &Pass<'_>, run: Option<&Run>, decision: &mut Decision) {
    let place = run.map(|run| &run.secret);
    let runs =
        pass.seen.workload.as_ref().is_some_and(|workload| workload.settled && Some(&workload.run) == run);
    let idle =
        pass.record.stale.is_empty() && place.is_none_or(|place| leftovers(pass, place).next().is_none());
    if idle {
        return;
    }
    if !runs {
        decision.again = Some(AGAIN);
        return;
    }
    for stale in &pass.record.stale {
        match fate(pass, stale) {
            Fate::Look(look) => decision.next = Next::Look(look),
            Fate::Delete(step) => decision.next = Next::Do(step),
            Fate::Wait => {
                decision.again = Some(AGAIN);
                continue;
            }
            Fate::Gone => decision.next = without(pass, stale),
            Fate::Unreachable => {
                decision.notes.push(abandoned(stale));
                decision.next = without(pass, stale);
            }
        }
        return;
    }
    let leftover = place.and_then(|place| leftovers(pass, place).next());
    if let Some((secret, version)) = leftover {
        decision.next = Next::Do(Box::new(Step::Remove { secret, version }));
    }
}

/// Secrets of ours with tokens of ours that are not where the token is wanted.
pub(super) fn leftovers<'a>(
    pass: &Pass<'a>,
    wanted: &'a SecretPlace,
) -> impl Iterator<Item = (SecretPlace, Version)> + use<'a> {
    pass.seen.secrets.iter().filter(move |(place, _)| place.name != wanted.name).filter_map(
        |(place, secret)| match secret {
            Secret::Ours { version, marks: Some(_), .. } => {
                Some((place.clone(), Version::Is(version.clone())))
            }
            _ => None,
        },
    )
}

fn without(pass: &Pass<'_>, gone: &Stale) -> Next {
    let stale = pass.record.stale.iter().filter(|stale| *stale != gone).cloned().collect();
    Next::Record(Box::new(Record { stale, ..pass.record.clone() }))
}

pub(super) fn fate(pass: &Pass<'_>, stale: &Stale) -> Fate {
    // What is there again under the same UUID is wanted.
    if stale.id.is_some() && pass.record.current.as_ref().map(|current| &current.id) == stale.id.as_ref() {
        return Fate::Gone;
    }
    match pass.seen.listings.get(&stale.place) {
        None => Fate::Look(Look::Registrations(stale.place.clone())),
        Some(Listing::Gone) if stale.id.is_none() => Fate::Gone,
        Some(Listing::Gone) => Fate::Unreachable,
        Some(Listing::Unknown(_)) => Fate::Wait,
        Some(Listing::Known(listing)) => match stale.find(listing) {
            None => Fate::Gone,
            Some(listed) if pass.record.current.as_ref().is_some_and(|current| current.id == listed.id) => {
                Fate::Gone
            }
            Some(listed) => Fate::Delete(Box::new(Step::Coderd(Act::Deregister {
                place: stale.place.clone(),
                id: listed.id.clone(),
                name: listed.name.clone(),
            }))),
        },
    }
}

/// Names what is left behind.
pub(super) fn abandoned(stale: &Stale) -> Note {
    let Stale { id, name, place, since: _ } = stale;
    let which = id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
    let message = format!(
        "the workspace proxy {name}{which} could not be deleted from {}; delete it there: its token still works",
        place.url
    );
    Note { warning: true, reason: "ProxyAbandoned".to_owned(), message }
}
