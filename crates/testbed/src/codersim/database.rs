//! A simulator on a real database: users, memberships and tokens in it count as they do for coderd.

use jiff::Timestamp;
use tokio_postgres::Error;

use super::{
    CoderSim, Shared,
    state::{Organization, Token, User},
};
use crate::postgres::Client;

impl CoderSim {
    /// Uses a database with the migrations of coderd from now on. The connection belongs to the simulator.
    ///
    /// Deployment and organizations are those of the database. Where it has none, those of the simulator are written.
    pub async fn use_database(&self, client: Client) -> Result<(), Error> {
        let (deployment, organization) = {
            let state = self.shared.state.lock();
            (state.deployment_id.clone(), state.default_organization())
        };
        client
            .execute(
                "INSERT INTO site_configs (key, value) VALUES ('deployment_id', $1) ON CONFLICT (key) DO NOTHING",
                &[&deployment],
            )
            .await?;
        let found =
            client.query_one("SELECT value FROM site_configs WHERE key = 'deployment_id'", &[]).await?;
        self.set_deployment_id(found.get(0));
        if client.query_opt("SELECT 1 FROM organizations LIMIT 1", &[]).await?.is_none() {
            add(&client, &organization).await?;
        }
        *self.shared.database.lock().await = Some(client);
        mirror(&self.shared).await;
        self.shared.state.lock().issue_all();
        Ok(())
    }

    /// Reads the database, as every request does.
    pub async fn look_at_database(&self) {
        mirror(&self.shared).await;
    }

    /// Adds an organization to the database.
    pub async fn add_organization_to_database(&self, name: &str) -> Result<(), Error> {
        let organization = Organization {
            id: super::state::id(),
            name: name.to_owned(),
            display_name: name.to_owned(),
            is_default: false,
            created_at: Timestamp::now(),
        };
        match &*self.shared.database.lock().await {
            Some(client) => add(client, &organization).await,
            None => Ok(()),
        }
    }
}

/// Copies the row of an existing organization except for its names, because schemas differ. The first row gets the
/// columns that every schema has.
async fn add(client: &Client, organization: &Organization) -> Result<(), Error> {
    let Organization { id, name, display_name, is_default, created_at } = organization;
    let copied = client
        .execute(
            "INSERT INTO organizations SELECT (jsonb_populate_record(o, jsonb_build_object('id', $1::text, \
             'name', $2::text, 'display_name', $3::text, 'is_default', $4::bool))).* FROM organizations o LIMIT 1",
            &[id, name, display_name, is_default],
        )
        .await?;
    if copied == 0 {
        client
            .execute(
                "INSERT INTO organizations (id, name, display_name, description, is_default, created_at, updated_at) \
                 VALUES ($1::text::uuid, $2, $3, '', $4, $5, $5)",
                &[id, name, display_name, is_default, created_at],
            )
            .await?;
    }
    Ok(())
}

/// Copies users, memberships and tokens from the database into the state. A database that does not answer changes
/// nothing.
pub(super) async fn mirror(shared: &Shared) {
    let database = shared.database.lock().await;
    let Some(client) = &*database else { return };
    let (Ok(users), Ok(tokens), Ok(organizations)) =
        (users(client).await, tokens(client).await, organizations(client).await)
    else {
        return;
    };
    let mut state = shared.state.lock();
    state.users.retain(|user| !user.mirrored);
    state.users.extend(users);
    state.tokens.retain(|token| !token.mirrored);
    state.tokens.extend(tokens);
    state.issue_all();
    state.organizations = organizations;
}

async fn users(client: &Client) -> Result<Vec<User>, Error> {
    let rows = client
        .query(
            "SELECT u.id::text, username, email, status::text, rbac_roles, is_system, u.created_at, \
             array_remove(array_agg(m.organization_id::text), NULL) \
             FROM users u LEFT JOIN organization_members m ON m.user_id = u.id \
             WHERE NOT deleted GROUP BY u.id",
            &[],
        )
        .await?;
    let user = |row: &tokio_postgres::Row| User {
        id: row.get(0),
        username: row.get(1),
        email: row.get(2),
        password: String::new(),
        status: match row.get(3) {
            "active" => "active",
            "suspended" => "suspended",
            _ => "dormant",
        },
        roles: row.get(4),
        organizations: row.get(7),
        service_account: false,
        system: row.get(5),
        mirrored: true,
        created_at: row.get(6),
    };
    Ok(rows.iter().map(user).collect())
}

async fn tokens(client: &Client) -> Result<Vec<Token>, Error> {
    let rows = client
        .query(
            "SELECT id, hashed_secret, user_id::text, token_name, created_at, expires_at FROM api_keys \
             WHERE login_type = 'token'",
            &[],
        )
        .await?;
    let token = |row: &tokio_postgres::Row| Token {
        id: row.get(0),
        hashed_secret: row.get(1),
        user_id: row.get(2),
        name: row.get(3),
        mirrored: true,
        session: false,
        created_at: row.get(4),
        expires_at: row.get(5),
    };
    Ok(rows.iter().map(token).collect())
}

async fn organizations(client: &Client) -> Result<Vec<Organization>, Error> {
    let rows = client
        .query(
            "SELECT id::text, name, display_name, is_default, created_at FROM organizations WHERE NOT deleted",
            &[],
        )
        .await?;
    let organization = |row: &tokio_postgres::Row| Organization {
        id: row.get(0),
        name: row.get(1),
        display_name: row.get(2),
        is_default: row.get(3),
        created_at: row.get(4),
    };
    Ok(rows.iter().map(organization).collect())
}
