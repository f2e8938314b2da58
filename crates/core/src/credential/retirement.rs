//! What becomes of credentials that are no longer wanted: each is looked for where it was made, deleted when nothing uses
//! it, and forgotten when it is gone.
//!
//! A credential that was announced and perhaps made was never given to anybody; but coderd may still carry out a request
//! whose reply was lost, so that it is waited for. What cannot be deleted is never forgotten without an event that names
//! it. Kinds differ in what [`Retirement`] asks for.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    Effect, Listing, NextStep,
    record::{CredentialRef, Details, Record, Retired},
};
use crate::{
    intervals::{MAX_CLOCK_SKEW, MAX_TIME_AHEAD, REQUEUE_DELETION},
    object::Deletion,
    outcome::EventNote,
};

/// The next step of a retirement.
type Next<R> = NextStep<
    <R as Retirement>::Query,
    Record<<R as Retirement>::Details>,
    Effect<<R as Retirement>::Effect, <R as Retirement>::Marks>,
>;

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

/// What differs between the kinds when credentials go.
pub(crate) trait Retirement {
    type Details: Details;
    type Listed: Listed<Self::Details>;
    type Query;
    type Effect;
    type Marks;

    /// How soon to decide again while something is in use.
    const REQUEUE: Duration;
    /// How long a credential stays on the list that nothing is left to delete with.
    const ABANDON_AFTER: SignedDuration;

    fn record(&self) -> &Record<Self::Details>;
    fn now(&self) -> Timestamp;
    /// How long after an announcement a credential may still appear.
    fn late_effect_window(&self) -> SignedDuration;
    /// What coderd lists where a credential is. None: it was not asked.
    fn listing(&self, credential: &CredentialRef<Self::Details>) -> Option<&Listing<Self::Listed>>;
    fn query(credential: &CredentialRef<Self::Details>) -> Self::Query;
    fn delete(credential: &CredentialRef<Self::Details>, listed: &Self::Listed) -> Self::Effect;
    /// Whether somebody may still use it. Asked before coderd is, and again with what it lists.
    fn is_in_use(&self, retired: &Retired<Self::Details>, listed: Option<&Self::Listed>) -> bool;
    /// Tells that a credential stays behind that could not be deleted.
    fn abandoned(credential: &CredentialRef<Self::Details>) -> EventNote;
    /// Tells of a credential that has an announced name and is not known to be ours, if people are to know.
    fn left_alone(credential: &CredentialRef<Self::Details>) -> Option<EventNote>;
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

/// What is to be done about what is no longer wanted.
pub(crate) struct Retiring<R: Retirement> {
    pub(crate) next: Next<R>,
    pub(crate) again: Option<Duration>,
    pub(crate) events: Vec<EventNote>,
}

impl<R: Retirement> Retiring<R> {
    pub(crate) fn next(next: Next<R>) -> Self {
        Self { next, again: None, events: Vec::new() }
    }

    /// Waits for something to be gone.
    pub(crate) fn wait() -> Self {
        Self { again: Some(R::REQUEUE), ..Self::next(NextStep::Done) }
    }
}

/// The next step towards an empty list: the first query or deletion, or else the record without what is gone. Without a
/// successor that is proven, only what was never given to anybody goes.
pub(crate) fn retire<R: Retirement>(facts: &R, has_successor: bool) -> Retiring<R> {
    let record = facts.record();
    let (mut kept, mut events) = (Vec::new(), Vec::new());
    for retired in &record.stale {
        let credential = &retired.credential;
        let may_go = (has_successor || credential.id.is_none()) && !facts.is_in_use(retired, None);
        let current = record.current_id().map(String::as_str);
        match search(facts, retired, current) {
            _ if !may_go => kept.push(retired.clone()),
            Fate::Delete(listed) if facts.is_in_use(retired, Some(listed)) => kept.push(retired.clone()),
            Fate::Ask => return Retiring::next(NextStep::Ask(R::query(credential))),
            Fate::Delete(listed) => return Retiring::next(deletion::<R>(credential, listed)),
            Fate::Gone => {}
            Fate::Left => events.extend(R::left_alone(credential)),
            Fate::Unreachable { for_good: true }
                if is_older(facts.now(), retired.since, R::ABANDON_AFTER) =>
            {
                events.push(R::abandoned(credential));
            }
            Fate::Unreachable { .. } | Fate::Wait => kept.push(retired.clone()),
        }
    }
    if kept.len() == record.stale.len() {
        return if kept.is_empty() { Retiring::next(NextStep::Done) } else { Retiring::wait() };
    }
    let next = NextStep::Record(Box::new(Record { stale: kept, ..record.clone() }));
    Retiring { events, ..Retiring::next(next) }
}

/// The object is being deleted: every credential of ours goes first, and what cannot go in time is named.
pub(crate) fn clean_up<R: Retirement>(facts: &R, object: Deletion) -> Retiring<R> {
    let mut all = facts.record().clone();
    all.give_up(facts.now());
    let (mut events, mut waits) = (Vec::new(), false);
    for retired in &all.stale {
        let credential = &retired.credential;
        match search(facts, retired, None) {
            Fate::Ask => return Retiring::next(NextStep::Ask(R::query(credential))),
            Fate::Delete(listed) => return Retiring::next(deletion::<R>(credential, listed)),
            Fate::Gone => {}
            Fate::Left => events.extend(R::left_alone(credential)),
            Fate::Unreachable { for_good } if for_good || object.overdue => {
                events.push(R::abandoned(credential));
            }
            Fate::Wait if object.overdue => events.push(R::abandoned(credential)),
            Fate::Unreachable { .. } | Fate::Wait => waits = true,
        }
    }
    let again = Some(REQUEUE_DELETION);
    if waits {
        return Retiring { next: NextStep::Done, again, events: Vec::new() };
    }
    Retiring { next: NextStep::RemoveFinalizer, again, events }
}

fn deletion<R: Retirement>(credential: &CredentialRef<R::Details>, listed: &R::Listed) -> Next<R> {
    NextStep::Act(Box::new(Effect::Coderd(R::delete(credential, listed))))
}

/// Looks for a credential where it was made. `wanted` is the UUID of the one that must stay.
fn search<'a, R: Retirement>(
    facts: &'a R,
    retired: &Retired<R::Details>,
    wanted: Option<&str>,
) -> Fate<'a, R::Listed> {
    let Retired { credential, since, unused_since: _ } = retired;
    if credential.id.is_some() && credential.id.as_deref() == wanted {
        return Fate::Gone;
    }
    let listing = match facts.listing(credential) {
        None => return Fate::Ask,
        Some(Listing::Known(listing)) => listing,
        Some(Listing::Unknown(_)) => return Fate::Unreachable { for_good: false },
        Some(Listing::Gone) => return Fate::Unreachable { for_good: true },
    };
    if let Some(id) = &credential.id {
        return listing.iter().find(|listed| listed.id() == id).map_or(Fate::Gone, Fate::Delete);
    }
    let named = listing.iter().find(|listed| listed.name().eq_ignore_ascii_case(&credential.name));
    // One that is known by its UUID is on the list by itself.
    match named.filter(|listed| !facts.record().knows(listed.id())) {
        Some(listed) if listed.was_announced(credential, *since) => Fate::Delete(listed),
        Some(_) => Fate::Left,
        None if !is_older(facts.now(), *since, facts.late_effect_window()) => Fate::Wait,
        None => Fate::Gone,
    }
}

/// Whether something is as old as that. A time that was lost from the status reads as one far ahead.
fn is_older(now: Timestamp, since: Timestamp, than: SignedDuration) -> bool {
    let age = now.duration_since(since);
    age >= than || age < -MAX_TIME_AHEAD
}
