//! What becomes of credentials that are no longer wanted: each is looked for where it was made, deleted when nothing uses
//! it, and forgotten when it is gone.
//!
//! A credential that was announced and perhaps made was never given to anybody; but coderd may still carry out a request
//! whose reply was lost, so that it is waited for. What cannot be deleted is never forgotten without an event that names
//! it. Kinds differ in what [`CredentialKind`] says.

use jiff::{SignedDuration, Timestamp};

use super::{
    CredentialKind, CredentialRef, CredentialVerdict, Decision, Effect, Facts, Listing, NextStep, Query,
    Record, Retired,
};
use crate::{
    intervals::{MAX_CLOCK_SKEW, MAX_TIME_AHEAD, REQUEUE_DELETION},
    object::Deletion,
};

/// A credential in a listing of coderd.
pub trait Listed<D> {
    /// UUID.
    fn id(&self) -> &str;
    /// Name in coderd.
    fn name(&self) -> &str;
    /// When it was made.
    fn created(&self) -> Option<Timestamp>;
    /// Whether it is as announced, and nobody ever connected with it.
    fn is_unused(&self, announced: &D) -> bool;

    /// Whether it was made because of an announcement, and its material reached nobody. A name alone says nothing.
    fn was_announced(&self, credential: &CredentialRef<D>, since: Timestamp) -> bool {
        let after = |created: Timestamp| created.duration_since(since) >= -MAX_CLOCK_SKEW;
        self.name().eq_ignore_ascii_case(&credential.name)
            && self.created().is_some_and(after)
            && self.is_unused(&credential.details)
    }
}

/// What is to become of one credential.
enum Fate<'a, L> {
    /// It must be looked for.
    Ask,
    Delete(&'a L),
    /// It is not there any more, never was, or is the current one again.
    Gone,
    /// It has an announced name and is not known to be ours.
    Left,
    Unreachable {
        /// Whether nothing is left to reach it with.
        for_good: bool,
    },
    /// It may still appear, or is still in use.
    Wait,
}

/// The next step towards an empty list: the first query or deletion, or else the record without what is gone. Without a
/// successor that is proven, only what was never given to anybody goes. `rest` is the decision while nothing is to go.
pub(crate) fn retire<K: CredentialKind>(
    facts: &Facts<'_, K>,
    has_successor: bool,
    rest: Decision<K>,
) -> Decision<K> {
    let record = facts.record;
    let (mut kept, mut events) = (Vec::new(), Vec::new());
    for retired in &record.stale {
        let credential = &retired.credential;
        let may_go = (has_successor || credential.id.is_none()) && !K::is_in_use(retired, None);
        let current = record.current_id().map(String::as_str);
        match search(facts, retired, current) {
            _ if !may_go => kept.push(retired.clone()),
            Fate::Delete(listed) if K::is_in_use(retired, Some(listed)) => kept.push(retired.clone()),
            Fate::Ask => return rest.then(query(credential)),
            Fate::Delete(listed) => return rest.then(deletion(credential, listed)),
            Fate::Gone => {}
            Fate::Left => events.extend(K::left_alone(credential)),
            Fate::Unreachable { for_good: true } if is_older(facts.now, retired.since, K::ABANDON_AFTER) => {
                events.push(K::abandoned(credential));
            }
            Fate::Unreachable { .. } | Fate::Wait => kept.push(retired.clone()),
        }
    }
    if kept.len() == record.stale.len() {
        return if kept.is_empty() { rest } else { rest.wait() };
    }
    let next = NextStep::WriteStatus(Box::new(Record { stale: kept, ..record.clone() }));
    Decision { events, ..rest.then(next) }
}

/// The object is being deleted: every credential of ours goes first, and what cannot go in time is named.
///
/// Once the deletion is overdue, nothing is asked and nothing is tried: it ends with this decision, whoever answers what.
/// Without the finalizer it has ended, and somebody else's keeps the object.
pub(crate) fn clean_up<K: CredentialKind>(
    facts: &Facts<'_, K>,
    object: Deletion,
    verdict: CredentialVerdict,
) -> Decision<K> {
    let decision = Decision::rest(None, verdict);
    if !facts.observed.has_finalizer {
        return decision.then(NextStep::RemoveFinalizer);
    }
    let mut all = facts.record.clone();
    all.give_up(facts.now);
    let (mut events, mut waits) = (Vec::new(), false);
    for retired in &all.stale {
        let credential = &retired.credential;
        match search(facts, retired, None) {
            Fate::Gone => {}
            Fate::Left => events.extend(K::left_alone(credential)),
            Fate::Unreachable { for_good: true } => events.push(K::abandoned(credential)),
            _ if object.overdue => events.push(K::abandoned(credential)),
            Fate::Ask => return decision.then(query(credential)),
            Fate::Delete(listed) => return decision.then(deletion(credential, listed)),
            Fate::Unreachable { for_good: false } | Fate::Wait => waits = true,
        }
    }
    let again = Some(REQUEUE_DELETION);
    if waits {
        return Decision { again, ..decision };
    }
    Decision { again, events, ..decision.then(NextStep::RemoveFinalizer) }
}

fn query<K: CredentialKind>(credential: &CredentialRef<K::Details>) -> NextStep<K> {
    NextStep::Ask(Query::Listing(K::scope(credential)))
}

fn deletion<K: CredentialKind>(credential: &CredentialRef<K::Details>, listed: &K::Listed) -> NextStep<K> {
    let (name, id) = (listed.name().to_owned(), listed.id().to_owned());
    NextStep::Act(Box::new(Effect::Delete { scope: K::scope(credential), name, id }))
}

/// Looks for a credential where it was made. `wanted` is the UUID of the one that must stay.
fn search<'a, K: CredentialKind>(
    facts: &Facts<'a, K>,
    retired: &Retired<K::Details>,
    wanted: Option<&str>,
) -> Fate<'a, K::Listed> {
    let Retired { credential, since, unused_since: _ } = retired;
    if credential.id.is_some() && credential.id.as_deref() == wanted {
        return Fate::Gone;
    }
    let listing = match facts.observed.listings.get(&K::scope(credential)) {
        None => return Fate::Ask,
        Some(Listing::Known(listing)) => listing,
        Some(Listing::Unknown(_)) => return Fate::Unreachable { for_good: false },
        Some(Listing::Gone) => return Fate::Unreachable { for_good: true },
    };
    // One that was tried in vain is not tried again before the next reconcile.
    let once = |listed: &'a K::Listed| {
        if facts.observed.tried.contains(listed.id()) { Fate::Wait } else { Fate::Delete(listed) }
    };
    if let Some(id) = &credential.id {
        return listing.iter().find(|listed| listed.id() == id).map_or(Fate::Gone, once);
    }
    let named = listing.iter().find(|listed| listed.name().eq_ignore_ascii_case(&credential.name));
    // One that is known by its UUID is on the list by itself.
    match named.filter(|listed| !facts.record.knows(listed.id())) {
        Some(listed) if listed.was_announced(credential, *since) => once(listed),
        Some(_) => Fate::Left,
        None if !is_older(facts.now, *since, facts.observed.late_effect_window) => Fate::Wait,
        None => Fate::Gone,
    }
}

/// Whether something is as old as that. A time that was lost from the status reads as one far ahead.
fn is_older(now: Timestamp, since: Timestamp, than: SignedDuration) -> bool {
    let age = now.duration_since(since);
    age >= than || age < -MAX_TIME_AHEAD
}
