//! Decides how the operator gives its token back: when `operatorAccess.disabled` is set, and when the object is deleted.
//!
//! Nobody may find a token that is about to be worthless: the Secret of a token from the database goes first. A token of
//! the first user is revoked with itself, so that its Secret goes last. A deletion ends at its deadline: what is left is
//! named in an event.

use std::{convert::Infallible, time::Duration};

use coder_k8s_api::{AccessMethod, OperatorTokenStatus, Reason};

use super::access::Revocation;
use crate::{
    cleanup::Cleanup,
    controlplane::coderd::Step,
    intervals::REQUEUE_DEPENDENTS,
    outcome::{Blocker, EventNote, Retry},
};

/// What is known of a token that is to be revoked.
#[derive(Clone, Debug)]
pub struct ObservedRevocation {
    /// The name of the token in coderd, for people.
    pub token_name: String,
    /// The token on record, and the one of another method that it replaces and that was still to be revoked. None: nothing
    /// records a token, but one may have been created.
    pub recorded: Option<OperatorTokenStatus>,
    /// The method of the spec, for a token that nothing records.
    pub method: AccessMethod,
    /// Set while the object is being deleted.
    pub deletion: Option<TokenDeletion>,
    /// What was done so far in this exchange.
    pub done: Vec<RevocationEffect>,
    /// Why the last effect failed.
    pub blocker: Option<Blocker>,
    /// Why an earlier exchange failed.
    pub last_blocker: Option<Blocker>,
}

/// A deletion that waits for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenDeletion {
    /// The deadline.
    pub cleanup: Cleanup,
    /// Whether the deadline has passed and the revocation was tried: nothing is tried any more.
    pub overdue: bool,
    /// Whether pools or proxies that are being deleted still need the token.
    pub has_dependents: bool,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RevocationEffect {
    /// Delete the Secrets with the token.
    RemoveSecret,
    /// Delete the tokens in coderd's database.
    RevokeInDatabase,
    /// Delete the tokens of the first user through coderd's API: with the token in the Secret, the one in use last, or after
    /// logging in as the first user if coderd does not accept that token or there is none.
    RevokeInCoderd {
        /// UUID of the first user. If the token in the Secret belongs to another user, the tokens of this one are deleted.
        /// None: the token in the Secret is the first user's own.
        user_id: Option<String>,
    },
}

/// The result of one exchange about the revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationReport {
    /// The new state. None: dependents are waited for.
    pub revocation: Option<Revocation>,
    /// When to try again.
    pub retry: Option<Retry>,
    /// The latest moment for the next attempt.
    pub within: Option<Duration>,
    /// What to announce.
    pub event: Option<EventNote>,
}

/// The next step. Nothing has to be asked: what is on record says what to revoke.
pub type RevocationStep = Step<Infallible, RevocationEffect, RevocationReport>;

/// Decides the next step.
pub fn decide(observed: &ObservedRevocation) -> RevocationStep {
    if let Some(deletion) = observed.deletion
        && deletion.overdue
    {
        return Step::Done(abandoned(observed));
    }
    // A part of the time is left for the revocation itself.
    if let Some(deletion) = observed.deletion
        && deletion.has_dependents
        && deletion.cleanup.may_wait_for_dependents()
    {
        let within = Some(REQUEUE_DEPENDENTS.min(deletion.cleanup.left));
        return Step::Done(RevocationReport { revocation: None, retry: None, within, event: None });
    }
    if let Some(blocker) = &observed.blocker {
        return Step::Done(failed(observed, blocker));
    }
    match effects(observed).into_iter().find(|effect| !observed.done.contains(effect)) {
        Some(effect) => Step::Act(effect),
        None => Step::Done(finished(Revocation::Done)),
    }
}

fn effects(observed: &ObservedRevocation) -> Vec<RevocationEffect> {
    use AccessMethod::{FirstUser, Postgres, TokenSecret};
    use RevocationEffect::{RemoveSecret, RevokeInCoderd, RevokeInDatabase};
    let unrecorded = OperatorTokenStatus { method: observed.method, ..OperatorTokenStatus::default() };
    let token = observed.recorded.as_ref().unwrap_or(&unrecorded);
    let (of_first_user, has_both) = match (token.method, &token.replaces) {
        // A supplied token belongs to a person.
        (TokenSecret, _) => return Vec::new(),
        (Postgres, Some(old)) if old.method == FirstUser => (&old.user_id, true),
        (Postgres, _) => return vec![RemoveSecret, RevokeInDatabase],
        (FirstUser, old) => (&token.user_id, old.as_ref().is_some_and(|old| old.method == Postgres)),
    };
    let in_coderd = RevokeInCoderd { user_id: of_first_user.clone() };
    match (has_both, of_first_user) {
        (false, _) => vec![in_coderd, RemoveSecret],
        (true, Some(_)) => vec![in_coderd, RemoveSecret, RevokeInDatabase],
        // The Secret holds a token of either method, which nobody can tell apart: without it the operator logs in.
        (true, None) => vec![RemoveSecret, RevokeInDatabase, in_coderd],
    }
}

fn failed(observed: &ObservedRevocation, blocker: &Blocker) -> RevocationReport {
    let Some(deletion) = observed.deletion else {
        // Without a record and without a usable source no token can have been created.
        if observed.recorded.is_none() && blocker.retry == Retry::OnChange {
            return finished(Revocation::Done);
        }
        return RevocationReport {
            retry: Some(again(blocker)),
            ..finished(Revocation::Failing(blocker.clone()))
        };
    };
    if deletion.cleanup.is_over() {
        return abandoned(observed);
    }
    RevocationReport {
        revocation: Some(Revocation::Failing(blocker.clone())),
        retry: Some(again(blocker)),
        within: Some(deletion.cleanup.left),
        event: None,
    }
}

/// The deadline has passed: the token is named, with what was wrong last.
fn abandoned(observed: &ObservedRevocation) -> RevocationReport {
    let blocker = observed.blocker.as_ref().or(observed.last_blocker.as_ref());
    let why = blocker.map_or("the deadline has passed", |blocker| &blocker.message);
    let message = format!(
        "the operator token {} may still be valid in coderd and could not be revoked: {why}; delete it there",
        observed.token_name
    );
    let event = EventNote { warning: true, reason: Reason::TokenAbandoned, message };
    RevocationReport { event: Some(event), ..finished(Revocation::Abandoned) }
}

/// A revocation is retried whatever stands in the way: the database can come back without anything in Kubernetes changing.
fn again(blocker: &Blocker) -> Retry {
    match blocker.retry {
        Retry::OnChange => Retry::Backoff,
        retry => retry,
    }
}

fn finished(revocation: Revocation) -> RevocationReport {
    RevocationReport { revocation: Some(revocation), retry: None, within: None, event: None }
}

#[cfg(test)]
mod tests {
    use coder_k8s_api::ReplacedToken;

    use super::*;

    fn token(method: AccessMethod, user: Option<&str>) -> OperatorTokenStatus {
        let user_id = user.map(str::to_owned);
        OperatorTokenStatus { method, user_id, ..OperatorTokenStatus::default() }
    }

    fn observed(method: AccessMethod) -> ObservedRevocation {
        ObservedRevocation {
            token_name: "coder-k8s-operator-ns-coder".into(),
            recorded: Some(token(method, None)),
            method,
            deletion: None,
            done: Vec::new(),
            blocker: None,
            last_blocker: None,
        }
    }

    /// The effects of an exchange in which all of them succeed, and its result.
    fn run(mut observed: ObservedRevocation) -> (Vec<RevocationEffect>, RevocationReport) {
        loop {
            match decide(&observed) {
                Step::Ask(never) => match never {},
                Step::Act(effect) => observed.done.push(effect),
                Step::Done(report) => return (observed.done, report),
            }
        }
    }

    #[test]
    fn each_method_has_its_order() {
        use AccessMethod::{FirstUser, Postgres, TokenSecret};
        use RevocationEffect::{RemoveSecret, RevokeInCoderd, RevokeInDatabase};
        let with = |recorded: OperatorTokenStatus, replaced: Option<OperatorTokenStatus>| {
            let replaces =
                replaced.map(|OperatorTokenStatus { method, user_id, .. }| ReplacedToken { method, user_id });
            ObservedRevocation {
                recorded: Some(OperatorTokenStatus { replaces, ..recorded }),
                ..observed(Postgres)
            }
        };
        let in_coderd = |user: Option<&str>| RevokeInCoderd { user_id: user.map(str::to_owned) };
        for (observed, expected) in [
            (observed(TokenSecret), vec![]),
            (observed(Postgres), vec![RemoveSecret, RevokeInDatabase]),
            (observed(FirstUser), vec![in_coderd(None), RemoveSecret]),
            (with(token(FirstUser, Some("p")), None), vec![in_coderd(Some("p")), RemoveSecret]),
            // Nothing records a token: the method of the spec counts.
            (
                ObservedRevocation { recorded: None, ..observed(Postgres) },
                vec![RemoveSecret, RevokeInDatabase],
            ),
            (ObservedRevocation { recorded: None, ..observed(TokenSecret) }, vec![]),
            // A change of method that had not ended: both are revoked.
            (
                with(token(FirstUser, Some("p")), Some(token(Postgres, Some("o")))),
                vec![in_coderd(Some("p")), RemoveSecret, RevokeInDatabase],
            ),
            (
                with(token(FirstUser, None), Some(token(Postgres, Some("o")))),
                vec![RemoveSecret, RevokeInDatabase, in_coderd(None)],
            ),
            (
                with(token(Postgres, Some("o")), Some(token(FirstUser, Some("p")))),
                vec![in_coderd(Some("p")), RemoveSecret, RevokeInDatabase],
            ),
            (
                with(token(Postgres, None), Some(token(FirstUser, None))),
                vec![RemoveSecret, RevokeInDatabase, in_coderd(None)],
            ),
        ] {
            let (done, report) = run(observed);
            assert_eq!((done, report), (expected, finished(Revocation::Done)));
        }
    }

    #[test]
    fn a_disabled_access_is_retried_until_it_is_revoked() {
        let blocker = Blocker::new(Reason::DatabaseUnreachable, "no route");
        let failing =
            ObservedRevocation { blocker: Some(blocker.clone()), ..observed(AccessMethod::Postgres) };
        let (_, report) = run(failing.clone());
        assert_eq!(
            (report.revocation, report.retry),
            (Some(Revocation::Failing(blocker)), Some(Retry::Backoff))
        );
        // Nothing records a token, and there is no database: none can have been created.
        let nothing = Blocker::until_change(Reason::DatabaseUrlMissing, "no database");
        let unrecorded =
            ObservedRevocation { recorded: None, blocker: Some(nothing.clone()), ..failing.clone() };
        assert_eq!(run(unrecorded).1.revocation, Some(Revocation::Done));
        let recorded = ObservedRevocation { blocker: Some(nothing), ..failing };
        assert_eq!(run(recorded).1.retry, Some(Retry::Backoff), "the database may come back");
    }

    #[test]
    fn a_deletion_waits_for_dependents_and_ends_at_its_deadline() {
        let with = |seconds, has_dependents, blocker: Option<Blocker>| ObservedRevocation {
            deletion: Some(TokenDeletion {
                cleanup: Cleanup { limit: Duration::from_mins(2), left: Duration::from_secs(seconds) },
                overdue: false,
                has_dependents,
            }),
            blocker,
            ..observed(AccessMethod::Postgres)
        };
        let waiting = run(with(60, true, None)).1;
        assert_eq!((waiting.revocation, waiting.within), (None, Some(REQUEUE_DEPENDENTS)));
        assert_eq!(
            run(with(0, true, None)).1.revocation,
            Some(Revocation::Done),
            "dependents had their time"
        );
        assert_eq!(
            run(with(30, true, None)).1.revocation,
            Some(Revocation::Done),
            "and the revocation has the rest, for more than one attempt"
        );
        let away = Blocker::new(Reason::DatabaseTimeout, "no answer");
        let failing = run(with(60, false, Some(away.clone()))).1;
        assert_eq!(failing.within, Some(Duration::from_mins(1)), "never later than the deadline");
        let over = run(with(0, false, Some(away.clone()))).1;
        assert_eq!(over.revocation, Some(Revocation::Abandoned));
        assert!(over.event.unwrap().message.contains("coder-k8s-operator-ns-coder"));
        let mut tried = with(0, true, None);
        tried.deletion = tried.deletion.map(|deletion| TokenDeletion { overdue: true, ..deletion });
        tried.last_blocker = Some(away);
        let (done, over) = run(tried);
        assert_eq!((done, over.revocation), (Vec::new(), Some(Revocation::Abandoned)), "nothing is tried");
        assert!(over.event.unwrap().message.contains("no answer"));
    }

    /// The rows of the deletion table for a control plane: the database and coderd, with and without dependents.
    #[test]
    fn whatever_fails_the_deletion_ends_by_its_deadline() {
        use crate::cleanup::table::{End, FAILURES, LIMITS, backoff};
        let start = jiff::Timestamp::UNIX_EPOCH;
        let methods = [AccessMethod::Postgres, AccessMethod::FirstUser];
        for (limit, method, has_dependents) in LIMITS
            .into_iter()
            .flat_map(|limit| methods.map(|method| (limit, method)))
            .flat_map(|(limit, method)| [false, true].map(|dependents| (limit, method, dependents)))
        {
            for failure in FAILURES {
                let (mut elapsed, mut attempts, mut last) = (Duration::ZERO, 0, None);
                let end = loop {
                    let cleanup = Cleanup::new(limit, start, start + elapsed);
                    let overdue = cleanup.is_over() && attempts > 0;
                    let mut now = observed(method);
                    now.deletion = Some(TokenDeletion { cleanup, overdue, has_dependents });
                    now.last_blocker.clone_from(&last);
                    let report = loop {
                        match decide(&now) {
                            Step::Ask(never) => match never {},
                            Step::Act(RevocationEffect::RemoveSecret) => {
                                now.done.push(RevocationEffect::RemoveSecret);
                            }
                            Step::Act(_) => {
                                attempts += 1;
                                elapsed += failure.takes.min(cleanup.call_timeout());
                                let cleanup = Cleanup::new(limit, start, start + elapsed);
                                now.deletion = Some(TokenDeletion { cleanup, overdue, has_dependents });
                                let blocker = Blocker::new(Reason::Error, failure.name);
                                now.blocker = Some(blocker.with_retry(failure.retry));
                            }
                            Step::Done(report) => break report,
                        }
                    };
                    if report.revocation == Some(Revocation::Abandoned) {
                        let events = report.event.into_iter().map(|event| event.message).collect();
                        break End { after: elapsed, attempts, events };
                    }
                    last = now.blocker;
                    let wanted = report.retry.map(|retry| backoff(attempts - 1, retry));
                    let wanted = [wanted, report.within].into_iter().flatten().min();
                    elapsed += Cleanup::new(limit, start, start + elapsed).delay(wanted);
                };
                let row = format!("{limit:?} {method:?} {has_dependents} {}", failure.name);
                end.check(limit, "coder-k8s-operator-ns-coder", &row);
            }
        }
    }
}
