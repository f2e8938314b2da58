//! Decides what to write, from what the database contains. Pure.
//!
//! Nothing is written that is already correct. A token that works stays until its successor is proven: renewal
//! creates a second token beside the first, and only a later call, which brings the second token, deletes the first.

use jiff::{SignedDuration, Timestamp};

use super::error::DatabaseErrorKind;
use super::token::{TokenNames, TokenParts};
use super::{EMAIL, TokenRequest, USERNAME};

/// The relevant content of the database.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedAccount {
    /// Accounts with the username or e-mail address of the operator.
    pub(super) accounts: Vec<Account>,
    pub(super) memberships: Vec<Membership>,
    /// Tokens of the operator's account with one of the two names of this control plane.
    pub(super) tokens: Vec<Token>,
}

/// An account that is not deleted.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) id: String,
    pub(super) email: String,
    pub(super) username: String,
    pub(super) is_system: bool,
    /// Whether all other fields are as the operator writes them.
    pub(super) is_correct: bool,
}

impl Account {
    /// An account is the operator's only with both marks: the e-mail address and being a system account.
    pub(super) fn is_ours(&self) -> bool {
        self.is_system && self.email.eq_ignore_ascii_case(EMAIL)
    }
}

/// Membership of the operator's account in one organization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Missing,
    NotAdmin,
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
    /// Whether the token has all permissions of its user.
    pub(super) unrestricted: bool,
}

impl Token {
    /// The lifetime that counts: the shortest of the one that was asked for at its creation, the one that it has now,
    /// and the desired one. coderd extends a token that is used, and that must not delay the renewal.
    fn span(&self, request: SignedDuration) -> SignedDuration {
        self.lifetime.min(self.expires.duration_since(self.created)).min(request)
    }

    /// When to renew the token: after two thirds of its lifetime.
    pub(super) fn renew_at(&self, request: SignedDuration) -> Timestamp {
        renew_at(self.created, self.span(request))
    }
}

/// When to renew a token that was created at this time with this lifetime.
pub(super) fn renew_at(created: Timestamp, life: SignedDuration) -> Timestamp {
    created.checked_add(life / 3 * 2).unwrap_or(created)
}

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessPlan {
    pub(super) account: AccountPlan,
    /// Number of organizations to join.
    pub(super) join: usize,
    /// Number of memberships without the role.
    pub(super) promote: usize,
    pub(super) token: TokenPlan,
}

/// What to do with the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccountPlan {
    Keep { id: String },
    Repair { id: String },
    Make,
}

/// What to do with the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenPlan {
    /// Keep the existing token.
    Keep {
        id: String,
        /// Ids of the other tokens with one of the two names, to be deleted.
        remove: Vec<String>,
        /// Whether the token takes over the plain name.
        rename: bool,
    },
    /// Create a token.
    Make {
        /// Ids of tokens to be deleted first.
        remove: Vec<String>,
        /// Name of the new token.
        name: String,
        /// Whether the existing token stays valid beside the new one.
        keeps_existing: bool,
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

/// Decides what to write. Fails if a person has the account, or if there is no organization yet.
pub(super) fn plan(
    observed: &ObservedAccount,
    request: &TokenRequest<'_>,
) -> Result<AccessPlan, DatabaseErrorKind> {
    let ObservedAccount { accounts, memberships, tokens } = observed;
    let account = account(accounts)?;
    if memberships.is_empty() {
        return Err(DatabaseErrorKind::NoOrganization);
    }
    let count = |state| memberships.iter().filter(|membership| **membership == state).count();
    Ok(AccessPlan {
        account,
        join: count(Membership::Missing),
        promote: count(Membership::NotAdmin),
        token: token(tokens, &TokenNames::of(request.token_name), request),
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
        Some(ours) if ours.is_correct => AccountPlan::Keep { id: ours.id.clone() },
        Some(ours) => AccountPlan::Repair { id: ours.id.clone() },
    })
}

fn token(tokens: &[Token], names: &TokenNames, request: &TokenRequest<'_>) -> TokenPlan {
    let brought = request.existing.and_then(TokenParts::of);
    let valid = tokens.iter().find(|token| {
        let same = |parts: &TokenParts| token.id == parts.id && token.digest == parts.digest;
        brought.as_ref().is_some_and(same) && token.expires > request.now
    });
    let all_but =
        |id: &str| tokens.iter().map(|token| &token.id).filter(|other| *other != id).cloned().collect();
    match valid {
        None => TokenPlan::Make { remove: all_but(""), name: names.plain.clone(), keeps_existing: false },
        Some(token)
            if request.replace || !token.unrestricted || token.renew_at(request.lifetime) <= request.now =>
        {
            let name = names.other(&token.name).to_owned();
            TokenPlan::Make { remove: all_but(&token.id), name, keeps_existing: true }
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
