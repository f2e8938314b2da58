//! Clients of the coderds where objects have something: a key, a registration.

use coder_k8s_api::Reason;
use coder_k8s_coderd::{Client, Target};
use coder_k8s_core::{
    outcome::Blocker,
    target::{CoderdTarget, Credentials, SecretDataRef},
};
use coder_k8s_engine::secret;
use secrecy::SecretString;

use super::{Context, coderd};

/// Why a place cannot be asked.
pub(crate) enum Unasked {
    /// It may be possible later.
    Unknown(Blocker),
    /// It never will: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
}

impl From<Blocker> for Unasked {
    fn from(blocker: Blocker) -> Self {
        Self::Unknown(blocker)
    }
}

/// Why a place could not be asked, for people.
pub(crate) fn told(unasked: Unasked) -> Blocker {
    match unasked {
        Unasked::Unknown(blocker) => blocker,
        Unasked::Gone => Blocker::new(
            Reason::ControlPlaneUnavailable,
            "another deployment answers than the one that is recorded".to_owned(),
        ),
    }
}

/// A client without a credential of the coderd at a place.
pub(crate) async fn anonymous(
    place: &CoderdTarget,
    namespace: &str,
    ctx: &Context,
) -> Result<Client, Unasked> {
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
        Err(error) => Err(Unasked::Unknown(coderd::blocker(&error))),
    }
}

/// A client with the credentials of a place.
pub(crate) async fn client(place: &CoderdTarget, namespace: &str, ctx: &Context) -> Result<Client, Unasked> {
    let plane = ctx.caches.control_planes.get(namespace, &place.control_plane);
    let recorded = place.credentials.as_ref().and_then(|credentials| credentials.secret.clone());
    let published = || {
        let reference = plane.as_ref()?.status.as_ref()?.operator_token_secret_ref.clone()?;
        let key = reference.key.unwrap_or_else(|| "token".to_owned());
        Some(SecretDataRef { name: reference.name, key })
    };
    let Some(secret) = recorded.or_else(published) else {
        let message = format!("CoderControlPlane {} has no token", place.control_plane);
        let blocker = Blocker::new(Reason::OperatorAccessNotReady, message);
        return Err(if plane.is_some() { Unasked::Unknown(blocker) } else { Unasked::Gone });
    };
    let Some(token) = token(&secret, namespace, ctx).await? else {
        let blocker = missing(Reason::OperatorTokenSecretUnavailable, &secret);
        return Err(if plane.is_some() { Unasked::Unknown(blocker) } else { Unasked::Gone });
    };
    let client = anonymous(place, namespace, ctx).await?;
    let bad = |bad: coder_k8s_coderd::BadTarget| Blocker::new(Reason::BadToken, bad.to_string());
    Ok(client.with_token(&token).map_err(bad)?)
}

/// The token in a Secret. None: it is not there, or empty.
pub(crate) async fn token(
    place: &SecretDataRef,
    namespace: &str,
    ctx: &Context,
) -> Result<Option<SecretString>, Blocker> {
    let read = secret::read(&ctx.client, namespace, &place.name).await;
    let held = read.map_err(|error| Blocker::new(Reason::SecretUnreadable, error.to_string()))?;
    Ok(held.and_then(|held| held.text(&place.key)))
}

/// Whether there is a token where credentials are.
pub(crate) async fn is_there(
    credentials: &Credentials,
    reason: Reason,
    namespace: &str,
    ctx: &Context,
) -> Result<(), Blocker> {
    let Some(secret) = &credentials.secret else { return Ok(()) };
    let found = token(secret, namespace, ctx).await;
    match found.map_err(|blocker| Blocker { reason, ..blocker })? {
        Some(_) => Ok(()),
        None => Err(missing(reason, secret)),
    }
}

/// A token is not where it should be.
pub(crate) fn missing(reason: Reason, place: &SecretDataRef) -> Blocker {
    let message = format!("Secret {} with the key {} is not there, or empty", place.name, place.key);
    Blocker::new(reason, message)
}
