//! What the tests share: a database of coderd, the operator's view of it and what is really in there.

use std::time::Duration;

use coder_k8s_coderd::postgres::{
    DatabaseError, DatabaseTokenRequest, Dsn, DsnContext, Ensured, Postgres, PostgresSettings,
};
use coder_k8s_testbed::postgres::{Client, Database, migrated};
use jiff::{SignedDuration, Timestamp, Unit};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

pub const NAME: &str = "coder-k8s-operator-4ecae8b3d900ecfb";
pub const OTHER: &str = "coder-k8s-operator-35245367fada26d6";
pub const DAY: SignedDuration = SignedDuration::from_hours(24);
pub const LIFETIME: SignedDuration = SignedDuration::from_hours(24 * 30);

pub fn dsn(url: &str) -> Dsn {
    Dsn::parse(url, &DsnContext { namespace: "coder" }).unwrap()
}

/// Short deadlines, so that tests of them are short too, and long enough for a busy machine.
pub fn hasty() -> PostgresSettings {
    PostgresSettings {
        connect: Duration::from_secs(3),
        statement: Duration::from_millis(1500),
        whole: Duration::from_secs(9),
        ..PostgresSettings::on_loopback()
    }
}

/// One database and one operator.
pub struct Scene {
    pub database: Database<'static>,
    pub dsn: Dsn,
    pub operator: Postgres,
    pub now: Timestamp,
    client: Client,
}

/// A token as it is in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: String,
    pub name: String,
    pub digest: Vec<u8>,
}

impl Scene {
    pub async fn at(migration: Option<u32>) -> Self {
        Self::of(migrated(migration).await).await
    }

    pub async fn new() -> Self {
        Self::at(None).await
    }

    pub async fn of(database: Database<'static>) -> Self {
        let dsn = dsn(&database.url());
        let client = database.connect_as_superuser().await.unwrap();
        let operator = Postgres::new(PostgresSettings::on_loopback());
        // As precise as a database is.
        let now = Timestamp::now().round(Unit::Microsecond).unwrap();
        Self { database, dsn, operator, now, client }
    }

    pub fn wanted<'a>(&self, existing: Option<&'a SecretString>) -> DatabaseTokenRequest<'a> {
        DatabaseTokenRequest { token_name: NAME, existing, lifetime: LIFETIME, now: self.now, replace: false }
    }

    pub async fn ensure(&self, existing: Option<&SecretString>) -> Result<Ensured, DatabaseError> {
        self.ensure_as(&self.wanted(existing)).await
    }

    pub async fn ensure_as(&self, wanted: &DatabaseTokenRequest<'_>) -> Result<Ensured, DatabaseError> {
        self.operator.ensure(&self.dsn, None, wanted).await
    }

    pub async fn revoke(&self, name: &str) -> Result<u64, DatabaseError> {
        self.operator.revoke(&self.dsn, None, name).await
    }

    /// Runs statements as the superuser.
    pub async fn sql(&self, sql: &str) {
        if let Err(error) = self.client.batch_execute(sql).await {
            panic!("{sql}: {error:?}");
        }
    }

    /// The first column of each row, as text.
    pub async fn list(&self, sql: &str) -> Vec<String> {
        let rows = self.client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_default()).collect()
    }

    pub async fn one(&self, sql: &str) -> String {
        let found = self.list(sql).await;
        assert_eq!(found.len(), 1, "{sql}: {found:?}");
        found[0].clone()
    }

    /// All rows of the tables that the operator writes, with the transaction that wrote each: any write shows.
    pub async fn fingerprint(&self) -> Vec<String> {
        let mut all = Vec::new();
        for table in ["users", "organization_members", "api_keys", "user_status_changes"] {
            let sql =
                format!("SELECT '{table} ' || xmin::text || ' ' || t::text FROM {table} AS t ORDER BY 1");
            all.extend(self.list(&sql).await);
        }
        all
    }

    /// The tokens of the operator's account, by name.
    pub async fn tokens(&self) -> Vec<Row> {
        let sql = "SELECT k.id, k.token_name, k.hashed_secret FROM api_keys AS k JOIN users AS u ON u.id = k.user_id \
                   WHERE u.email = 'coder-k8s-operator@coder-k8s.invalid' AND u.is_system \
                   AND k.login_type = 'token' ORDER BY 2";
        let rows = self.client.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| Row { id: row.get(0), name: row.get(1), digest: row.get(2) }).collect()
    }

    pub async fn token_names(&self) -> Vec<String> {
        self.tokens().await.into_iter().map(|row| row.name).collect()
    }

    /// Whether coderd would accept this token: the row is there, with this digest, and not expired.
    pub async fn accepts(&self, token: &SecretString) -> bool {
        let (id, secret) = token.expose_secret().split_once('-').unwrap();
        let digest = Sha256::digest(secret).to_vec();
        let sql = "SELECT 1 FROM api_keys AS k JOIN users AS u ON u.id = k.user_id WHERE k.id = $1 \
                   AND k.hashed_secret = $2 AND k.expires_at > $3 AND u.status = 'active' AND NOT u.deleted";
        !self.client.query(sql, &[&id, &digest, &self.now]).await.unwrap().is_empty()
    }

    /// Takes all accounts but coderd's own away, with their tokens.
    pub async fn without_accounts(&self) {
        self.sql(
            "DELETE FROM api_keys; SET session_replication_role = replica; DELETE FROM organization_members; \
             DELETE FROM users WHERE username <> 'prebuilds'; RESET session_replication_role",
        )
        .await;
    }

    /// Adds an organization.
    pub async fn organization(&self, name: &str) {
        self.sql("ALTER TABLE organizations ALTER COLUMN default_org_member_roles SET DEFAULT '{}'").await;
        self.sql(&format!(
            "INSERT INTO organizations (id, name, display_name, description, created_at, updated_at) \
             VALUES (gen_random_uuid(), '{name}', '{name}', '', now(), now())"
        ))
        .await;
    }

    /// Roles in organizations, one line each.
    pub async fn memberships(&self) -> Vec<String> {
        self.list(
            "SELECT o.name || ' ' || m.roles::text FROM organization_members AS m \
             JOIN organizations AS o ON o.id = m.organization_id JOIN users AS u ON u.id = m.user_id \
             WHERE u.username = 'coder-k8s-operator' ORDER BY 1",
        )
        .await
    }
}
