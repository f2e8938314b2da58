//! Decides what to write, from what the database contains. Pure, but for [`random_token`].
//!
//! Nothing is written that is already correct. A token that works stays until its successor is proven: renewal
//! creates a second token beside the first, and only a later call, which brings the second token, deletes the first.

use jiff::{SignedDuration, Timestamp};
use rustls::crypto::aws_lc_rs;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use super::error::{DatabaseErrorKind, Result};
use super::{DatabaseTokenRequest, EMAIL, USERNAME};

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The largest multiple of 62 in a byte. Larger bytes are skipped, because they would make some characters more
/// likely.
const UNBIASED_BYTES: u8 = 248;
const ID_CHARS: usize = 10;
const SECRET_CHARS: usize = 22;
/// Suffix of the name of a token that will replace the one with the plain name.
const NEXT_SUFFIX: &str = "-next";

/// The relevant content of the database.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedAccount {
    /// Accounts with the username or e-mail address of the operator.
    pub(super) accounts: Vec<Account>,
    /// For each organization, whether the operator's account is an administrator of it.
    pub(super) is_admin: Vec<bool>,
    /// Tokens of the operator's account with one of the two names of this control plane.
    pub(super) tokens: Vec<TokenRow>,
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

/// A row of a token.
#[derive(Clone, Debug)]
pub(super) struct TokenRow {
    pub(super) id: String,
    pub(super) digest: Vec<u8>,
    pub(super) name: String,
    pub(super) created: Timestamp,
    pub(super) expires: Timestamp,
    pub(super) lifetime: SignedDuration,
    /// Whether the token has all permissions of its user.
    pub(super) unrestricted: bool,
}

impl TokenRow {
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
    /// Whether an organization is to be joined, or the role of its administrator is to be taken.
    pub(super) join: bool,
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
    /// The id of the token to keep if there is nothing to write.
    pub(super) fn kept_token(&self) -> Option<&str> {
        match self {
            Self {
                account: AccountPlan::Keep { .. },
                join: false,
                token: TokenPlan::Keep { id, remove, rename: false },
            } if remove.is_empty() => Some(id),
            _ => None,
        }
    }
}

/// Decides what to write. Fails if a person has the account, or if there is no organization yet.
pub(super) fn plan(observed: &ObservedAccount, request: &DatabaseTokenRequest<'_>) -> Result<AccessPlan> {
    let ObservedAccount { accounts, is_admin, tokens } = observed;
    let account = account(accounts)?;
    if is_admin.is_empty() {
        return Err(DatabaseErrorKind::NoOrganization);
    }
    let token = token(tokens, &TokenNames::of(request.token_name), request);
    Ok(AccessPlan { account, join: is_admin.contains(&false), token })
}

fn account(accounts: &[Account]) -> Result<AccountPlan> {
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

fn token(tokens: &[TokenRow], names: &TokenNames, request: &DatabaseTokenRequest<'_>) -> TokenPlan {
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

/// The text of a token, `<id>-<secret>` as coderd creates it, split. coderd stores the digest of the secret only.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TokenParts {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
}

impl TokenParts {
    /// `None` if the text is not a token.
    pub(super) fn of(token: &SecretString) -> Option<Self> {
        let (id, secret) = token.expose_secret().trim().split_once('-')?;
        (!id.is_empty() && !secret.is_empty())
            .then(|| Self { id: id.to_owned(), digest: Sha256::digest(secret).into() })
    }
}

/// Creates a random token.
pub(super) fn random_token() -> Result<SecretString> {
    let [id, secret] = [random(ID_CHARS)?, random(SECRET_CHARS)?];
    Ok(SecretString::from(format!("{}-{}", *id, *secret)))
}

fn random(length: usize) -> Result<Zeroizing<String>> {
    let source = aws_lc_rs::default_provider().secure_random;
    let mut text = Zeroizing::new(String::with_capacity(length));
    let mut bytes = Zeroizing::new([0_u8; 64]);
    while text.len() < length {
        source.fill(bytes.as_mut_slice()).map_err(|_| DatabaseErrorKind::Unexpected("make a token"))?;
        let fair = bytes.iter().filter(|byte| **byte < UNBIASED_BYTES);
        let characters = fair.filter_map(|byte| ALPHABET.get(usize::from(*byte) % ALPHABET.len()));
        let missing = length - text.len();
        text.extend(characters.take(missing).map(|byte| char::from(*byte)));
    }
    Ok(text)
}

/// The two names that tokens of one control plane have. Two, because a new token exists beside the old one until it
/// is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenNames {
    pub(super) plain: String,
    pub(super) next: String,
}

impl TokenNames {
    pub(super) fn of(name: &str) -> Self {
        Self { plain: name.to_owned(), next: format!("{name}{NEXT_SUFFIX}") }
    }

    /// The name that is free while a token has this one.
    pub(super) fn other(&self, name: &str) -> &str {
        if name == self.plain { &self.next } else { &self.plain }
    }

    pub(super) fn both(&self) -> Vec<&str> {
        vec![&self.plain, &self.next]
    }
}

#[cfg(test)]
mod tests;
