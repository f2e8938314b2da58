//! The SQL statements. Each has a text that says what it does, for errors.

use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::error::DatabaseErrorKind;
use super::plan::{Account, Membership, ObservedAccount, Token};
use super::schema::{Schema, Scopes};
use super::session::{Param, Session, value};
use super::token::{TokenNames, TokenParts};
use super::{EMAIL, ORGANIZATION_ROLE, PASSWORD, ROLE, USERNAME};

/// SQL expression: whether a row of `users` is as the operator writes it.
fn is_correct(schema: Schema) -> String {
    let name = if schema.users_have_names { " AND name = $2" } else { "" };
    format!(
        "username = $2 AND email = $1 AND status = 'active' AND login_type = 'none' \
         AND rbac_roles @> ARRAY['{ROLE}'] AND hashed_password = convert_to('{PASSWORD}', 'UTF8'){name}"
    )
}

const IDENTITY: [Param<'static>; 2] = [(&EMAIL, Type::TEXT), (&USERNAME, Type::TEXT)];

/// Reads everything that the plan needs, without a lock.
pub(super) async fn read(
    session: &Session<'_>,
    schema: Schema,
    names: &TokenNames,
) -> Result<ObservedAccount, DatabaseErrorKind> {
    let accounts = accounts(session, schema).await?;
    // Without an account, the nil UUID still finds all organizations, and no token.
    let id = accounts.iter().find(|account| account.is_ours()).map_or(NOBODY, |account| &account.id);
    let memberships = memberships(session, schema, id).await?;
    let tokens = tokens(session, schema, id, names).await?;
    Ok(ObservedAccount { accounts, memberships, tokens })
}

const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

async fn accounts(session: &Session<'_>, schema: Schema) -> Result<Vec<Account>, DatabaseErrorKind> {
    let sql = format!(
        "SELECT id::text, email, username, is_system, {} FROM users \
         WHERE NOT deleted AND (lower(email) = lower($1) OR lower(username) = lower($2))",
        is_correct(schema)
    );
    let rows = session.query("look for its account", &sql, &IDENTITY).await?;
    let read = |row: &Row| {
        Ok(Account {
            id: value(row, 0)?,
            email: value(row, 1)?,
            username: value(row, 2)?,
            is_system: value(row, 3)?,
            is_correct: value(row, 4)?,
        })
    };
    rows.iter().map(read).collect()
}

fn live_organizations(schema: Schema) -> &'static str {
    if schema.organizations_have_deleted { "NOT o.deleted" } else { "true" }
}

async fn memberships(
    session: &Session<'_>,
    schema: Schema,
    id: &str,
) -> Result<Vec<Membership>, DatabaseErrorKind> {
    let sql = format!(
        "SELECT m.user_id IS NOT NULL, coalesce(m.roles @> ARRAY['{ORGANIZATION_ROLE}'], false) \
         FROM organizations AS o LEFT JOIN organization_members AS m \
         ON m.organization_id = o.id AND m.user_id = $1::uuid WHERE {}",
        live_organizations(schema)
    );
    let rows = session.query("look at the organizations", &uuid_as_text(&sql), &[(&id, Type::TEXT)]).await?;
    let read = |row: &Row| {
        Ok(match (value(row, 0)?, value(row, 1)?) {
            (false, _) => Membership::Missing,
            (true, false) => Membership::NotAdmin,
            (true, true) => Membership::Admin,
        })
    };
    rows.iter().map(read).collect()
}

async fn tokens(
    session: &Session<'_>,
    schema: Schema,
    id: &str,
    names: &TokenNames,
) -> Result<Vec<Token>, DatabaseErrorKind> {
    let unrestricted = match schema.scopes {
        Scopes::One(everything) => format!("scope::text = '{everything}'"),
        Scopes::Many(everything) => {
            format!("scopes::text[] @> ARRAY['{everything}'] AND allow_list::text[] @> ARRAY['*:*']")
        }
    };
    let sql = format!(
        "SELECT id, hashed_secret, token_name, created_at, expires_at, lifetime_seconds, {unrestricted} FROM api_keys \
         WHERE user_id = $1::uuid AND login_type = 'token' AND token_name = ANY ($2)"
    );
    let both = names.both();
    let params: [Param<'_>; 2] = [(&id, Type::TEXT), (&both.as_slice(), Type::TEXT_ARRAY)];
    let rows = session.query("look at its tokens", &uuid_as_text(&sql), &params).await?;
    let read = |row: &Row| {
        Ok(Token {
            id: value(row, 0)?,
            digest: value(row, 1)?,
            name: value(row, 2)?,
            created: value(row, 3)?,
            expires: value(row, 4)?,
            lifetime: SignedDuration::from_secs(value(row, 5)?),
            unrestricted: value(row, 6)?,
        })
    };
    rows.iter().map(read).collect()
}

/// UUIDs are sent as text: the parameter has the type TEXT, and the server converts it.
fn uuid_as_text(sql: &str) -> String {
    sql.replace("$1::uuid", "$1::text::uuid")
}

/// UUID of the deployment. `None` if coderd has not written it yet.
pub(super) async fn deployment_id(session: &Session<'_>) -> Result<Option<String>, DatabaseErrorKind> {
    let sql = "SELECT value::text FROM site_configs WHERE key = 'deployment_id'";
    let rows = session.query("read the deployment's id", sql, &[]).await?;
    rows.first().map(|row| value(row, 0)).transpose()
}

/// Whether a migration of coderd was interrupted.
pub(super) async fn is_dirty(session: &Session<'_>) -> Result<bool, DatabaseErrorKind> {
    let sql = "SELECT coalesce(bool_or(dirty), true) FROM schema_migrations";
    let rows = session.query("look at coderd's migrations", sql, &[]).await?;
    rows.first().map_or(Ok(true), |row| value(row, 0))
}

/// Creates the account unless another operator just did, and locks it, so that operators take turns. Returns whether
/// the account was created.
pub(super) async fn lock_account(
    session: &Session<'_>,
    schema: Schema,
    make: bool,
    now: Timestamp,
) -> Result<bool, DatabaseErrorKind> {
    let mut made = 0;
    if make {
        let (column, value) = if schema.users_have_names { (", name", ", $2") } else { ("", "") };
        let sql = format!(
            "INSERT INTO users (id, email, username, hashed_password, created_at, updated_at, status, rbac_roles, \
             login_type, is_system{column}) VALUES (gen_random_uuid(), $1, $2, convert_to('{PASSWORD}', 'UTF8'), \
             $3, $3, 'active', ARRAY['{ROLE}'], 'none', true{value}) ON CONFLICT DO NOTHING"
        );
        let [email, username] = IDENTITY;
        made =
            session.execute("make its account", &sql, &[email, username, (&now, Type::TIMESTAMPTZ)]).await?;
    }
    let sql = "SELECT id FROM users WHERE NOT deleted AND is_system AND lower(email) = lower($1) FOR UPDATE";
    session.query("lock its account", sql, &[(&EMAIL, Type::TEXT)]).await?;
    Ok(made > 0)
}

/// Restores the fields of the account.
pub(super) async fn repair_account(
    session: &Session<'_>,
    schema: Schema,
    id: &str,
    now: Timestamp,
) -> Result<(), DatabaseErrorKind> {
    let name = if schema.users_have_names { ", name = $2" } else { "" };
    let sql = format!(
        "UPDATE users SET email = $1, username = $2, status = 'active', login_type = 'none', \
         hashed_password = convert_to('{PASSWORD}', 'UTF8'), updated_at = $3, \
         rbac_roles = CASE WHEN rbac_roles @> ARRAY['{ROLE}'] THEN rbac_roles \
         ELSE array_append(rbac_roles, '{ROLE}') END{name} WHERE id = $4::text::uuid AND is_system"
    );
    let [email, username] = IDENTITY;
    let params = [email, username, (&now as &_, Type::TIMESTAMPTZ), (&id as &_, Type::TEXT)];
    session.execute("repair its account", &sql, &params).await.map(drop)
}

/// Joins every organization, and takes the administrator role where it is missing. Returns the number of each.
pub(super) async fn join(
    session: &Session<'_>,
    schema: Schema,
    id: &str,
    now: Timestamp,
) -> Result<(u64, u64), DatabaseErrorKind> {
    let live = live_organizations(schema);
    let params: [Param<'_>; 2] = [(&id, Type::TEXT), (&now, Type::TIMESTAMPTZ)];
    let sql = format!(
        "INSERT INTO organization_members (user_id, organization_id, created_at, updated_at, roles) \
         SELECT $1::text::uuid, o.id, $2, $2, ARRAY['{ORGANIZATION_ROLE}'] FROM organizations AS o WHERE {live} \
         AND NOT EXISTS (SELECT FROM organization_members AS m WHERE m.organization_id = o.id \
         AND m.user_id = $1::text::uuid) ON CONFLICT DO NOTHING"
    );
    let joined = session.execute("join the organizations", &sql, &params).await?;
    let sql = format!(
        "UPDATE organization_members AS m SET updated_at = $2, roles = array_append(m.roles, '{ORGANIZATION_ROLE}') \
         FROM organizations AS o WHERE o.id = m.organization_id AND {live} AND m.user_id = $1::text::uuid \
         AND NOT m.roles @> ARRAY['{ORGANIZATION_ROLE}']"
    );
    let promoted = session.execute("take its role in the organizations", &sql, &params).await?;
    Ok((joined, promoted))
}

/// Deletes tokens of the account by id.
pub(super) async fn remove_tokens(
    session: &Session<'_>,
    id: &str,
    tokens: &[String],
) -> Result<u64, DatabaseErrorKind> {
    let sql =
        "DELETE FROM api_keys WHERE user_id = $1::text::uuid AND login_type = 'token' AND id = ANY ($2)";
    let params: [Param<'_>; 2] = [(&id, Type::TEXT), (&tokens, Type::TEXT_ARRAY)];
    session.execute("remove its old tokens", sql, &params).await
}

/// Renames a token of the account.
pub(super) async fn rename_token(
    session: &Session<'_>,
    id: &str,
    token: &str,
    name: &str,
    now: Timestamp,
) -> Result<(), DatabaseErrorKind> {
    let sql =
        "UPDATE api_keys SET token_name = $3, updated_at = $4 WHERE user_id = $1::text::uuid AND id = $2";
    let params: [Param<'_>; 4] =
        [(&id, Type::TEXT), (&token, Type::TEXT), (&name, Type::TEXT), (&now, Type::TIMESTAMPTZ)];
    session.execute("rename its token", sql, &params).await.map(drop)
}

/// A token to insert.
pub(super) struct NewToken<'a> {
    pub(super) token: &'a SecretString,
    pub(super) name: &'a str,
    pub(super) now: Timestamp,
    pub(super) expires: Timestamp,
    pub(super) lifetime: SignedDuration,
}

pub(super) async fn insert_token(
    session: &Session<'_>,
    schema: Schema,
    id: &str,
    new: &NewToken<'_>,
) -> Result<(), DatabaseErrorKind> {
    const DOING: &str = "make its token";
    let NewToken { token, name, now, expires, lifetime } = new;
    let parts = TokenParts::of(token).ok_or(DatabaseErrorKind::Unexpected(DOING))?;
    let (columns, values) = match schema.scopes {
        Scopes::One(everything) => ("scope", format!("'{everything}'")),
        Scopes::Many(everything) => {
            ("scopes, allow_list", format!("ARRAY['{everything}']::api_key_scope[], ARRAY['*:*']"))
        }
    };
    let sql = format!(
        "INSERT INTO api_keys (id, hashed_secret, user_id, last_used, created_at, updated_at, expires_at, \
         lifetime_seconds, login_type, ip_address, token_name, {columns}) \
         VALUES ($1, $2, $3::text::uuid, $4, $4, $4, $5, $6, 'token', '0.0.0.0', $7, {values})"
    );
    let digest = parts.digest.as_slice();
    let seconds = lifetime.as_secs();
    let params: [Param<'_>; 7] = [
        (&parts.id, Type::TEXT),
        (&digest, Type::BYTEA),
        (&id, Type::TEXT),
        (now, Type::TIMESTAMPTZ),
        (expires, Type::TIMESTAMPTZ),
        (&seconds, Type::INT8),
        (name, Type::TEXT),
    ];
    session.execute(DOING, &sql, &params).await.map(drop)
}
