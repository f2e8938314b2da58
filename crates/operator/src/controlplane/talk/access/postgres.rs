//! The way to a token through coderd's database.
//!
//! A connection is opened only when a token is to be made, replaced, looked into or revoked, and closed right after it.
//! The address, which holds a password, is read for that and not kept.

use coder_k8s_api::{CoderControlPlane, Reason};
use coder_k8s_coderd::postgres::{self, Dsn, DsnContext, Ensured, TokenRequest};
use coder_k8s_core::{controlplane::database, names, outcome::Retry};
use coder_k8s_engine::key::Key;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};

use super::{
    Failed,
    own::{Asking, Made},
};
use crate::controller::{
    Context, coderd,
    environment::{self, Environment},
};

/// A database, and whom to trust there.
struct Database {
    dsn: Dsn,
    ca: Option<Vec<u8>>,
}

/// Whether there is a database that can be asked.
pub(super) async fn prepare(asking: &Asking<'_>) -> Result<(), Failed> {
    let Database { dsn, ca } = find(asking.object, asking.key, asking.ctx).await?;
    asking.ctx.postgres.examine(&dsn, ca.as_deref()).map_err(failed)
}

/// Makes a token, or finds the one there is to be good.
pub(super) async fn make(asking: &Asking<'_>) -> Result<Made, Failed> {
    let database = find(asking.object, asking.key, asking.ctx).await?;
    let ensured = ensure(asking, &database, asking.current, asking.refused).await?;
    if let (Some(server), Some(id)) = (&asking.server, &ensured.deployment_id)
        && server != id
    {
        // The token would be sent to a server that has no business with it.
        let name = names::operator_token(&asking.key.namespace, &asking.key.name);
        let revoked =
            Box::pin(asking.ctx.postgres.revoke(&database.dsn, database.ca.as_deref(), &name)).await;
        revoked.map_err(failed)?;
        let message =
            "another deployment answers than the one whose database CODER_PG_CONNECTION_URL names; \
                       the token was not sent there: correct operatorAccess.apiURL or the database"
                .to_owned();
        return Err(Failed::for_good(Reason::DeploymentChanged, message));
    }
    Ok(Made {
        token: ensured.token,
        expires: ensured.expires,
        renew_after: ensured.renew_at,
        settled: ensured.settled,
    })
}

/// Removes what is left of ours beside a token that is proven.
pub(super) async fn settle(asking: &Asking<'_>, token: &SecretString) -> Result<(), Failed> {
    let database = find(asking.object, asking.key, asking.ctx).await?;
    ensure(asking, &database, Some(token), false).await.map(drop)
}

/// Revokes every token of ours.
pub(super) async fn revoke(key: &Key, object: &CoderControlPlane, ctx: &Context) -> Result<(), Failed> {
    let database = find(object, key, ctx).await?;
    let name = names::operator_token(&key.namespace, &key.name);
    // A connection is large, and so is whatever waits with one in hand.
    let revoked = Box::pin(ctx.postgres.revoke(&database.dsn, database.ca.as_deref(), &name)).await;
    let revoked = revoked.map_err(failed)?;
    tracing::info!(tokens = revoked, "revoked the operator's token in {}", database.dsn.server());
    Ok(())
}

async fn ensure(
    asking: &Asking<'_>,
    database: &Database,
    existing: Option<&SecretString>,
    replace: bool,
) -> Result<Ensured, Failed> {
    let name = names::operator_token(&asking.key.namespace, &asking.key.name);
    let desired = TokenRequest {
        token_name: &name,
        existing,
        lifetime: asking.lifetime(),
        now: Timestamp::now(),
        replace,
    };
    let ensured = Box::pin(asking.ctx.postgres.ensure(&database.dsn, database.ca.as_deref(), &desired)).await;
    let ensured = ensured.map_err(failed)?;
    if ensured.made {
        tracing::info!("made a token for the operator in {}", database.dsn.server());
    }
    Ok(ensured)
}

/// Finds the database as the pods do.
async fn find(object: &CoderControlPlane, key: &Key, ctx: &Context) -> Result<Database, Failed> {
    let pod = &object.spec.pod;
    let environment = Environment { client: &ctx.client, namespace: &key.namespace, pod };
    let auth = environment.value(database::AUTH).await.map_err(unknown)?;
    if auth.is_some_and(|auth| !["", "password"].contains(&auth.expose_secret().trim())) {
        let message = "the operator logs in to the database with a password alone, and CODER_PG_AUTH asks for something else: \
                       choose another operatorAccess.method";
        return Err(Failed::for_good(Reason::DatabaseAuthUnsupported, message));
    }
    let url = environment.value(database::URL).await.map_err(unknown)?;
    let Some(url) = url.filter(|url| !url.expose_secret().trim().is_empty()) else {
        return Err(Failed::for_good(Reason::DatabaseUrlMissing, database::HOW_TO_CONFIGURE));
    };
    let dsn = Dsn::parse(url.expose_secret(), &DsnContext { namespace: &key.namespace })
        .map_err(|bad| Failed::for_good(Reason::BadConnectionUrl, format!("{}: {bad}", database::URL)))?;
    Ok(Database { dsn, ca: authority(object, key, ctx).await? })
}

/// The certificate authority of the database.
async fn authority(object: &CoderControlPlane, key: &Key, ctx: &Context) -> Result<Option<Vec<u8>>, Failed> {
    let Some(reference) = &object.spec.operator_access.database_ca_secret_ref else { return Ok(None) };
    let pem = coderd::authority(reference, &key.namespace, ctx).await?;
    let missing = || {
        let place = coderd::authority_at(reference);
        let message = format!("{place} for operatorAccess.databaseCASecretRef is not there");
        Failed::for_good(Reason::SecretMissing, message)
    };
    pem.ok_or_else(missing).map(Some)
}

fn unknown(error: environment::Error) -> Failed {
    match error {
        environment::Error::Missing { .. } => Failed::for_good(Reason::SecretMissing, error.to_string()),
        environment::Error::Unreadable(message) => Failed::new(Reason::Error, message, Retry::Backoff),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn failed(error: postgres::Error) -> Failed {
    match error.retry() {
        coder_k8s_coderd::Retry::OnChange => Failed::for_good(error.reason(), error.to_string()),
        _ => Failed::new(error.reason(), error.to_string(), Retry::Backoff),
    }
}
