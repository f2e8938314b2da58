//! The SQL statements. Each has a text that says what it does, for errors.

use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use tokio_postgres::types::Type;

use super::error::{DatabaseErrorKind, Result};
use super::plan::{Account, ObservedAccount, TokenNames, TokenParts, TokenRow};
use super::schema::{Schema, Scopes};
use super::session::{Param, Session, value};
use super::{EMAIL, ORGANIZATION_ROLE, PASSWORD, ROLE, TOKEN_PREFIX, USERNAME};

const IDENTITY: [Param<'static>; 2] = [(&EMAIL, Type::TEXT), (&USERNAME, Type::TEXT)];
/// The id that is used without an account: it finds all organizations, and no token.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";
/// Selects the account of the operator. No account of a person has both properties.
const OPERATOR_ACCOUNT: &str = "is_system AND lower(email) = lower($1)";

/// The statements that make sure of an account and a token. UUIDs are sent as text, and the server converts them.
pub(super) struct Statements<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) schema: Schema,
    pub(super) names: &'a TokenNames,
    /// The time that is written.
    pub(super) now: Timestamp,
}

impl Statements<'_> {
    /// Whether a migration of coderd was interrupted.
    pub(super) async fn is_dirty(&self) -> Result<bool> {
        let sql = "SELECT coalesce(bool_or(dirty), true) FROM schema_migrations";
        Ok(self.session.query_value("look at coderd's migrations", sql, &[]).await?.unwrap_or(true))
    }

    /// UUID of the deployment. `None` if coderd has not written it yet, or if it may not be read.
    pub(super) async fn deployment_id(&self) -> Result<Option<String>> {
        if !self.schema.deployment_id {
            return Ok(None);
        }
        let sql = "SELECT value::text FROM site_configs WHERE key = 'deployment_id'";
        self.session.query_value("read the deployment's id", sql, &[]).await
    }

    /// Reads everything that the plan needs, without a lock.
    pub(super) async fn read(&self) -> Result<ObservedAccount> {
        let accounts = self.accounts().await?;
        let id = accounts.iter().find(|account| account.is_ours()).map_or(NOBODY, |account| &account.id);
        let (is_admin, tokens) = (self.is_admin(id).await?, self.tokens(id).await?);
        Ok(ObservedAccount { accounts, is_admin, tokens })
    }

    async fn accounts(&self) -> Result<Vec<Account>> {
        let name = if self.schema.users_have_names { " AND name = $2" } else { "" };
        let sql = format!(
            "SELECT id::text, email, username, is_system, \
             username = $2 AND email = $1 AND status = 'active' AND login_type = 'none' \
             AND rbac_roles @> ARRAY['{ROLE}'] AND hashed_password = convert_to('{PASSWORD}', 'UTF8'){name} \
             FROM users WHERE NOT deleted AND (lower(email) = lower($1) OR lower(username) = lower($2))"
        );
        let read = |row: &_| {
            Ok(Account {
                id: value(row, 0)?,
                email: value(row, 1)?,
                username: value(row, 2)?,
                is_system: value(row, 3)?,
                is_correct: value(row, 4)?,
            })
        };
        self.session.query("look for its account", &sql, &IDENTITY, read).await
    }

    fn live_organizations(&self) -> &'static str {
        if self.schema.organizations_have_deleted { "NOT o.deleted" } else { "true" }
    }

    async fn is_admin(&self, id: &str) -> Result<Vec<bool>> {
        let live = self.live_organizations();
        let sql = format!(
            "SELECT coalesce(m.roles @> ARRAY['{ORGANIZATION_ROLE}'], false) \
             FROM organizations AS o LEFT JOIN organization_members AS m \
             ON m.organization_id = o.id AND m.user_id = $1::text::uuid WHERE {live}"
        );
        let params: [Param<'_>; 1] = [(&id, Type::TEXT)];
        self.session.query("look at the organizations", &sql, &params, |row| value(row, 0)).await
    }

    async fn tokens(&self, id: &str) -> Result<Vec<TokenRow>> {
        let unrestricted = match self.schema.scopes {
            Scopes::One(everything) => format!("scope::text = '{everything}'"),
            Scopes::Many(everything) => {
                format!("scopes::text[] @> ARRAY['{everything}'] AND allow_list::text[] @> ARRAY['*:*']")
            }
        };
        let sql = format!(
            "SELECT id, hashed_secret, token_name, created_at, expires_at, lifetime_seconds, {unrestricted} FROM api_keys \
             WHERE user_id = $1::text::uuid AND login_type = 'token' AND token_name = ANY ($2)"
        );
        let read = |row: &_| {
            Ok(TokenRow {
                id: value(row, 0)?,
                digest: value(row, 1)?,
                name: value(row, 2)?,
                created: value(row, 3)?,
                expires: value(row, 4)?,
                lifetime: SignedDuration::from_secs(value(row, 5)?),
                unrestricted: value(row, 6)?,
            })
        };
        let params: [Param<'_>; 2] = [(&id, Type::TEXT), (&self.names.both(), Type::TEXT_ARRAY)];
        self.session.query("look at its tokens", &sql, &params, read).await
    }

    /// Creates the account unless another operator just did, and locks it, so that operators take turns. Returns
    /// whether the account was created.
    pub(super) async fn lock_account(&self, make: bool) -> Result<bool> {
        let mut made = 0;
        if make {
            let (column, value) = if self.schema.users_have_names { (", name", ", $2") } else { ("", "") };
            let sql = format!(
                "INSERT INTO users (id, email, username, hashed_password, created_at, updated_at, status, rbac_roles, \
                 login_type, is_system{column}) VALUES (gen_random_uuid(), $1, $2, convert_to('{PASSWORD}', 'UTF8'), \
                 $3, $3, 'active', ARRAY['{ROLE}'], 'none', true{value}) ON CONFLICT DO NOTHING"
            );
            let [email, username] = IDENTITY;
            let params = [email, username, (&self.now as &_, Type::TIMESTAMPTZ)];
            made = self.session.execute("make its account", &sql, &params).await?;
        }
        let sql = format!("SELECT id FROM users WHERE NOT deleted AND {OPERATOR_ACCOUNT} FOR UPDATE");
        self.session.execute("lock its account", &sql, &[(&EMAIL, Type::TEXT)]).await?;
        Ok(made > 0)
    }

    /// Restores the fields of the account.
    pub(super) async fn repair_account(&self, id: &str) -> Result<()> {
        let name = if self.schema.users_have_names { ", name = $2" } else { "" };
        let sql = format!(
            "UPDATE users SET email = $1, username = $2, status = 'active', login_type = 'none', \
             hashed_password = convert_to('{PASSWORD}', 'UTF8'), updated_at = $3, \
             rbac_roles = CASE WHEN rbac_roles @> ARRAY['{ROLE}'] THEN rbac_roles \
             ELSE array_append(rbac_roles, '{ROLE}') END{name} WHERE id = $4::text::uuid AND is_system"
        );
        let [email, username] = IDENTITY;
        let params = [email, username, (&self.now as &_, Type::TIMESTAMPTZ), (&id as &_, Type::TEXT)];
        self.session.execute("repair its account", &sql, &params).await.map(drop)
    }

    /// Joins every organization, and takes the administrator role where it is missing. Returns the number of each.
    pub(super) async fn join(&self, id: &str) -> Result<(u64, u64)> {
        let live = self.live_organizations();
        let params: [Param<'_>; 2] = [(&id, Type::TEXT), (&self.now, Type::TIMESTAMPTZ)];
        let sql = format!(
            "INSERT INTO organization_members (user_id, organization_id, created_at, updated_at, roles) \
             SELECT $1::text::uuid, o.id, $2, $2, ARRAY['{ORGANIZATION_ROLE}'] FROM organizations AS o WHERE {live} \
             AND NOT EXISTS (SELECT FROM organization_members AS m WHERE m.organization_id = o.id \
             AND m.user_id = $1::text::uuid) ON CONFLICT DO NOTHING"
        );
        let joined = self.session.execute("join the organizations", &sql, &params).await?;
        let sql = format!(
            "UPDATE organization_members AS m SET updated_at = $2, roles = array_append(m.roles, '{ORGANIZATION_ROLE}') \
             FROM organizations AS o WHERE o.id = m.organization_id AND {live} AND m.user_id = $1::text::uuid \
             AND NOT m.roles @> ARRAY['{ORGANIZATION_ROLE}']"
        );
        let promoted = self.session.execute("take its role in the organizations", &sql, &params).await?;
        Ok((joined, promoted))
    }

    /// Deletes tokens of the account by id.
    pub(super) async fn remove_tokens(&self, id: &str, tokens: &[String]) -> Result<u64> {
        let sql =
            "DELETE FROM api_keys WHERE user_id = $1::text::uuid AND login_type = 'token' AND id = ANY ($2)";
        let params: [Param<'_>; 2] = [(&id, Type::TEXT), (&tokens, Type::TEXT_ARRAY)];
        self.session.execute("remove its old tokens", sql, &params).await
    }

    /// Gives a token of the account the plain name.
    pub(super) async fn rename_token(&self, id: &str, token: &str) -> Result<()> {
        let sql =
            "UPDATE api_keys SET token_name = $3, updated_at = $4 WHERE user_id = $1::text::uuid AND id = $2";
        let params: [Param<'_>; 4] = [
            (&id, Type::TEXT),
            (&token, Type::TEXT),
            (&self.names.plain, Type::TEXT),
            (&self.now, Type::TIMESTAMPTZ),
        ];
        self.session.execute("rename its token", sql, &params).await.map(drop)
    }

    /// Inserts a token of the account that lives from now on.
    pub(super) async fn insert_token(
        &self,
        id: &str,
        token: &SecretString,
        name: &str,
        (expires, lifetime): (Timestamp, SignedDuration),
    ) -> Result<()> {
        const DOING: &str = "make its token";
        let parts = TokenParts::of(token).ok_or(DatabaseErrorKind::Unexpected(DOING))?;
        let (columns, values) = match self.schema.scopes {
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
        let params: [Param<'_>; 7] = [
            (&parts.id, Type::TEXT),
            (&parts.digest.as_slice(), Type::BYTEA),
            (&id, Type::TEXT),
            (&self.now, Type::TIMESTAMPTZ),
            (&expires, Type::TIMESTAMPTZ),
            (&lifetime.as_secs(), Type::INT8),
            (&name, Type::TEXT),
        ];
        self.session.execute(DOING, &sql, &params).await.map(drop)
    }
}

/// Deletes the tokens with both names, and suspends the account if no other token of an operator is left: an account
/// without a token must not remain as an active owner. Returns the number of deleted tokens, and whether anything was
/// written.
pub(super) async fn revoke(session: &Session<'_>, names: &TokenNames) -> Result<(u64, bool)> {
    let names = names.both();
    let params: [Param<'_>; 2] = [(&EMAIL, Type::TEXT), (&names, Type::TEXT_ARRAY)];
    let [email, _] = &params;
    let email = std::slice::from_ref(email);
    let active =
        format!("{OPERATOR_ACCOUNT} AND NOT deleted AND (status <> 'suspended' OR rbac_roles <> '{{}}')");
    // Whether a token of an operator is valid, other than those that match the expression.
    let used = |besides: &str| {
        format!(
            "EXISTS (SELECT FROM api_keys AS k WHERE k.user_id = users.id AND k.login_type = 'token' \
             AND starts_with(k.token_name, '{TOKEN_PREFIX}') AND k.expires_at > now() AND NOT ({besides}))"
        )
    };
    // Asked first without a lock, so that a revocation with nothing to write only reads.
    let needed = format!(
        "SELECT EXISTS (SELECT FROM users WHERE {OPERATOR_ACCOUNT} AND EXISTS (SELECT FROM api_keys AS k \
         WHERE k.user_id = users.id AND k.login_type = 'token' AND k.token_name = ANY ($2))) \
         OR EXISTS (SELECT FROM users WHERE {active} AND NOT {})",
        used("k.token_name = ANY ($2)")
    );
    if session.query_value("look for its tokens", &needed, &params).await? != Some(true) {
        return Ok((0, false));
    }
    let lock = format!("SELECT id FROM users WHERE {OPERATOR_ACCOUNT} FOR UPDATE");
    session.execute("lock its account", &lock, email).await?;
    let delete = format!(
        "DELETE FROM api_keys WHERE login_type = 'token' AND token_name = ANY ($2) \
         AND user_id IN (SELECT id FROM users WHERE {OPERATOR_ACCOUNT})"
    );
    let removed = session.execute("remove its tokens", &delete, &params).await?;
    let suspend = format!(
        "UPDATE users SET status = 'suspended', rbac_roles = '{{}}', updated_at = now() WHERE {active} AND NOT {}",
        used("false")
    );
    let suspended = session.execute("suspend its account", &suspend, email).await?;
    Ok((removed, removed + suspended > 0))
}
