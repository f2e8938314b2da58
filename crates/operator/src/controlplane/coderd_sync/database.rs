//! Creates and revokes operator tokens in coderd's database.
//!
//! The database is found as the pods find it, by `CODER_PG_CONNECTION_URL`. A connection is opened only to create, check or
//! revoke a token, and closed right after. The address, which holds a password, is read each time and not kept.

use coder_k8s_api::Reason;
use coder_k8s_coderd::{
    IdentifiedServer,
    postgres::{DatabaseTokenRequest, Dsn, DsnContext, Ensured},
};
use coder_k8s_core::{
    controlplane::coderd::{
        access::{DATABASE_AUTH, DATABASE_URL, NO_DATABASE},
        operator_token::CreatedToken,
    },
    outcome::Blocker,
};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};

use super::{Plane, token};
use crate::{
    coderd::{blocker_of_database, targets},
    controller::environment::{self, Environment},
};

/// An address and the CA to trust there.
struct Database {
    dsn: Dsn,
    ca: Option<Vec<u8>>,
}

/// Whether the address and the CA are usable. Does not connect.
pub(super) async fn check(plane: Plane<'_>) -> Result<(), Blocker> {
    let Database { dsn, ca } = find(plane).await?;
    plane.ctx.external.postgres.examine(&dsn, ca.as_deref()).map_err(blocker_of_database)
}

/// Whether nobody verifies who answers as the database. Does not connect.
pub(super) async fn is_unverified(plane: Plane<'_>) -> Result<bool, Blocker> {
    let Database { dsn, ca } = find(plane).await?;
    Ok(dsn.is_unverified(ca.is_some()))
}

/// Creates a token, unless the present one is good. With `replace` it is not, whatever the database knows of it.
pub(super) async fn create(
    plane: Plane<'_>,
    server: &IdentifiedServer,
    present: Option<&SecretString>,
    replace: bool,
) -> Result<(SecretString, CreatedToken), Blocker> {
    let database = find(plane).await?;
    let ensured = ensure(plane, &database, present, replace).await?;
    if ensured.deployment_id.as_deref().is_some_and(|id| id != server.deployment_id()) {
        // The database belongs to another coderd than the one that answers: its token must not be sent there.
        revoke_in(&database, plane).await?;
        let message = "another deployment answers than the one whose database CODER_PG_CONNECTION_URL names, and the token \
                       was not sent there: correct operatorAccess.apiURL or the database";
        return Err(Blocker::until_change(Reason::DeploymentChanged, message));
    }
    let Ensured { token, expires, renew_at, settled, .. } = ensured;
    Ok((token, CreatedToken { expires, renew_after: renew_at, is_only_one: settled }))
}

/// Removes every other token of this control plane.
pub(super) async fn keep_only(plane: Plane<'_>, token: &SecretString) -> Result<(), Blocker> {
    ensure(plane, &find(plane).await?, Some(token), false).await.map(drop)
}

/// Revokes every token of this control plane.
pub(super) async fn revoke(plane: Plane<'_>) -> Result<(), Blocker> {
    let database = find(plane).await?;
    let revoked = revoke_in(&database, plane).await?;
    tracing::info!(tokens = revoked, "revoked the operator token in {}", database.dsn.server());
    Ok(())
}

async fn revoke_in(Database { dsn, ca }: &Database, plane: Plane<'_>) -> Result<u64, Blocker> {
    let (postgres, name) = (&plane.ctx.external.postgres, plane.token_name());
    // Boxed: the future of a connection is large.
    Box::pin(postgres.revoke(dsn, ca.as_deref(), &name)).await.map_err(blocker_of_database)
}

async fn ensure(
    plane: Plane<'_>,
    Database { dsn, ca }: &Database,
    existing: Option<&SecretString>,
    replace: bool,
) -> Result<Ensured, Blocker> {
    let (name, lifetime, now) = (plane.token_name(), token::lifetime(plane.object), Timestamp::now());
    let request = DatabaseTokenRequest { token_name: &name, existing, lifetime, now, replace };
    let postgres = &plane.ctx.external.postgres;
    let ensured = Box::pin(postgres.ensure(dsn, ca.as_deref(), &request)).await;
    let ensured = ensured.map_err(blocker_of_database)?;
    if ensured.made {
        tracing::info!("created an operator token in {}", dsn.server());
    }
    Ok(ensured)
}

/// Finds the database by the environment of the pods. Every failure but an unreadable source waits for a change.
async fn find(Plane { key, object, ctx, .. }: Plane<'_>) -> Result<Database, Blocker> {
    let environment = Environment { client: &ctx.client, namespace: &key.namespace, pod: &object.spec.pod };
    let auth = environment.value(DATABASE_AUTH).await.map_err(unavailable)?;
    if auth.is_some_and(|auth| !["", "password"].contains(&auth.expose_secret().trim())) {
        let message = "CODER_PG_AUTH asks for a login other than by password, which the operator does not support: choose \
                       another operatorAccess.method";
        return Err(Blocker::until_change(Reason::DatabaseAuthUnsupported, message));
    }
    let url = environment.value(DATABASE_URL).await.map_err(unavailable)?;
    let Some(url) = url.filter(|url| !url.expose_secret().trim().is_empty()) else {
        return Err(Blocker::until_change(Reason::DatabaseUrlMissing, NO_DATABASE));
    };
    let dsn = Dsn::parse(url.expose_secret(), &DsnContext { namespace: &key.namespace })
        .map_err(|bad| Blocker::until_change(bad.reason(), format!("{DATABASE_URL}: {bad}")))?;
    let ca = object.spec.operator_access.database_ca_secret_ref.as_ref();
    let ca = ca.map(|reference| (reference, "operatorAccess.databaseCASecretRef"));
    let ca = targets::read_ca(ca, &key.namespace, ctx).await?;
    Ok(Database { dsn, ca })
}

fn unavailable(error: environment::Error) -> Blocker {
    match error {
        environment::Error::TooLarge { .. } => {
            Blocker::until_change(Reason::BadConnectionUrl, error.to_string())
        }
        environment::Error::Missing { .. } => Blocker::until_change(Reason::SecretMissing, error.to_string()),
        environment::Error::Unreadable(message) => Blocker::new(Reason::Error, message),
    }
}
