//! Creates what is missing. Reads first without a lock; only if something has to change, locks the account, reads
//! again, and writes what the second read asks for.

use jiff::{SignedDuration, Timestamp, Unit};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::DatabaseErrorKind;
use super::plan::{self, AccessPlan, AccountPlan, ObservedAccount, TokenPlan};
use super::rows::{self, NewToken};
use super::schema::{Catalog, Schema};
use super::session::Session;
use super::token::{self, TokenNames};
use super::{Change, Ensured, TokenRequest};

pub(super) async fn ensure(
    session: &Session<'_>,
    request: &TokenRequest<'_>,
) -> Result<Ensured, DatabaseErrorKind> {
    // Postgres stores microseconds. Rounding first makes a time that is read back equal to the one that was written.
    let now = request.now.round(Unit::Microsecond).unwrap_or(request.now);
    let request = &TokenRequest { now, ..*request };
    session.begin().await?;
    let found = Catalog::read(session).await?;
    let schema = found.check()?;
    if rows::is_dirty(session).await? {
        return Err(DatabaseErrorKind::NotMigrated("a migration was interrupted"));
    }
    let names = TokenNames::of(request.token_name);
    let deployment_id = if schema.deployment_id { rows::deployment_id(session).await? } else { None };

    let observed = rows::read(session, schema, &names).await?;
    let first = plan::plan(&observed, request)?;
    let (held, changes) = match (first.is_empty(), first) {
        (true, AccessPlan { token: TokenPlan::Keep { id, .. }, .. }) => {
            (kept(&observed, &id, request), Vec::new())
        }
        (_, first) => write(session, schema, &names, request, &first).await?,
    };
    let CurrentToken { token, expires, renew_at, made, settled } =
        held.ok_or(DatabaseErrorKind::Unexpected("keep its token"))?;
    Ok(Ensured { token, expires, renew_at, made, settled, deployment_id, changes })
}

/// The token that the operator uses from now on.
struct CurrentToken {
    token: SecretString,
    expires: Timestamp,
    renew_at: Timestamp,
    made: bool,
    settled: bool,
}

fn kept(observed: &ObservedAccount, id: &str, request: &TokenRequest<'_>) -> Option<CurrentToken> {
    let row = observed.tokens.iter().find(|token| token.id == id)?;
    // A Secret that a person created may end with a newline, which a header cannot contain.
    let token = SecretString::from(request.existing?.expose_secret().trim());
    let renew_at = row.renew_at(request.lifetime);
    Some(CurrentToken { token, expires: row.expires, renew_at, made: false, settled: true })
}

async fn write(
    session: &Session<'_>,
    schema: Schema,
    names: &TokenNames,
    request: &TokenRequest<'_>,
    first: &AccessPlan,
) -> Result<(Option<CurrentToken>, Vec<Change>), DatabaseErrorKind> {
    let now = request.now;
    let make = first.account == AccountPlan::Make;
    let made = rows::lock_account(session, schema, make, now).await?;
    // Another operator may have written between the first read and the lock, so the plan is made again under the lock.
    let observed = rows::read(session, schema, names).await?;
    let AccessPlan { account, join, promote, token } = plan::plan(&observed, request)?;
    let mut changes = Vec::new();
    if made {
        changes.push(Change::AccountMade);
    }
    let id = match account {
        AccountPlan::Keep { id } => id,
        AccountPlan::Repair { id } => {
            rows::repair_account(session, schema, &id, now).await?;
            changes.push(Change::AccountRepaired);
            id
        }
        // The account was deleted after it was locked or created. The next call creates it again.
        AccountPlan::Make => return Err(DatabaseErrorKind::Unexpected("create its account")),
    };
    if join + promote > 0 {
        let (joined, promoted) = rows::join(session, schema, &id, now).await?;
        changes.extend((joined > 0).then_some(Change::Joined(joined)));
        changes.extend((promoted > 0).then_some(Change::Promoted(promoted)));
    }
    let held = write_token(session, schema, names, request, (&observed, &id, token), &mut changes).await?;
    Ok((held, changes))
}

async fn write_token(
    session: &Session<'_>,
    schema: Schema,
    names: &TokenNames,
    request: &TokenRequest<'_>,
    (observed, account, plan): (&ObservedAccount, &str, TokenPlan),
    changes: &mut Vec<Change>,
) -> Result<Option<CurrentToken>, DatabaseErrorKind> {
    let now = request.now;
    let (TokenPlan::Keep { remove, .. } | TokenPlan::Make { remove, .. }) = &plan;
    if !remove.is_empty() {
        // First, because names are unique and the kept or new token may need one of them.
        let removed = rows::remove_tokens(session, account, remove).await?;
        changes.push(Change::TokensRemoved(removed));
    }
    match plan {
        TokenPlan::Keep { id, rename, remove: _ } => {
            if rename {
                rows::rename_token(session, account, &id, &names.plain, now).await?;
                changes.push(Change::TokenRenamed);
            }
            Ok(kept(observed, &id, request))
        }
        TokenPlan::Make { name, keeps_existing, remove: _ } => {
            let token = token::make()?;
            let lifetime = SignedDuration::from_secs(request.lifetime.as_secs().max(1));
            let expires = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
            let new = NewToken { token: &token, name: &name, now, expires, lifetime };
            rows::insert_token(session, schema, account, &new).await?;
            changes.push(Change::TokenMade);
            let renew_at = plan::renew_at(now, lifetime);
            Ok(Some(CurrentToken { token, expires, renew_at, made: true, settled: !keeps_existing }))
        }
    }
}
