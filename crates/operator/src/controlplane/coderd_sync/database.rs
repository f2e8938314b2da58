//! Creates and revokes operator tokens in coderd's database.
//!
//! The database is found as the pods find it, by `CODER_PG_CONNECTION_URL`. A connection is opened only to create, check or
//! revoke a token, and closed right after. The address, which holds a password, is read each time and not kept.

use coder_k8s_api::{CoderControlPlane, Reason};
use coder_k8s_coderd::postgres::{DatabaseTokenRequest, Dsn, DsnContext, Ensured};
use coder_k8s_core::{controlplane::database, names, outcome::Blocker};
use coder_k8s_engine::cache::ObjectKey;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};

use super::token::{NewToken, TokenRequest};
use crate::{
    coderd::{blocker_of_database, targets},
    controller::{
        Context,
        environment::{self, Environment},
    },
};

/// An address and the CA to trust there.
struct Database {
    dsn: Dsn,
    ca: Option<Vec<u8>>,
}

/// Whether the address and the CA are usable. Does not connect.
pub(super) async fn check(request: &TokenRequest<'_>) -> Result<(), Blocker> {
    let Database { dsn, ca } = find(request.object, request.key, request.ctx).await?;
    request.ctx.external.postgres.examine(&dsn, ca.as_deref()).map_err(blocker_of_database)
}

/// Creates a token, unless the present one is good.
pub(super) async fn create(request: &TokenRequest<'_>) -> Result<NewToken, Blocker> {
    let database = find(request.object, request.key, request.ctx).await?;
    let ensured = ensure(request, &database, request.current, request.is_refused).await?;
    if ensured.deployment_id.as_deref().is_some_and(|id| id != request.server.deployment_id()) {
        // The database belongs to another coderd than the one that answers: its token must not be sent there.
        revoke_in(&database, request.key, request.ctx).await?;
        let message = "another deployment answers than the one whose database CODER_PG_CONNECTION_URL names, and the token \
                       was not sent there: correct operatorAccess.apiURL or the database";
        return Err(Blocker::until_change(Reason::DeploymentChanged, message));
    }
    Ok(NewToken {
        token: ensured.token,
        expires: ensured.expires,
        renew_after: ensured.renew_at,
        is_only_one: ensured.settled,
    })
}

/// Removes every other token of this control plane.
pub(super) async fn keep_only(request: &TokenRequest<'_>, token: &SecretString) -> Result<(), Blocker> {
    let database = find(request.object, request.key, request.ctx).await?;
    ensure(request, &database, Some(token), false).await.map(drop)
}

/// Revokes every token of this control plane.
pub(super) async fn revoke(
    key: &ObjectKey,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), Blocker> {
    let database = find(object, key, ctx).await?;
    let revoked = revoke_in(&database, key, ctx).await?;
    tracing::info!(tokens = revoked, "revoked the operator token in {}", database.dsn.server());
    Ok(())
}

async fn revoke_in(database: &Database, key: &ObjectKey, ctx: &Context) -> Result<u64, Blocker> {
    let name = names::operator_token(&key.namespace, &key.name);
    // Boxed: the future of a connection is large.
    let revoked = Box::pin(ctx.external.postgres.revoke(&database.dsn, database.ca.as_deref(), &name)).await;
    revoked.map_err(blocker_of_database)
}

async fn ensure(
    request: &TokenRequest<'_>,
    database: &Database,
    existing: Option<&SecretString>,
    replace: bool,
) -> Result<Ensured, Blocker> {
    let name = names::operator_token(&request.key.namespace, &request.key.name);
    let desired = DatabaseTokenRequest {
        token_name: &name,
        existing,
        lifetime: request.lifetime(),
        now: Timestamp::now(),
        replace,
    };
    let ensured =
        Box::pin(request.ctx.external.postgres.ensure(&database.dsn, database.ca.as_deref(), &desired)).await;
    let ensured = ensured.map_err(blocker_of_database)?;
    if ensured.made {
        tracing::info!("created an operator token in {}", database.dsn.server());
    }
    Ok(ensured)
}

/// Finds the database by the environment of the pods. Every failure but an unreadable source waits for a change.
async fn find(object: &CoderControlPlane, key: &ObjectKey, ctx: &Context) -> Result<Database, Blocker> {
    let environment = Environment { client: &ctx.client, namespace: &key.namespace, pod: &object.spec.pod };
    let auth = environment.value(database::AUTH).await.map_err(unavailable)?;
    if auth.is_some_and(|auth| !["", "password"].contains(&auth.expose_secret().trim())) {
        let message = "CODER_PG_AUTH asks for a login other than by password, which the operator does not support: choose \
                       another operatorAccess.method";
        return Err(Blocker::until_change(Reason::DatabaseAuthUnsupported, message));
    }
    let url = environment.value(database::URL).await.map_err(unavailable)?;
    let Some(url) = url.filter(|url| !url.expose_secret().trim().is_empty()) else {
        return Err(Blocker::until_change(Reason::DatabaseUrlMissing, database::HOW_TO_CONFIGURE));
    };
    let dsn = Dsn::parse(url.expose_secret(), &DsnContext { namespace: &key.namespace })
        .map_err(|bad| Blocker::until_change(bad.reason(), format!("{}: {bad}", database::URL)))?;
    let reference = object.spec.operator_access.database_ca_secret_ref.as_ref();
    let ca = match reference {
        None => None,
        Some(reference) => Some(
            targets::read_ca(reference, "operatorAccess.databaseCASecretRef", &key.namespace, ctx).await?,
        ),
    };
    Ok(Database { dsn, ca })
}

fn unavailable(error: environment::Error) -> Blocker {
    match error {
        environment::Error::Missing { .. } => Blocker::until_change(Reason::SecretMissing, error.to_string()),
        environment::Error::Unreadable(message) => Blocker::new(Reason::Error, message),
    }
}
