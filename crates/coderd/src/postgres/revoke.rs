//! Revokes tokens. An account without a token of an operator must not remain as an active owner, so it is suspended.

use tokio_postgres::types::Type;

use super::error::DatabaseErrorKind;
use super::schema::Catalog;
use super::session::{Param, Session, value};
use super::token::TokenNames;
use super::{EMAIL, TOKEN_PREFIX};

/// Selects the account of the operator. No account of a person has both properties.
const OPERATOR_ACCOUNT: &str = "is_system AND lower(email) = lower($1)";

/// Deletes the tokens with both names, and suspends the account if no other token of an operator is left. Returns the
/// number of deleted tokens, and whether anything was written.
pub(super) async fn revoke(
    session: &Session<'_>,
    names: &TokenNames,
) -> Result<(u64, bool), DatabaseErrorKind> {
    session.begin().await?;
    let found = Catalog::read(session).await?;
    // Without these tables and this column no operator can have created a token.
    if !found.migrated() || !found.has("users", "is_system") {
        return Ok((0, false));
    }
    found.check_revocation()?;
    if !is_needed(session, names).await? {
        return Ok((0, false));
    }
    let lock = format!("SELECT id FROM users WHERE {OPERATOR_ACCOUNT} FOR UPDATE");
    session.query("lock its account", &lock, &[(&EMAIL, Type::TEXT)]).await?;
    let delete = format!(
        "DELETE FROM api_keys WHERE login_type = 'token' AND token_name = ANY ($2) \
         AND user_id IN (SELECT id FROM users WHERE {OPERATOR_ACCOUNT})"
    );
    let both = names.both();
    let params: [Param<'_>; 2] = [(&EMAIL, Type::TEXT), (&both.as_slice(), Type::TEXT_ARRAY)];
    let removed = session.execute("remove its tokens", &delete, &params).await?;
    let suspend = format!(
        "UPDATE users SET status = 'suspended', rbac_roles = '{{}}', updated_at = now() WHERE {} AND NOT {}",
        active(),
        used("false")
    );
    let suspended = session.execute("suspend its account", &suspend, &[(&EMAIL, Type::TEXT)]).await?;
    Ok((removed, removed + suspended > 0))
}

fn active() -> String {
    format!("{OPERATOR_ACCOUNT} AND NOT deleted AND (status <> 'suspended' OR rbac_roles <> '{{}}')")
}

/// Whether a token of an operator is valid, other than those that match the expression.
fn used(besides: &str) -> String {
    format!(
        "EXISTS (SELECT FROM api_keys AS k WHERE k.user_id = users.id AND k.login_type = 'token' \
         AND starts_with(k.token_name, '{TOKEN_PREFIX}') AND k.expires_at > now() AND NOT ({besides}))"
    )
}

/// Whether anything has to be written. Takes no lock.
async fn is_needed(session: &Session<'_>, names: &TokenNames) -> Result<bool, DatabaseErrorKind> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM users WHERE {OPERATOR_ACCOUNT} AND EXISTS (SELECT FROM api_keys AS k \
         WHERE k.user_id = users.id AND k.login_type = 'token' AND k.token_name = ANY ($2))) \
         OR EXISTS (SELECT FROM users WHERE {} AND NOT {})",
        active(),
        used("k.token_name = ANY ($2)")
    );
    let both = names.both();
    let params: [Param<'_>; 2] = [(&EMAIL, Type::TEXT), (&both.as_slice(), Type::TEXT_ARRAY)];
    let rows = session.query("look for its tokens", &sql, &params).await?;
    rows.first().map_or(Ok(false), |row| value(row, 0))
}
