//! The deletion table: whatever fails, and however, a deletion ends by its deadline after at least three attempts, with an
//! event that names what is left, and without a storm.
//!
//! Time is virtual: the decisions of a kind run against a coderd that fails in one place in one way, with the delays of a
//! backoff fitted into the deadline. Not in the table, because they do not fail: a 404 to a deletion, which is what was asked
//! for; and a control plane that is gone for good, which leaves nothing to try (`ends_at_once`).

use std::time::Duration;

use jiff::Timestamp;

use super::Cleanup;
use crate::{
    credential::{CredentialKind, Decision, Effect, Listing, NextStep, Observed, Proof, Query},
    object::Deletion,
    outcome::{Blocker, Retry},
};

/// Where it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// coderd does not say which deployment it is, or not the recorded one. Nothing can be listed.
    BuildInfo,
    /// The Secret with the token is missing. Nothing can be listed, and nobody is called.
    TokenSecret,
    List,
    Delete,
}

/// How it fails: when the failed call may be repeated, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) name: &'static str,
    pub(crate) retry: Retry,
    pub(crate) takes: Duration,
}

const fn quick(name: &'static str, retry: Retry) -> Failure {
    Failure { name, retry, takes: Duration::from_millis(5) }
}

const fn after(seconds: u64) -> Retry {
    Retry::After(Duration::from_secs(seconds))
}

/// Every way to fail. A `Retry-After` that is negative, a date or no number reads as the default of 30 s.
pub(crate) const FAILURES: [Failure; 14] = [
    quick("403", Retry::Backoff),
    quick("404 without a body of coderd", Retry::Backoff),
    quick("409", Retry::Backoff),
    quick("429 with Retry-After 0", after(0)),
    quick("429 with Retry-After 30, negative or a date", after(30)),
    quick("429 with Retry-After 10^9", after(1_000_000_000)),
    quick("429 with Retry-After 2^64-1", after(u64::MAX)),
    quick("500", Retry::Backoff),
    Failure { name: "hang", retry: Retry::Backoff, takes: Duration::MAX },
    quick("reset", Retry::Backoff),
    quick("HTML", Retry::Backoff),
    quick("redirect", Retry::OnChange),
    quick("another deployment", Retry::Backoff),
    quick("outdated view", Retry::Soon),
];

pub(crate) const LIMITS: [Duration; 2] = [Duration::from_secs(6), Duration::from_mins(2)];

/// How a deletion ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) after: Duration,
    pub(crate) attempts: usize,
    pub(crate) events: Vec<String>,
}

impl End {
    /// What every row of the table promises.
    pub(crate) fn check(&self, limit: Duration, names: &str, row: &str) {
        assert!(
            self.after <= limit + Duration::from_millis(100),
            "{row}: not gone by its deadline: {self:?}"
        );
        assert!((3..=30).contains(&self.attempts), "{row}: too few attempts, or a storm: {self:?}");
        assert!(self.events.iter().any(|event| event.contains(names)), "{row}: nothing is named: {self:?}");
    }
}

/// The delay of the backoff after so many failures.
pub(crate) fn backoff(failures: usize, retry: Retry) -> Duration {
    let doubled = Duration::from_millis(500) * 2_u32.pow(u32::try_from(failures.min(12)).unwrap());
    match retry {
        Retry::After(least) => doubled.max(least),
        Retry::Soon | Retry::Backoff | Retry::OnChange => doubled.min(Duration::from_mins(5)),
    }
}

/// Lives the deletion of an object whose credentials `observed` lists, until it is gone.
pub(crate) fn delete<K: CredentialKind>(
    observed: &Observed<K>,
    decide: fn(&Observed<K>, Timestamp) -> Decision<K>,
    start: Timestamp,
    limit: Duration,
    (place, failure): (Place, Failure),
) -> End {
    let blocker = || Blocker::new(coder_k8s_api::Reason::Error, failure.name).with_retry(failure.retry);
    let (mut elapsed, mut attempts) = (Duration::ZERO, 0);
    loop {
        let cleanup = Cleanup::new(limit, start, start + elapsed);
        let ends = elapsed + cleanup.attempt_timeout();
        let takes = failure.takes.min(cleanup.call_timeout());
        let mut now = Observed { listings: std::collections::BTreeMap::new(), ..observed.clone() };
        now.deletion = Some(Deletion { overdue: cleanup.is_over() && attempts > 0 });
        for step in 0.. {
            assert!(step < 64, "{place:?} {}: an attempt does not end", failure.name);
            if elapsed >= ends {
                now.deletion = Some(Deletion { overdue: true });
            }
            let decision = decide(&now, start + elapsed);
            match decision.next {
                NextStep::Ask(Query::Listing(scope)) => {
                    let listing = match place {
                        Place::Delete => observed.listings[&scope].clone(),
                        Place::BuildInfo | Place::TokenSecret | Place::List => Listing::Unknown(blocker()),
                    };
                    if matches!(place, Place::List | Place::BuildInfo) {
                        elapsed += takes;
                    }
                    now.listings.insert(scope, listing);
                }
                NextStep::Ask(Query::Proof(secret)) => {
                    now.proofs.insert(secret, Proof::Unknown(blocker()));
                }
                NextStep::Act(effect) => match *effect {
                    Effect::Delete { id, .. } => {
                        elapsed += takes;
                        now.tried.insert(id);
                    }
                    other => panic!("{other:?}"),
                },
                NextStep::RemoveFinalizer => {
                    let events = decision.events.into_iter().map(|note| note.message).collect();
                    return End { after: elapsed, attempts, events };
                }
                NextStep::Done => break,
                other => panic!("{other:?}"),
            }
        }
        attempts += 1;
        assert!(attempts < 1000, "{place:?} {}: it does not end", failure.name);
        let cleanup = Cleanup::new(limit, start, start + elapsed);
        elapsed += cleanup.delay(Some(backoff(attempts - 1, failure.retry)));
    }
}

/// Every row for one kind. `names` is what the event has to name.
pub(crate) fn check<K: CredentialKind>(
    observed: &Observed<K>,
    decide: fn(&Observed<K>, Timestamp) -> Decision<K>,
    start: Timestamp,
    names: &str,
) {
    for limit in LIMITS {
        for place in [Place::BuildInfo, Place::TokenSecret, Place::List, Place::Delete] {
            for failure in FAILURES {
                let row = format!("{limit:?} {place:?} {}", failure.name);
                delete(observed, decide, start, limit, (place, failure)).check(limit, names, &row);
            }
        }
    }
}

/// A target that is gone for good is not waited for.
pub(crate) fn ends_at_once<K: CredentialKind>(
    observed: &Observed<K>,
    decide: fn(&Observed<K>, Timestamp) -> Decision<K>,
    now: Timestamp,
    names: &str,
) {
    let mut gone = observed.clone();
    gone.deletion = Some(Deletion { overdue: false });
    for listing in gone.listings.values_mut() {
        *listing = Listing::Gone;
    }
    let decision = decide(&gone, now);
    assert_eq!(decision.next, NextStep::RemoveFinalizer);
    assert!(decision.events.iter().any(|event| event.message.contains(names)), "{:?}", decision.events);
}
