//! Taking a token away. An account without any token of ours is not left behind as an active owner.

use tokio_postgres::types::Type;

use super::error::DatabaseErrorKind;
use super::schema::Found;
use super::session::{Param, Session, value};
use super::token::Names;
use super::{EMAIL, TOKEN_PREFIX};

/// The operator's own account: nobody else's has both marks.
const OURS: &str = "is_system AND lower(email) = lower($1)";

/// Removes the tokens of both names, and suspends the account when it has no other token of ours. Gives how many
/// tokens are gone, and whether anything was written.
pub(super) async fn revoke(session: &Session<'_>, names: &Names) -> Result<(u64, bool), DatabaseErrorKind> {
    session.begin().await?;
    let found = Found::read(session).await?;
    // Without these tables or this mark there never was a token of ours.
    if !found.migrated() || !found.has("users", "is_system") {
        return Ok((0, false));
    }
    found.check_revocation()?;
    if !is_needed(session, names).await? {
        return Ok((0, false));
    }
    let lock = format!("SELECT id FROM users WHERE {OURS} FOR UPDATE");
    session.query("lock its account", &lock, &[(&EMAIL, Type::TEXT)]).await?;
    let delete = format!(
        "DELETE FROM api_keys WHERE login_type = 'token' AND token_name = ANY ($2) \
         AND user_id IN (SELECT id FROM users WHERE {OURS})"
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
    format!("{OURS} AND NOT deleted AND (status <> 'suspended' OR rbac_roles <> '{{}}')")
}

/// Whether a live token of ours is left, besides those that an expression names.
fn used(besides: &str) -> String {
    format!(
        "EXISTS (SELECT FROM api_keys AS k WHERE k.user_id = users.id AND k.login_type = 'token' \
         AND starts_with(k.token_name, '{TOKEN_PREFIX}') AND k.expires_at > now() AND NOT ({besides}))"
    )
}

/// Whether there is anything to write. Reads alone.
async fn is_needed(session: &Session<'_>, names: &Names) -> Result<bool, DatabaseErrorKind> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM users WHERE {OURS} AND EXISTS (SELECT FROM api_keys AS k \
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
