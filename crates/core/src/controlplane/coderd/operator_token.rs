//! Decides how a control plane gets, keeps, renews and replaces the operator token.
//!
//! [`decide`] is total and asks for one thing at a time: a [`TokenQuery`] that the caller answers, a [`TokenEffect`] that
//! it performs, or the [`TokenReport`] of this exchange. The caller writes every answer into [`ObservedToken`] and decides
//! again.
//!
//! Guarantees: no token is created before the status announces it and the finalizer is in place. A token that works is
//! used until its successor is stored and proven. What coderd does not accept right after its creation is created again
//! only after a growing delay. An answer that is not definite creates, replaces and revokes nothing.

use std::time::Duration;

use coder_k8s_api::{AccessMethod, OperatorTokenStatus, Reason, ReplacedToken};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::access::{AccessVerdict, Revocation};
use crate::{
    condition::whole_seconds,
    controlplane::coderd::Step,
    outcome::{Blocker, EventNote, Retry},
};

/// What is known of the operator token. The options are filled in as [`decide`] asks for them.
#[derive(Clone, Debug, Default)]
pub struct ObservedToken {
    /// How the spec wants the operator to get its token.
    pub method: AccessMethod,
    /// Whether the status announces a token of this method, with the finalizer in place.
    pub is_recorded: bool,
    /// The token on record, if it was proven: it has an expiry.
    pub record: Option<OperatorTokenStatus>,
    /// UUID of the user of the token on record, proven or not.
    pub user_id: Option<String>,
    /// Tokens of other methods that are still to be revoked, as [`super::access::replaced_tokens`] lists them.
    pub replaced: Vec<ReplacedToken>,
    /// How long no token may be created, because coderd has not accepted the last one.
    pub creation_delay: Option<Duration>,
    /// The Secrets with the token.
    pub secret: Option<Result<TokenSecret, Blocker>>,
    /// What coderd makes of the token in the Secret.
    pub check: Option<TokenCheck>,
    /// Whether the token's user is an owner and a member of every organization.
    pub rights: Option<Result<bool, Blocker>>,
    /// Whether the database, or the first user's Secret, can be used.
    pub source: Option<Result<(), Blocker>>,
    /// The outcome of [`TokenEffect::Store`].
    pub stored: Option<Result<(), Blocker>>,
    /// The outcome of [`TokenEffect::Create`].
    pub created: Option<Result<CreatedToken, Blocker>>,
    /// What coderd makes of the created token.
    pub proof: Option<TokenCheck>,
    /// The outcome of [`TokenEffect::RemoveOthers`].
    pub others_removed: Option<Result<(), Blocker>>,
    /// The outcomes of [`TokenEffect::RevokeReplaced`], in the order of `replaced`.
    pub replaced_revoked: Vec<Result<(), Blocker>>,
}

/// The Secrets that may hold the operator token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSecret {
    /// A Secret that the operator does not own has the token's name.
    Foreign {
        /// Its name.
        name: String,
    },
    /// The Secret is ours, or absent.
    Ours {
        /// Whether a token was found, in the Secret of the spec or under an earlier name.
        has_token: bool,
        /// Whether the Secret of the spec holds that token and no earlier Secret is left.
        in_place: bool,
    },
}

/// What coderd makes of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// It accepts the token, which belongs to this user.
    Accepted {
        /// UUID of the user.
        user_id: String,
    },
    /// It definitely does not accept the token.
    Refused(Blocker),
    /// No definite answer.
    Unknown(Blocker),
}

/// A token that was created and stored in the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedToken {
    /// When it expires.
    pub expires: Timestamp,
    /// When it is to be replaced.
    pub renew_after: Timestamp,
    /// Whether it is the only token of ours. If not, the one it replaces still works.
    pub is_only_one: bool,
}

/// What [`decide`] needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenQuery {
    /// Read the Secrets.
    Secret,
    /// Ask coderd who the token in the Secret belongs to.
    Check,
    /// Ask coderd whether that user has every right that the operator needs.
    Rights,
    /// Read where a token could come from. Creates and connects to nothing.
    Source,
    /// Ask coderd who the created token belongs to.
    Proof,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenEffect {
    /// Copy the token into the Secret of the spec, then remove the one of an earlier name.
    Store,
    /// Create a token and store it. The token that it replaces keeps working.
    Create {
        /// Whether the present token works and creates its own successor.
        renews: bool,
        /// Whether coderd refuses the present token, so that another one is needed even if the database knows it.
        is_refused: bool,
    },
    /// Remove every other token of ours from coderd.
    RemoveOthers,
    /// Revoke the tokens of another method. Those of the first user are revoked with the token that works now, by the
    /// user's UUID; without a UUID the operator logs in as the first user. They are never revoked as `me`: that is the
    /// user of the token that works now.
    RevokeReplaced(ReplacedToken),
}

/// The result of one exchange about the token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenReport {
    /// The new verdict. None: the earlier one stands.
    pub access: Option<AccessVerdict>,
    /// Whether a license that is not applied is blocked by the same thing.
    pub blocks_license: bool,
    /// What to record about the token. None: the record stands.
    pub token_record: Option<OperatorTokenStatus>,
    /// Whether the token can be created only once `token_record` is on the status.
    pub awaits_record: bool,
    /// Set when a token of another method was revoked and no record of ours remains.
    pub revocation: Option<Revocation>,
    /// Whether the token may be used for the rest of this exchange.
    pub is_usable: bool,
    /// When to try again. None: at the next interval, or when something changes.
    pub retry: Option<Retry>,
    /// What to announce.
    pub events: Vec<EventNote>,
}

/// The next step.
pub type TokenStep = Step<TokenQuery, TokenEffect, TokenReport>;

/// Decides the next step.
pub fn decide(observed: &ObservedToken, now: Timestamp) -> TokenStep {
    match observed.method {
        AccessMethod::TokenSecret => decide_supplied(observed),
        AccessMethod::Postgres | AccessMethod::FirstUser => decide_minted(observed, now),
    }
}

/// A person supplies the token: it is checked and never written.
fn decide_supplied(observed: &ObservedToken) -> TokenStep {
    match &observed.secret {
        None => return Step::Ask(TokenQuery::Secret),
        Some(Err(blocker)) => return Step::Done(unavailable(blocker)),
        Some(Ok(_)) => {}
    }
    match &observed.check {
        None => Step::Ask(TokenQuery::Check),
        Some(TokenCheck::Refused(blocker)) => {
            // A text that no header can carry was not sent to coderd, so that the license is not known to be blocked.
            let blocks_license = blocker.reason != Reason::BadToken;
            Step::Done(TokenReport { blocks_license, ..refused(blocker) })
        }
        Some(TokenCheck::Unknown(blocker)) => Step::Done(unreachable(blocker)),
        Some(TokenCheck::Accepted { .. }) => observed.finish(None),
    }
}

/// Why the present token does not do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lack {
    Missing,
    Refused,
    /// It expires soon, or nobody recorded when.
    Expiring,
    /// Its user lost a role or misses an organization.
    Rights,
}

fn decide_minted(observed: &ObservedToken, now: Timestamp) -> TokenStep {
    let (has_token, in_place) = match &observed.secret {
        None => return Step::Ask(TokenQuery::Secret),
        Some(Err(blocker)) => return Step::Done(failed(blocker, false)),
        Some(Ok(TokenSecret::Foreign { name })) => {
            let message = format!(
                "Secret {name} exists and belongs to somebody else, so that the operator token cannot be stored: choose \
                 another name with operatorAccess.generatedTokenSecretName, or delete the Secret"
            );
            return Step::Done(refused(&Blocker::until_change(Reason::ForeignObject, message)));
        }
        Some(Ok(TokenSecret::Ours { has_token, in_place })) => (*has_token, *in_place),
    };
    if let Some(created) = &observed.created {
        return after_creation(observed, created);
    }
    let lack = if has_token {
        match lack(observed, now) {
            Ok(lack) => lack,
            Err(step) => return *step,
        }
    } else {
        Some(Lack::Missing)
    };
    let Some(lack) = lack else {
        return match &observed.stored {
            _ if in_place => observed.finish(None),
            None => Step::Act(TokenEffect::Store),
            Some(Err(blocker)) => Step::Done(failed(blocker, true)),
            Some(Ok(())) => observed.finish(None),
        };
    };
    let works = matches!(lack, Lack::Expiring | Lack::Rights);
    if observed.is_recorded {
        if let Some(delay) = observed.creation_delay {
            let retry = Some(Retry::After(delay));
            let report = match lack {
                Lack::Refused => refused(&not_accepted(observed.method)),
                // The verdict about what could not be stored stands.
                Lack::Missing | Lack::Expiring | Lack::Rights => TokenReport::default(),
            };
            return Step::Done(TokenReport { retry, is_usable: works, ..report });
        }
        // A record that is not due would let the next exchange rest, and if this one is interrupted, the token that it
        // replaces would stay valid beside the new one.
        if !observed.is_due(now) {
            return Step::Done(observed.announcement(works));
        }
        let renews = works && observed.is_of_recorded_user();
        return Step::Act(TokenEffect::Create { renews, is_refused: lack == Lack::Refused });
    }
    // The intent is recorded only once it is known that the source can be used: a control plane without a database
    // would otherwise have to be cleaned up after for ever.
    match &observed.source {
        None => Step::Ask(TokenQuery::Source),
        Some(Err(blocker)) => Step::Done(failed(blocker, works)),
        Some(Ok(())) => Step::Done(observed.announcement(works)),
    }
}

/// What is wrong with the token in the Secret. The error is the next step, where that is not known yet.
fn lack(observed: &ObservedToken, now: Timestamp) -> Result<Option<Lack>, Box<TokenStep>> {
    let ask = |query| Err(Box::new(Step::Ask(query)));
    let unreachable = |blocker| Err(Box::new(Step::Done(unreachable(blocker))));
    match &observed.check {
        None => return ask(TokenQuery::Check),
        Some(TokenCheck::Unknown(blocker)) => return unreachable(blocker),
        // A text that cannot be a token is as good as none.
        Some(TokenCheck::Refused(blocker)) if blocker.reason == Reason::BadToken => {
            return Ok(Some(Lack::Missing));
        }
        Some(TokenCheck::Refused(_)) => return Ok(Some(Lack::Refused)),
        Some(TokenCheck::Accepted { .. }) => {}
    }
    if observed.is_due(now) {
        return Ok(Some(Lack::Expiring));
    }
    match (observed.method, &observed.rights) {
        // The first user is a person, whose roles are not the operator's to change.
        (AccessMethod::FirstUser, _) => Ok(None),
        (AccessMethod::Postgres | AccessMethod::TokenSecret, rights) => match rights {
            None => ask(TokenQuery::Rights),
            Some(Err(blocker)) => unreachable(blocker),
            Some(Ok(true)) => Ok(None),
            Some(Ok(false)) => Ok(Some(Lack::Rights)),
        },
    }
}

fn after_creation(observed: &ObservedToken, created: &Result<CreatedToken, Blocker>) -> TokenStep {
    let works = matches!(observed.check, Some(TokenCheck::Accepted { .. }));
    let created = match created {
        Ok(created) => created,
        Err(blocker) => return Step::Done(failed(blocker, works)),
    };
    let user_id = match &observed.proof {
        None => return Step::Ask(TokenQuery::Proof),
        Some(TokenCheck::Refused(_)) => {
            let blocker = not_accepted(observed.method);
            return Step::Done(TokenReport { retry: Some(blocker.retry), ..refused(&blocker) });
        }
        Some(TokenCheck::Unknown(blocker)) => return Step::Done(unreachable(blocker)),
        Some(TokenCheck::Accepted { user_id }) => user_id,
    };
    match &observed.others_removed {
        None if !created.is_only_one => return Step::Act(TokenEffect::RemoveOthers),
        Some(Err(blocker)) => return Step::Done(failed(blocker, true)),
        None | Some(Ok(())) => {}
    }
    observed.finish(Some(OperatorTokenStatus {
        method: observed.method,
        user_id: Some(user_id.clone()),
        expires: Some(Time(whole_seconds(created.expires))),
        renew_after: Some(Time(whole_seconds(created.renew_after))),
        replaces: observed.replaced.first().cloned(),
    }))
}

impl ObservedToken {
    /// Whether the record asks for another token: it is time for one, or none was proven.
    fn is_due(&self, now: Timestamp) -> bool {
        let renew_after = self.record.as_ref().and_then(|record| record.renew_after.as_ref());
        renew_after.is_none_or(|at| at.0 <= now)
    }

    /// Whether the token in the Secret belongs to the user on record, and not to that of another method.
    fn is_of_recorded_user(&self) -> bool {
        match &self.check {
            Some(TokenCheck::Accepted { user_id }) => self.user_id.as_ref() == Some(user_id),
            Some(TokenCheck::Refused(_) | TokenCheck::Unknown(_)) | None => false,
        }
    }

    /// Puts on record that a token is about to be created. Only one that is proven has times there.
    fn announcement(&self, works: bool) -> TokenReport {
        TokenReport {
            access: works.then_some(AccessVerdict::Ready),
            token_record: Some(OperatorTokenStatus {
                method: self.method,
                user_id: self.user_id.clone(),
                replaces: self.replaced.first().cloned(),
                ..OperatorTokenStatus::default()
            }),
            awaits_record: true,
            is_usable: works,
            ..TokenReport::default()
        }
    }

    /// coderd accepts the token. What it replaces is revoked before the exchange goes on.
    fn finish(&self, token_record: Option<OperatorTokenStatus>) -> TokenStep {
        let ready = TokenReport {
            access: Some(AccessVerdict::Ready),
            token_record: token_record.clone(),
            is_usable: true,
            ..TokenReport::default()
        };
        if self.replaced.is_empty() {
            return Step::Done(ready);
        }
        let successor = match self.method {
            AccessMethod::TokenSecret => None,
            AccessMethod::Postgres | AccessMethod::FirstUser => {
                match token_record.or_else(|| self.record.clone()) {
                    Some(successor) => Some(OperatorTokenStatus { replaces: None, ..successor }),
                    // Only a token that is on record counts as a successor.
                    None => return Step::Done(ready),
                }
            }
        };
        if let Some(next) = self.replaced.get(self.replaced_revoked.len()) {
            return Step::Act(TokenEffect::RevokeReplaced(next.clone()));
        }
        let failures = self.replaced_revoked.iter().filter_map(|outcome| outcome.as_ref().err());
        let retry = failures.map(|blocker| blocker.retry).find(|retry| *retry != Retry::OnChange);
        if retry.is_some() {
            // The record still names all of them: revoking a token twice is harmless.
            return Step::Done(TokenReport { retry, ..ready });
        }
        let outcomes = self.replaced.iter().zip(&self.replaced_revoked);
        let events = outcomes
            .filter_map(|(token, outcome)| outcome.as_ref().err().map(|blocker| abandoned(token, blocker)));
        // No token of ours remains beside a supplied one.
        let revocation = successor.is_none().then_some(Revocation::Done);
        let events = events.collect();
        Step::Done(TokenReport { events, token_record: successor, revocation, ..ready })
    }
}

/// Something other than coderd failed. A token that works goes on working.
fn failed(blocker: &Blocker, works: bool) -> TokenReport {
    let retry = blocker.timed_retry();
    if works {
        let access = Some(AccessVerdict::Overdue(blocker.clone()));
        return TokenReport { access, is_usable: true, retry, ..TokenReport::default() };
    }
    TokenReport { retry, ..refused(blocker) }
}

/// There is no token that coderd accepts, until something changes.
fn refused(blocker: &Blocker) -> TokenReport {
    let access = Some(AccessVerdict::Refused(blocker.clone()));
    TokenReport { access, blocks_license: true, ..TokenReport::default() }
}

/// The supplied token cannot be read. A Secret that could not be read says nothing about the token.
fn unavailable(blocker: &Blocker) -> TokenReport {
    if blocker.retry == Retry::OnChange {
        return TokenReport { blocks_license: false, ..refused(blocker) };
    }
    TokenReport { retry: Some(blocker.retry), ..TokenReport::default() }
}

/// coderd gave no definite answer.
fn unreachable(blocker: &Blocker) -> TokenReport {
    let (access, retry) = (Some(AccessVerdict::unreachable(blocker)), Some(blocker.retry));
    TokenReport { access, blocks_license: true, retry, ..TokenReport::default() }
}

/// coderd does not accept what the operator created for it.
fn not_accepted(method: AccessMethod) -> Blocker {
    let hint = match method {
        AccessMethod::Postgres => {
            ". Check that coderd runs on the database that CODER_PG_CONNECTION_URL names"
        }
        AccessMethod::FirstUser | AccessMethod::TokenSecret => "",
    };
    let message = format!(
        "coderd does not accept the token that the operator created: another one is created after a growing delay{hint}"
    );
    Blocker::new(Reason::TokenRefused, message)
}

fn abandoned(replaced: &ReplacedToken, blocker: &Blocker) -> EventNote {
    let message = format!(
        "the operator token of method {:?} may still be valid in coderd and could not be revoked: {}; delete it there",
        replaced.method, blocker.message
    );
    EventNote { warning: true, reason: Reason::TokenAbandoned, message }
}

#[cfg(test)]
mod tests;
