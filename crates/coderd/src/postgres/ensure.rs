//! One look, and only where something is missing a second one under a lock, which is then made good.

use jiff::{SignedDuration, Timestamp, Unit};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::DatabaseErrorKind;
use super::plan::{self, AccessPlan, AccountPlan, ObservedAccount, TokenPlan};
use super::rows::{self, NewToken};
use super::schema::{Found, Schema};
use super::session::Session;
use super::token::{self, Names};
use super::{Change, Ensured, TokenRequest};

pub(super) async fn ensure(
    session: &Session<'_>,
    wanted: &TokenRequest<'_>,
) -> Result<Ensured, DatabaseErrorKind> {
    // As precise as the database is, so that a time that comes back is the one that was written.
    let now = wanted.now.round(Unit::Microsecond).unwrap_or(wanted.now);
    let wanted = &TokenRequest { now, ..*wanted };
    session.begin().await?;
    let found = Found::read(session).await?;
    let schema = found.check()?;
    if rows::is_dirty(session).await? {
        return Err(DatabaseErrorKind::NotMigrated("a migration was cut short"));
    }
    let names = Names::of(wanted.token_name);
    let deployment_id = if schema.deployment_id { rows::deployment_id(session).await? } else { None };

    let seen = rows::read(session, schema, &names).await?;
    let first = plan::plan(&seen, wanted)?;
    let (held, changes) = match (first.is_empty(), first) {
        (true, AccessPlan { token: TokenPlan::Keep { id, .. }, .. }) => {
            (kept(&seen, &id, wanted), Vec::new())
        }
        (_, first) => write(session, schema, &names, wanted, &first).await?,
    };
    let Held { token, expires, renew_at, made, settled } =
        held.ok_or(DatabaseErrorKind::Unexpected("keep its token"))?;
    Ok(Ensured { token, expires, renew_at, made, settled, deployment_id, changes })
}

/// The token that the operator goes on with.
struct Held {
    token: SecretString,
    expires: Timestamp,
    renew_at: Timestamp,
    made: bool,
    settled: bool,
}

fn kept(seen: &ObservedAccount, id: &str, wanted: &TokenRequest<'_>) -> Option<Held> {
    let row = seen.tokens.iter().find(|token| token.id == id)?;
    // Without the newline that a Secret made by hand may end with: no header can hold it.
    let token = SecretString::from(wanted.existing?.expose_secret().trim());
    let renew_at = row.renew_at(wanted.lifetime);
    Some(Held { token, expires: row.expires, renew_at, made: false, settled: true })
}

async fn write(
    session: &Session<'_>,
    schema: Schema,
    names: &Names,
    wanted: &TokenRequest<'_>,
    first: &AccessPlan,
) -> Result<(Option<Held>, Vec<Change>), DatabaseErrorKind> {
    let now = wanted.now;
    let make = first.account == AccountPlan::Make;
    let made = rows::lock_account(session, schema, make, now).await?;
    // Somebody else may have written in between; from here on nobody of us does.
    let seen = rows::read(session, schema, names).await?;
    let AccessPlan { account, join, promote, token } = plan::plan(&seen, wanted)?;
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
        // Deleted in between; the next call makes it again.
        AccountPlan::Make => return Err(DatabaseErrorKind::Unexpected("make its account")),
    };
    if join + promote > 0 {
        let (joined, promoted) = rows::join(session, schema, &id, now).await?;
        changes.extend((joined > 0).then_some(Change::Joined(joined)));
        changes.extend((promoted > 0).then_some(Change::Promoted(promoted)));
    }
    let held = write_token(session, schema, names, wanted, (&seen, &id, token), &mut changes).await?;
    Ok((held, changes))
}

async fn write_token(
    session: &Session<'_>,
    schema: Schema,
    names: &Names,
    wanted: &TokenRequest<'_>,
    (seen, account, plan): (&ObservedAccount, &str, TokenPlan),
    changes: &mut Vec<Change>,
) -> Result<Option<Held>, DatabaseErrorKind> {
    let now = wanted.now;
    let (TokenPlan::Keep { remove, .. } | TokenPlan::Make { remove, .. }) = &plan;
    if !remove.is_empty() {
        // Before anything takes one of their names.
        let removed = rows::remove_tokens(session, account, remove).await?;
        changes.push(Change::TokensRemoved(removed));
    }
    match plan {
        TokenPlan::Keep { id, rename, remove: _ } => {
            if rename {
                rows::rename_token(session, account, &id, &names.plain, now).await?;
                changes.push(Change::TokenRenamed);
            }
            Ok(kept(seen, &id, wanted))
        }
        TokenPlan::Make { name, beside, remove: _ } => {
            let token = token::make()?;
            let lifetime = SignedDuration::from_secs(wanted.lifetime.as_secs().max(1));
            let expires = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
            let new = NewToken { token: &token, name: &name, now, expires, lifetime };
            rows::insert_token(session, schema, account, &new).await?;
            changes.push(Change::TokenMade);
            let renew_at = plan::renew_at(now, lifetime);
            Ok(Some(Held { token, expires, renew_at, made: true, settled: !beside }))
        }
    }
}
