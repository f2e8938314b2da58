//! Clients of the coderds where objects have something: a key, a registration.

use coder_k8s_coderd::{Client, Target};
use coder_k8s_core::{
    outcome::Trouble,
    place::{Credentials, Place, SecretPlace},
};
use coder_k8s_engine::secret;
use secrecy::SecretString;

use super::{Context, coderd};

/// Why a place cannot be asked.
pub(crate) enum Unasked {
    /// It may be possible later.
    Unknown(Trouble),
    /// It never will: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
}

impl From<Trouble> for Unasked {
    fn from(trouble: Trouble) -> Self {
        Self::Unknown(trouble)
    }
}

/// Why a place could not be asked, for people.
pub(crate) fn told(unasked: Unasked) -> Trouble {
    match unasked {
        Unasked::Unknown(trouble) => trouble,
        Unasked::Gone => Trouble {
            reason: "ControlPlaneUnavailable",
            message: "another deployment answers than the one that is recorded".to_owned(),
        },
    }
}

/// A client without a credential of the coderd at a place.
pub(crate) async fn anonymous(place: &Place, namespace: &str, ctx: &Context) -> Result<Client, Unasked> {
    let plane = ctx.caches.control_planes.get(namespace, &place.control_plane);
    if let Some(plane) = plane {
        let answers = plane.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        if place.deployment_id.is_some() && answers.is_some() && answers != place.deployment_id.as_ref() {
            return Err(Unasked::Gone);
        }
        return Ok(coderd::client(&plane, ctx).await?);
    }
    let target = Target { url: place.url.clone(), ca: None, token: None };
    let client = ctx.connector.to(&target).map_err(|_| Unasked::Gone)?;
    // Without its control plane nobody vouches for the address: it must be the deployment that it was.
    match client.build_info().await {
        Ok(info) if Some(&info.deployment_id) == place.deployment_id.as_ref() => Ok(client),
        Ok(_) => Err(Unasked::Gone),
        Err(error) => Err(Unasked::Unknown(coderd::trouble(&error))),
    }
}

/// A client with the credentials of a place.
pub(crate) async fn client(place: &Place, namespace: &str, ctx: &Context) -> Result<Client, Unasked> {
    let plane = ctx.caches.control_planes.get(namespace, &place.control_plane);
    let recorded = place.credentials.as_ref().and_then(|credentials| credentials.secret.clone());
    let published = || {
        let reference = plane.as_ref()?.status.as_ref()?.operator_token_secret_ref.clone()?;
        let key = reference.key.unwrap_or_else(|| "token".to_owned());
        Some(SecretPlace { name: reference.name, key })
    };
    let Some(secret) = recorded.or_else(published) else {
        let message = format!("CoderControlPlane {} has no token", place.control_plane);
        let trouble = Trouble { reason: "OperatorAccessNotReady", message };
        return Err(if plane.is_some() { Unasked::Unknown(trouble) } else { Unasked::Gone });
    };
    let Some(token) = token(&secret, namespace, ctx).await? else {
        let trouble = missing("OperatorTokenSecretUnavailable", &secret);
        return Err(if plane.is_some() { Unasked::Unknown(trouble) } else { Unasked::Gone });
    };
    let client = anonymous(place, namespace, ctx).await?;
    let bad = |bad: coder_k8s_coderd::BadTarget| Trouble { reason: "BadToken", message: bad.to_string() };
    Ok(client.with_token(&token).map_err(bad)?)
}

/// The token in a Secret. None: it is not there, or empty.
pub(crate) async fn token(
    place: &SecretPlace,
    namespace: &str,
    ctx: &Context,
) -> Result<Option<SecretString>, Trouble> {
    let read = secret::read(&ctx.client, namespace, &place.name).await;
    let held = read.map_err(|error| Trouble { reason: "SecretUnreadable", message: error.to_string() })?;
    Ok(held.and_then(|held| held.text(&place.key)))
}

/// Whether there is a token where credentials are.
pub(crate) async fn is_there(
    credentials: &Credentials,
    reason: &'static str,
    namespace: &str,
    ctx: &Context,
) -> Result<(), Trouble> {
    let Some(secret) = &credentials.secret else { return Ok(()) };
    let found = token(secret, namespace, ctx).await;
    match found.map_err(|trouble| Trouble { reason, ..trouble })? {
        Some(_) => Ok(()),
        None => Err(missing(reason, secret)),
    }
}

/// A token is not where it should be.
pub(crate) fn missing(reason: &'static str, place: &SecretPlace) -> Trouble {
    let message = format!("Secret {} with the key {} is not there, or empty", place.name, place.key);
    Trouble { reason, message }
}
