//! The shape of the tables of coderd, which differs between releases.
//!
//! It is read from the catalog before anything is written. A shape that this release does not understand is an error
//! that names the column or label, and nothing is written.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;

use super::error::{DatabaseErrorKind, Result};
use super::session::{Param, Session, value};

/// One row for each column of the tables as the user sees them, and whether an INSERT must give it a value.
const COLUMNS: &str = "\
    SELECT t.name, a.attname::text, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' \
    FROM unnest($1::text[]) AS t (name) \
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = to_regclass(t.name) \
    WHERE a.attnum > 0 AND NOT a.attisdropped";

/// One row for each enum label that matters, and one if the table with the deployment id may be read.
const LABELS: &str = "\
    SELECT t.name || '.' || e.enumlabel \
    FROM unnest(ARRAY['user_status', 'login_type', 'api_key_scope']) AS t (name) \
    JOIN pg_catalog.pg_enum AS e ON e.enumtypid = to_regtype(t.name) \
    WHERE e.enumlabel = ANY (ARRAY['active', 'suspended', 'none', 'token', 'all', 'coder:all']) \
    UNION ALL SELECT 'site_configs' WHERE has_table_privilege(to_regclass('site_configs'), 'SELECT')";

const TABLES: [&str; 6] =
    ["schema_migrations", "users", "organizations", "organization_members", "api_keys", "site_configs"];

const USERS: [&str; 11] = [
    "id",
    "email",
    "username",
    "hashed_password",
    "created_at",
    "updated_at",
    "status",
    "rbac_roles",
    "login_type",
    "deleted",
    "is_system",
];
const USERS_OPTIONAL: [&str; 1] = ["name"];
const MEMBERS: [&str; 5] = ["user_id", "organization_id", "created_at", "updated_at", "roles"];
const KEYS: [&str; 11] = [
    "id",
    "hashed_secret",
    "user_id",
    "last_used",
    "expires_at",
    "created_at",
    "updated_at",
    "login_type",
    "lifetime_seconds",
    "ip_address",
    "token_name",
];

/// What differs between the supported releases of coderd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schema {
    /// Whether `users` has the column `name`, beside the username.
    pub(super) users_have_names: bool,
    /// Whether deleted organizations stay as rows that are marked.
    pub(super) organizations_have_deleted: bool,
    pub(super) scopes: Scopes,
    pub(super) deployment_id: bool,
}

/// How a token with all permissions is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scopes {
    /// One scope in the column `scope`, with this label.
    One(&'static str),
    /// A list in the columns `scopes` and `allow_list`, with this label.
    Many(&'static str),
}

/// The catalog as it was read: the columns of each table, and whether an INSERT must give them a value.
pub(super) struct Catalog {
    columns: BTreeMap<String, BTreeMap<String, bool>>,
    labels: Vec<String>,
}

impl Catalog {
    pub(super) async fn read(session: &Session<'_>) -> Result<Self> {
        const DOING: &str = "look at coderd's tables";
        let read = |row: &_| Ok((value(row, 0)?, value(row, 1)?, value(row, 2)?));
        let tables: [Param<'_>; 1] = [(&TABLES.as_slice(), Type::TEXT_ARRAY)];
        let mut columns = BTreeMap::<String, BTreeMap<String, bool>>::new();
        for (table, column, required) in session.query(DOING, COLUMNS, &tables, read).await? {
            columns.entry(table).or_default().insert(column, required);
        }
        let labels = session.query(DOING, LABELS, &[], |row| value(row, 0)).await?;
        Ok(Self { columns, labels })
    }

    /// Whether coderd has ever migrated this database.
    pub(super) fn migrated(&self) -> bool {
        ["schema_migrations", "users", "api_keys"].iter().all(|table| self.columns.contains_key(*table))
    }

    pub(super) fn has(&self, table: &str, column: &str) -> bool {
        self.columns.get(table).is_some_and(|columns| columns.contains_key(column))
    }

    fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|found| found == label)
    }

    /// Checks what revocation needs, which is less than creation needs.
    pub(super) fn check_revocation(&self) -> Result<()> {
        self.need("users", &["id", "email", "is_system", "deleted", "status", "rbac_roles", "updated_at"])?;
        self.need("api_keys", &["id", "user_id", "login_type", "token_name", "expires_at"])?;
        self.need_labels(&["user_status.suspended", "login_type.token"])
    }

    /// Checks what the creation of an account and a token needs.
    pub(super) fn check(&self) -> Result<Schema> {
        if !self.migrated() {
            return Err(DatabaseErrorKind::NotMigrated("its tables are not there"));
        }
        self.need("users", &USERS)?;
        self.need("organizations", &["id"])?;
        self.need("organization_members", &MEMBERS)?;
        self.need("api_keys", &KEYS)?;
        self.need_labels(&["user_status.active", "login_type.none", "login_type.token"])?;
        let scopes = self.scopes()?;
        self.reject_unknown_required("users", &[&USERS[..], &USERS_OPTIONAL].concat())?;
        self.reject_unknown_required("organization_members", &MEMBERS)?;
        self.reject_unknown_required("api_keys", &[&KEYS[..], &["scope", "scopes", "allow_list"]].concat())?;
        Ok(Schema {
            users_have_names: self.has("users", "name"),
            organizations_have_deleted: self.has("organizations", "deleted"),
            scopes,
            deployment_id: self.has_label("site_configs")
                && self.has("site_configs", "key")
                && self.has("site_configs", "value"),
        })
    }

    fn scopes(&self) -> Result<Scopes> {
        let everything = ["coder:all", "all"]
            .into_iter()
            .find(|label| self.has_label(&format!("api_key_scope.{label}")))
            .ok_or_else(|| DatabaseErrorKind::unknown("the type api_key_scope has no label `coder:all`"))?;
        if self.has("api_keys", "scopes") {
            self.need("api_keys", &["allow_list"])?;
            return Ok(Scopes::Many(everything));
        }
        self.need("api_keys", &["scope"])?;
        Ok(Scopes::One(everything))
    }

    fn need(&self, table: &str, columns: &[&str]) -> Result<()> {
        refuse(columns.iter().find(|column| !self.has(table, column)), |column| {
            format!("there is no column {table}.{column}")
        })
    }

    fn need_labels(&self, labels: &[&str]) -> Result<()> {
        refuse(labels.iter().find(|label| !self.has_label(label)), |label| {
            let (kind, label) = label.split_once('.').unwrap_or_default();
            format!("the type {kind} has no label `{label}`")
        })
    }

    /// An INSERT is possible only if every column that needs a value is known.
    fn reject_unknown_required(&self, table: &str, known: &[&str]) -> Result<()> {
        let mut columns = self.columns.get(table).into_iter().flatten();
        refuse(
            columns.find(|(column, required)| **required && !known.contains(&column.as_str())),
            |(column, _)| format!("the column {table}.{column} is not known and needs a value"),
        )
    }
}

fn refuse<T>(found: Option<T>, what: impl FnOnce(T) -> String) -> Result<()> {
    found.map_or(Ok(()), |found| Err(DatabaseErrorKind::unknown(what(found))))
}
