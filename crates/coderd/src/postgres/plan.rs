//! What is to be written, from what is there. Pure.
//!
//! Nothing is written that is right already. A token that works stays until the one that takes its place has been
//! proven: it is renewed by making a second one beside it, and only a later call, which brings the second one,
//! removes the first.

use jiff::{SignedDuration, Timestamp};

use super::error::DatabaseErrorKind;
use super::token::{Names, Parts};
use super::{EMAIL, TokenRequest, USERNAME};

/// What the database holds that is of interest.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedAccount {
    /// Accounts with the operator's username or e-mail.
    pub(super) accounts: Vec<Account>,
    pub(super) memberships: Vec<Membership>,
    /// Tokens of the operator's account with one of the two names.
    pub(super) tokens: Vec<Token>,
}

/// An account that is not deleted.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) id: String,
    pub(super) email: String,
    pub(super) username: String,
    pub(super) is_system: bool,
    /// Whether all its other fields are as they should be.
    pub(super) right: bool,
}

impl Account {
    /// The mark that no person's account has: both the e-mail and being a system account.
    pub(super) fn is_ours(&self) -> bool {
        self.is_system && self.email.eq_ignore_ascii_case(EMAIL)
    }
}

/// An organization, and whether the operator's account is its administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Missing,
    Lacking,
    Admin,
}

/// A row of a token.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) id: String,
    pub(super) digest: Vec<u8>,
    pub(super) name: String,
    pub(super) created: Timestamp,
    pub(super) expires: Timestamp,
    pub(super) lifetime: SignedDuration,
    /// Whether it may do everything.
    pub(super) full: bool,
}

impl Token {
    /// How long it was meant to live, and now is: coderd moves the end of a token that is used.
    fn span(&self, wanted: SignedDuration) -> SignedDuration {
        self.lifetime.min(self.expires.duration_since(self.created)).min(wanted)
    }

    /// When it is to be renewed: after two thirds of its life.
    pub(super) fn renew_at(&self, wanted: SignedDuration) -> Timestamp {
        renew_at(self.created, self.span(wanted))
    }
}

/// When a token of this age and life is to be renewed.
pub(super) fn renew_at(created: Timestamp, life: SignedDuration) -> Timestamp {
    created.checked_add(life / 3 * 2).unwrap_or(created)
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessPlan {
    pub(super) account: AccountPlan,
    /// Organizations to join.
    pub(super) join: usize,
    /// Memberships without the role.
    pub(super) promote: usize,
    pub(super) token: TokenPlan,
}

/// What is to be done about the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccountPlan {
    Keep { id: String },
    Repair { id: String },
    Make,
}

/// What is to be done about tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenPlan {
    /// The one that is there is good.
    Keep {
        id: String,
        /// Others of the two names, which go.
        remove: Vec<String>,
        /// It gets the plain name.
        rename: bool,
    },
    /// A new one.
    Make {
        /// Those that go first.
        remove: Vec<String>,
        /// Its name.
        name: String,
        /// Whether the one that was brought lives on beside it.
        beside: bool,
    },
}

impl AccessPlan {
    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        let Self { account, join, promote, token } = self;
        let kept = matches!(token, TokenPlan::Keep { remove, rename: false, .. } if remove.is_empty());
        matches!(account, AccountPlan::Keep { .. }) && *join == 0 && *promote == 0 && kept
    }
}

/// Decides what to write.
pub(super) fn plan(
    seen: &ObservedAccount,
    wanted: &TokenRequest<'_>,
) -> Result<AccessPlan, DatabaseErrorKind> {
    let ObservedAccount { accounts, memberships, tokens } = seen;
    let account = account(accounts)?;
    if memberships.is_empty() {
        return Err(DatabaseErrorKind::NoOrganization);
    }
    let count = |state| memberships.iter().filter(|membership| **membership == state).count();
    Ok(AccessPlan {
        account,
        join: count(Membership::Missing),
        promote: count(Membership::Lacking),
        token: token(tokens, &Names::of(wanted.token_name), wanted),
    })
}

fn account(accounts: &[Account]) -> Result<AccountPlan, DatabaseErrorKind> {
    if let Some(other) = accounts.iter().find(|account| !account.is_ours()) {
        let by_name = other.username.eq_ignore_ascii_case(USERNAME);
        let (what, value) = if by_name { ("username", USERNAME) } else { ("e-mail", EMAIL) };
        return Err(DatabaseErrorKind::AccountTaken { what, value });
    }
    Ok(match accounts.first() {
        None => AccountPlan::Make,
        Some(ours) if ours.right => AccountPlan::Keep { id: ours.id.clone() },
        Some(ours) => AccountPlan::Repair { id: ours.id.clone() },
    })
}

fn token(tokens: &[Token], names: &Names, wanted: &TokenRequest<'_>) -> TokenPlan {
    let brought = wanted.existing.and_then(Parts::of);
    let valid = tokens.iter().find(|token| {
        let same = |parts: &Parts| token.id == parts.id && token.digest == parts.digest;
        brought.as_ref().is_some_and(same) && token.expires > wanted.now
    });
    let all_but =
        |id: &str| tokens.iter().map(|token| &token.id).filter(|other| *other != id).cloned().collect();
    match valid {
        None => TokenPlan::Make { remove: all_but(""), name: names.plain.clone(), beside: false },
        Some(token) if wanted.replace || !token.full || token.renew_at(wanted.lifetime) <= wanted.now => {
            let name = names.other(&token.name).to_owned();
            TokenPlan::Make { remove: all_but(&token.id), name, beside: true }
        }
        Some(token) => TokenPlan::Keep {
            id: token.id.clone(),
            remove: all_but(&token.id),
            rename: token.name != names.plain,
        },
    }
}

#[cfg(test)]
mod tests;
