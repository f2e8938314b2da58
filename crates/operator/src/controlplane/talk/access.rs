//! The operator's access: where its token is, and whether coderd accepts it.

use coder_k8s_api::{AccessMethod, CoderControlPlane, ReportedSecretRef};
use coder_k8s_coderd::{Client, Error, Kind, Target};
use coder_k8s_core::{
    controlplane::{
        access_url,
        coderd::{Access, Trouble},
    },
    names, outcome,
};
use coder_k8s_engine::{key::Key, secret};
use kube::ResourceExt;
use secrecy::SecretString;

use super::{Talk, as_trouble, trouble};
use crate::controller::Context;

/// Finds the token and the certificate authority, unless they are at hand.
pub(super) async fn find(
    talk: &mut Talk,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), outcome::Retry> {
    let access = &object.spec.operator_access;
    if let Some(reference) = access.ca_secret_ref.as_ref().filter(|_| talk.ca.is_none()) {
        let data_key = reference.key.as_ref().map_or("ca.crt", AsRef::as_ref);
        let data = read(ctx, key, reference.name.as_str()).await?;
        let pem = data.as_ref().and_then(|data| data.value(data_key)).map(<[u8]>::to_vec);
        if pem.is_none() {
            let message = format!(
                "Secret {} with the key {data_key} for operatorAccess.caSecretRef is not there",
                reference.name
            );
            refuse(talk, "SecretMissing", message);
        }
        talk.ca = pem;
    }
    if talk.token.is_some() {
        return Ok(());
    }
    let (name, data_key, given) = place(object);
    let told = object.status.as_ref().is_some_and(|status| status.operator_token_secret_ref.is_some());
    if !given && !told && !talk.hinted {
        return Ok(());
    }
    let data = read(ctx, key, &name).await?;
    // A Secret that the operator made itself, or one that a person names. Nobody else's is sent anywhere.
    let ours = |data: &secret::SecretData| given || data.controller == object.uid();
    let data = data.filter(ours);
    let value = data.as_ref().and_then(|data| data.value(&data_key));
    let text = value.and_then(|value| std::str::from_utf8(value).ok()).map(str::trim);
    match text.filter(|text| !text.is_empty()) {
        Some(text) => {
            talk.token = Some(SecretString::from(text.to_owned()));
            talk.report.token = Some(ReportedSecretRef { name, key: Some(data_key) });
        }
        None if given => {
            let message = format!(
                "Secret {name} with the key {data_key} for operatorAccess.tokenSecretRef is not there, or empty"
            );
            refuse(talk, "SecretMissing", message);
        }
        // The automatic ways come with a later release.
        None => {}
    }
    Ok(())
}

/// Secret and key of the token, and whether a person names them.
fn place(object: &CoderControlPlane) -> (String, String, bool) {
    let access = &object.spec.operator_access;
    if let (AccessMethod::TokenSecret, Some(reference)) = (access.method, &access.token_secret_ref) {
        let key = reference.key.as_ref().map_or_else(|| "token".to_owned(), ToString::to_string);
        return (reference.name.to_string(), key, true);
    }
    let given = access.generated_token_secret_name.as_ref().map(ToString::to_string);
    (given.unwrap_or_else(|| names::token_secret(&object.name_any())), "token".to_owned(), false)
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
    let url = match (&access.api_url, &access.ca_secret_ref) {
        (Some(url), _) => url.to_string(),
        (None, Some(_)) => access_url::https_url(object),
        (None, None) => access_url::http_url(object),
    };
    if access.ca_secret_ref.is_some() && talk.ca.is_none() {
        return None;
    }
    match ctx.connector.to(&Target { url, ca: talk.ca.clone(), token: None }) {
        Ok(client) => Some(client),
        Err(bad) => {
            refuse(talk, "BadTarget", format!("coderd cannot be called: {bad}"));
            None
        }
    }
}

/// The client with the token.
pub(super) fn with_token(talk: &mut Talk, client: &Client, token: &SecretString) -> Option<Client> {
    match client.with_token(token) {
        Ok(client) => Some(client),
        Err(bad) => {
            refuse(talk, "BadToken", bad.to_string());
            None
        }
    }
}

/// Asks whether coderd accepts the token. False: it does not, which is settled until something changes.
pub(super) async fn verify(
    talk: &mut Talk,
    object: &CoderControlPlane,
    client: &Client,
) -> Result<bool, outcome::Retry> {
    match client.me().await {
        Ok(_) => {
            talk.report.access = Some(Access::Ready);
            Ok(true)
        }
        Err(error) if matches!(error.kind, Kind::Unauthenticated { .. } | Kind::Forbidden { .. }) => {
            talk.report.access = Some(Access::Refused(as_trouble(&error)));
            if !super::license::is_applied(talk, object) {
                talk.report.license = Some(super::License::Trouble(as_trouble(&error)));
            }
            Ok(false)
        }
        Err(error) => Err(trouble(talk, object, &error)),
    }
}

/// What an error means for the access. A redirect stays until a person says where to; whatever else may pass.
pub(super) fn in_trouble(error: &Error) -> Access {
    match error.kind {
        Kind::Redirected { .. } => Access::Refused(as_trouble(error)),
        _ => Access::Degraded(as_trouble(error)),
    }
}

fn refuse(talk: &mut Talk, reason: &'static str, message: String) {
    talk.report.access = Some(Access::Refused(Trouble { reason, message }));
}
