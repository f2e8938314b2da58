//! Clients of the places where keys are.

use coder_k8s_coderd::{Client, Error, Kind, Retry as ClientRetry, Target};
use coder_k8s_core::{
    outcome::Retry,
    provisioner::keys::{Place, Trouble},
};
use coder_k8s_engine::secret;

use super::Dealings;
use crate::controller::coderd;

/// Why a place cannot be asked.
pub(super) enum Unasked {
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

impl Dealings<'_> {
    /// A client without a credential of the coderd at a place.
    pub(super) async fn anonymous(&self, place: &Place) -> Result<Client, Unasked> {
        let plane = self.ctx.caches.control_planes.get(&self.key.namespace, &place.control_plane);
        if let Some(plane) = plane {
            let answers = plane.status.as_ref().and_then(|status| status.deployment_id.as_ref());
            if place.deployment_id.is_some() && answers.is_some() && answers != place.deployment_id.as_ref() {
                return Err(Unasked::Gone);
            }
            return Ok(coderd::client(&plane, self.ctx).await?);
        }
        let target = Target { url: place.url.clone(), ca: None, token: None };
        let client = self.ctx.connector.to(&target).map_err(|_| Unasked::Gone)?;
        // Without its control plane nobody vouches for the address: it must be the deployment that it was.
        match client.build_info().await {
            Ok(info) if Some(&info.deployment_id) == place.deployment_id.as_ref() => Ok(client),
            Ok(_) => Err(Unasked::Gone),
            Err(error) => Err(Unasked::Unknown(trouble(&error))),
        }
    }

    /// A client with the credentials of a place.
    pub(super) async fn client(&self, place: &Place) -> Result<Client, Unasked> {
        let plane = self.ctx.caches.control_planes.get(&self.key.namespace, &place.control_plane);
        let recorded = place.credentials.as_ref().and_then(|credentials| credentials.secret.clone());
        let published = || {
            let reference = plane.as_ref()?.status.as_ref()?.operator_token_secret_ref.clone()?;
            let key = reference.key.unwrap_or_else(|| "token".to_owned());
            Some(coder_k8s_core::provisioner::keys::SecretPlace { name: reference.name, key })
        };
        let Some(secret) = recorded.or_else(published) else {
            let message = format!("CoderControlPlane {} has no token", place.control_plane);
            let trouble = Trouble { reason: "OperatorAccessNotReady", message };
            return Err(if plane.is_some() { Unasked::Unknown(trouble) } else { Unasked::Gone });
        };
        let read = secret::read(&self.ctx.client, &self.key.namespace, &secret.name).await;
        let held =
            read.map_err(|error| Trouble { reason: "SecretUnreadable", message: error.to_string() })?;
        let Some(token) = held.and_then(|held| held.text(&secret.key)) else {
            let message =
                format!("Secret {} with the key {} is not there, or empty", secret.name, secret.key);
            let trouble = Trouble { reason: "OperatorTokenSecretUnavailable", message };
            return Err(if plane.is_some() { Unasked::Unknown(trouble) } else { Unasked::Gone });
        };
        let client = self.anonymous(place).await?;
        let bad = |bad: coder_k8s_coderd::BadTarget| Trouble { reason: "BadToken", message: bad.to_string() };
        Ok(client.with_token(&token).map_err(bad)?)
    }

    /// Notes that coderd did not answer as it should, so that it is asked again, but not too soon.
    pub(super) fn failed(&mut self, error: &Error) -> Trouble {
        let retry = match error.retry() {
            ClientRetry::After(wait) => Retry::After(wait),
            ClientRetry::OnChange | ClientRetry::Backoff => Retry::Backoff,
        };
        self.retry = Some(match (self.retry, retry) {
            (Some(Retry::After(one)), Retry::After(two)) => Retry::After(one.max(two)),
            (Some(Retry::After(wait)), _) => Retry::After(wait),
            (_, retry) => retry,
        });
        trouble(error)
    }
}

/// What an error means for a pool, the same from try to try.
pub(super) fn trouble(error: &Error) -> Trouble {
    let message = match error.kind {
        Kind::RateLimited { .. } => "Coder API rate limited while reconciling provisioner key".to_owned(),
        _ => error.to_string(),
    };
    Trouble { reason: error.reason(), message }
}
