//! Creates what is missing, and revokes it. Both read first without a lock. Only if something has to change, they lock the
//! account, read again, and write what the second read asks for.

use jiff::{SignedDuration, Timestamp, Unit};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::{DatabaseErrorKind, Result};
use super::plan::{self, AccessPlan, AccountPlan, ObservedAccount, TokenNames, TokenPlan};
use super::rows::{self, Statements};
use super::schema::Catalog;
use super::session::Session;
use super::{Change, DatabaseTokenRequest, Ensured};

/// Makes sure of the account, its memberships and a token. Also returns whether anything was written.
pub(super) async fn ensure(
    session: &Session<'_>,
    request: &DatabaseTokenRequest<'_>,
) -> Result<(Ensured, bool)> {
    // Postgres stores microseconds. Rounding first makes a time that is read back equal to the one that was written.
    let now = request.now.round(Unit::Microsecond).unwrap_or(request.now);
    let request = &DatabaseTokenRequest { now, ..*request };
    let schema = Catalog::read(session).await?.check()?;
    let names = &TokenNames::of(request.token_name);
    let rows = &Statements { session, schema, names, now };
    if rows.is_dirty().await? {
        return Err(DatabaseErrorKind::NotMigrated("a migration was interrupted"));
    }
    let deployment_id = rows.deployment_id().await?;
    let observed = rows.read().await?;
    let plan = plan::plan(&observed, request)?;
    let mut changes = Vec::new();
    let current = match plan.kept_token() {
        Some(id) => kept(&observed, id, request)?,
        None => write(rows, request, plan.account == AccountPlan::Make, &mut changes).await?,
    };
    let CurrentToken { token, expires, renew_at, is_only_one } = current;
    let (made, written) = (changes.contains(&Change::TokenMade), !changes.is_empty());
    Ok((Ensured { token, expires, renew_at, made, is_only_one, deployment_id, changes }, written))
}

/// The token that the operator uses from now on. See [`Ensured`].
struct CurrentToken {
    token: SecretString,
    expires: Timestamp,
    renew_at: Timestamp,
    is_only_one: bool,
}

/// Revokes the tokens with both names. A database without the tables and columns of an operator's token is not an error:
/// no operator can have created one there.
pub(super) async fn revoke(session: &Session<'_>, names: &TokenNames) -> Result<(u64, bool)> {
    let found = Catalog::read(session).await?;
    if !found.migrated() || !found.has("users", "is_system") {
        return Ok((0, false));
    }
    found.check_revocation()?;
    rows::revoke(session, names).await
}

/// The existing token, which stays.
fn kept(observed: &ObservedAccount, id: &str, request: &DatabaseTokenRequest<'_>) -> Result<CurrentToken> {
    let row = observed.tokens.iter().find(|token| token.id == id);
    let (row, existing) = row.zip(request.existing).ok_or(DatabaseErrorKind::Unexpected("keep its token"))?;
    // A Secret that a person created may end with a newline, which a header cannot contain.
    let token = SecretString::from(existing.expose_secret().trim());
    let renew_at = row.renew_at(request.lifetime);
    Ok(CurrentToken { token, expires: row.expires, renew_at, is_only_one: true })
}

async fn write(
    rows: &Statements<'_>,
    request: &DatabaseTokenRequest<'_>,
    make_account: bool,
    changes: &mut Vec<Change>,
) -> Result<CurrentToken> {
    if rows.lock_account(make_account).await? {
        changes.push(Change::AccountMade);
    }
    // Another operator may have written between the first read and the lock, so the plan is made again under the lock.
    let observed = rows.read().await?;
    let AccessPlan { account, join, token } = plan::plan(&observed, request)?;
    let account = match account {
        AccountPlan::Keep { id } => id,
        AccountPlan::Repair { id } => {
            rows.repair_account(&id).await?;
            changes.push(Change::AccountRepaired);
            id
        }
        // The account was deleted after it was locked or created. The next call creates it again.
        AccountPlan::Make => return Err(DatabaseErrorKind::Unexpected("create its account")),
    };
    if join {
        let (joined, promoted) = rows.join(&account).await?;
        changes.extend((joined > 0).then_some(Change::Joined(joined)));
        changes.extend((promoted > 0).then_some(Change::Promoted(promoted)));
    }
    let (TokenPlan::Keep { remove, .. } | TokenPlan::Make { remove, .. }) = &token;
    if !remove.is_empty() {
        // First, because names are unique and the kept or new token may need one of them.
        changes.push(Change::TokensRemoved(rows.remove_tokens(&account, remove).await?));
    }
    match token {
        TokenPlan::Keep { id, rename, remove: _ } => {
            if rename {
                rows.rename_token(&account, &id).await?;
                changes.push(Change::TokenRenamed);
            }
            kept(&observed, &id, request)
        }
        TokenPlan::Make { name, keeps_existing, remove: _ } => {
            let token = plan::random_token()?;
            let lifetime = SignedDuration::from_secs(request.lifetime.as_secs().max(1));
            let expires = rows.now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
            rows.insert_token(&account, &token, &name, (expires, lifetime)).await?;
            changes.push(Change::TokenMade);
            let renew_at = plan::renew_at(rows.now, lifetime);
            Ok(CurrentToken { token, expires, renew_at, is_only_one: !keeps_existing })
        }
    }
}
