//! The operator's access: where its token comes from, whether coderd accepts it, and how it is given back.

mod first_user;
mod own;
mod postgres;
mod revoke;
mod store;

use coder_k8s_api::{AccessMethod, CoderControlPlane, Reason, ReportedSecretRef};
use coder_k8s_coderd::{Client, Error, ErrorKind, Target};
use coder_k8s_core::{
    controlplane::coderd::{Access, Blocker},
    outcome,
};
use coder_k8s_engine::{key::Key, secret};
use secrecy::SecretString;

pub(super) use self::{
    revoke::{disable, go},
    store::is_own_write,
};
use super::{Talk, as_trouble, blocker};
use crate::controller::{Context, coderd};

/// A part that failed.
pub(super) struct Failed {
    blocker: Blocker,
    /// None: there is nothing to try before something changes.
    retry: Option<outcome::Retry>,
}

impl Failed {
    fn new(reason: Reason, message: impl Into<String>, retry: outcome::Retry) -> Self {
        Self { blocker: Blocker::new(reason, message.into()), retry: Some(retry) }
    }

    /// There is nothing to try before something changes.
    fn for_good(reason: Reason, message: impl Into<String>) -> Self {
        Self { blocker: Blocker::new(reason, message.into()), retry: None }
    }
}

impl From<&Error> for Failed {
    fn from(error: &Error) -> Self {
        Self { blocker: as_trouble(error), retry: Some(super::retry(error)) }
    }
}

impl From<secret::Error> for Failed {
    fn from(error: secret::Error) -> Self {
        Self::new(Reason::Error, error.to_string(), outcome::Retry::Backoff)
    }
}

/// Reads the certificate authority of coderd, unless it is at hand.
pub(super) async fn find_authority(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), outcome::Retry> {
    let Some(reference) = object.spec.operator_access.ca_secret_ref.as_ref().filter(|_| talk.ca.is_none())
    else {
        return Ok(());
    };
    talk.ca = coderd::authority(reference, &key.namespace, ctx).await.map_err(|error| {
        tracing::warn!("{error}");
        outcome::Retry::Backoff
    })?;
    if talk.ca.is_none() {
        let place = coderd::authority_at(reference);
        let message = format!("{place} for operatorAccess.caSecretRef is not there");
        refuse(talk, Reason::SecretMissing, message);
    }
    Ok(())
}

async fn read(ctx: &Context, key: &Key, name: &str) -> Result<Option<secret::SecretData>, outcome::Retry> {
    secret::read(&ctx.client, &key.namespace, name).await.map_err(|error| {
        tracing::warn!("{error}");
        outcome::Retry::Backoff
    })
}

/// A client without a credential. None: it cannot be made, which the report says.
pub(super) fn client(talk: &mut Talk, object: &CoderControlPlane, ctx: &Context) -> Option<Client> {
    let access = &object.spec.operator_access;
    let url = coderd::url(object);
    if access.ca_secret_ref.is_some() && talk.ca.is_none() {
        return None;
    }
    match ctx.connector.to(&Target { url, ca: talk.ca.clone(), token: None }) {
        Ok(client) => Some(client),
        Err(bad) => {
            refuse(talk, Reason::BadTarget, format!("coderd cannot be called: {bad}"));
            None
        }
    }
}

/// Gets a client whose token coderd accepts. None: there is none, and the report says why.
pub(super) async fn establish(
    talk: &mut Talk,
    verify: bool,
    anonymous: &Client,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<Option<Client>, outcome::Retry> {
    if !verify {
        return Ok(talk.token.clone().and_then(|token| with_token(talk, anonymous, &token)));
    }
    match object.spec.operator_access.method {
        AccessMethod::TokenSecret => {
            let client = given(talk, anonymous, key, object, ctx).await?;
            if client.is_some() {
                revoke::outdated(talk, client.as_ref(), key, object, ctx).await?;
            }
            Ok(client)
        }
        AccessMethod::Postgres | AccessMethod::FirstUser => {
            own::establish(talk, anonymous, key, object, ctx).await
        }
    }
}

/// The client with the token that a person supplies.
async fn given(
    talk: &mut Talk,
    anonymous: &Client,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<Option<Client>, outcome::Retry> {
    let Some(reference) = &object.spec.operator_access.token_secret_ref else { return Ok(None) };
    let data_key = reference.key.as_ref().map_or("token", AsRef::as_ref);
    if talk.token.is_none() {
        let data = read(ctx, key, reference.name.as_str()).await?;
        let Some(token) = data.and_then(|data| data.text(data_key)) else {
            let name = &reference.name;
            let message = format!(
                "Secret {name} with the key {data_key} for operatorAccess.tokenSecretRef is not there, or empty"
            );
            refuse(talk, Reason::SecretMissing, message);
            return Ok(None);
        };
        talk.token = Some(token);
        talk.report.token =
            Some(ReportedSecretRef { name: reference.name.to_string(), key: Some(data_key.to_owned()) });
    }
    let Some(client) = talk.token.clone().and_then(|token| with_token(talk, anonymous, &token)) else {
        return Ok(None);
    };
    Ok(accepts(talk, object, &client).await?.then_some(client))
}

/// The client with the token.
fn with_token(talk: &mut Talk, client: &Client, token: &SecretString) -> Option<Client> {
    match client.with_token(token) {
        Ok(client) => Some(client),
        Err(bad) => {
            refuse(talk, Reason::BadToken, bad.to_string());
            None
        }
    }
}

/// Asks whether coderd accepts the token. False: it does not, which is settled until something changes.
async fn accepts(
    talk: &mut Talk,
    object: &CoderControlPlane,
    client: &Client,
) -> Result<bool, outcome::Retry> {
    match client.me().await {
        Ok(_) => {
            talk.report.access = Some(Access::Ready);
            Ok(true)
        }
        Err(error)
            if matches!(error.kind, ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. }) =>
        {
            turn_down(talk, object, as_trouble(&error));
            Ok(false)
        }
        Err(error) => Err(blocker(talk, object, &error)),
    }
}

/// Notes that the access does not work, and so neither does what depends on it.
fn turn_down(talk: &mut Talk, object: &CoderControlPlane, blocker: Blocker) {
    if object.spec.license_secret_ref.is_some() && !super::license::is_applied(talk, object) {
        talk.report.license = Some(super::License::Blocker(blocker.clone()));
    }
    talk.report.access = Some(Access::Refused(blocker));
}

/// What an error means for the access. A redirect stays until a person says where to; whatever else may pass.
pub(super) fn in_trouble(error: &Error) -> Access {
    match error.kind {
        ErrorKind::Redirected { .. } => Access::Refused(as_trouble(error)),
        _ => Access::Degraded(as_trouble(error)),
    }
}

fn refuse(talk: &mut Talk, reason: Reason, message: String) {
    talk.report.access = Some(Access::Refused(Blocker::new(reason, message)));
}
