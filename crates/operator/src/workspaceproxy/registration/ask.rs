//! What is looked at when a decision asks for it.

use coder_k8s_api::Reason;
use coder_k8s_coderd::{BadTarget, Client, Error, ErrorKind, Proxy, Target};
use coder_k8s_core::{
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef},
    workspaceproxy::registration::{ListedProxy, Listing, RegistrationQuery, TokenProof},
};

use super::{super::target, RegistrationReconciler};
use crate::controller::{
    coderd,
    places::{self, Unasked, told},
};

impl RegistrationReconciler {
    /// Looks, and notes what was seen.
    pub(super) async fn look_at(&mut self, look: RegistrationQuery) {
        match look {
            RegistrationQuery::Registrations(place) => {
                let listing = self.listing(&place).await;
                self.observed.listings.insert(place, listing);
            }
            RegistrationQuery::TokenProof(place) => {
                let proof = self.proof(&place).await;
                self.observed.proofs.insert(place, proof);
            }
        }
    }

    async fn listing(&mut self, place: &CoderdTarget) -> Listing {
        let client = match self.client(place).await {
            Ok(client) => client,
            Err(Unasked::Gone) => return Listing::Gone,
            Err(Unasked::Unknown(blocker)) => return Listing::Unknown(blocker),
        };
        match client.proxies().await {
            Ok(all) => {
                // coderd itself is listed first, and is no proxy of anybody.
                let own = |proxy: &&Proxy| proxy.name != "primary" && !proxy.deleted;
                Listing::Known(all.iter().filter(own).map(listed).collect())
            }
            Err(error) => Listing::Unknown(self.failed(&error)),
        }
    }

    /// What the target makes of the token in a Secret. Needs no credential but the token.
    async fn proof(&mut self, place: &SecretDataRef) -> TokenProof {
        let target = match self.observed.target.clone() {
            Ok(target) => target,
            Err(blocker) => return TokenProof::Unknown(blocker),
        };
        let Some(token) = self.state.held.get(&place.name).and_then(|held| held.text(&place.key)) else {
            return TokenProof::Refused;
        };
        let client = match self.anonymous(&target).await {
            Ok(client) => client,
            Err(unasked) => return TokenProof::Unknown(told(unasked)),
        };
        match client.prove_proxy_token(&token).await {
            Ok(()) => TokenProof::Good,
            Err(error) => match error.kind {
                ErrorKind::Unauthenticated { .. } => TokenProof::Refused,
                ErrorKind::NotSupported => TokenProof::Unsupported,
                _ => TokenProof::Unknown(self.failed(&error)),
            },
        }
    }

    /// A client with the credentials of a place. One for each place and pass.
    pub(super) async fn client(&mut self, place: &CoderdTarget) -> Result<Client, Unasked> {
        if let Some(client) = self.clients.get(place) {
            return Ok(client.clone());
        }
        let client = if place.control_plane.is_empty() {
            self.by_address(place).await?
        } else {
            places::client(place, &self.state.key.namespace, &self.state.ctx).await?
        };
        self.clients.insert(place.clone(), client.clone());
        Ok(client)
    }

    /// A client without a credential of a place.
    async fn anonymous(&mut self, place: &CoderdTarget) -> Result<Client, Unasked> {
        if !place.control_plane.is_empty() {
            return places::anonymous(place, &self.state.key.namespace, &self.state.ctx).await;
        }
        if !target::is_allowed(&place.url, &self.state.key.namespace, &self.state.ctx) {
            return Err(Unasked::Gone);
        }
        // The address of the spec, or one of an earlier spec.
        let bootstrap = self.state.object.spec.bootstrap.as_ref();
        let client = match bootstrap.filter(|bootstrap| bootstrap.coder_url.as_str() == place.url) {
            Some(bootstrap) => target::client(bootstrap, &self.state.key.namespace, &self.state.ctx).await?,
            None => {
                self.state.ctx.connector.to(&Target::new(place.url.clone())).map_err(|_| Unasked::Gone)?
            }
        };
        // Whoever answers must be the one that the token belongs to. For the target of a verification that is known.
        let known = self.observed.verify_due && self.observed.target.as_ref() == Ok(place);
        if !known {
            let info = client.build_info().await.map_err(|error| self.failed(&error))?;
            if Some(&info.deployment_id) != place.deployment_id.as_ref() {
                return Err(Unasked::Gone);
            }
        }
        Ok(client)
    }

    /// A client of a place that an address leads to.
    async fn by_address(&mut self, place: &CoderdTarget) -> Result<Client, Unasked> {
        let secret = place.credentials.as_ref().and_then(|credentials| credentials.secret.as_ref());
        let Some(secret) =
            secret.filter(|_| target::is_allowed(&place.url, &self.state.key.namespace, &self.state.ctx))
        else {
            return Err(Unasked::Gone);
        };
        let Some(token) = places::token(secret, &self.state.key.namespace, &self.state.ctx).await? else {
            return Err(Unasked::Unknown(places::missing(Reason::CredentialsSecretUnavailable, secret)));
        };
        let client = self.anonymous(place).await?;
        let bad = |bad: BadTarget| Blocker::new(Reason::BadToken, bad.to_string());
        Ok(client.with_token(&token).map_err(bad)?)
    }

    /// Notes that coderd did not answer as it should, so that it is asked again, but not too soon.
    pub(super) fn failed(&mut self, error: &Error) -> Blocker {
        self.state.unanswered(error);
        let field = if self.state.object.spec.bootstrap.is_some() {
            "bootstrap.coderURL"
        } else {
            "operatorAccess.apiURL of the control plane"
        };
        match &error.kind {
            ErrorKind::Redirected { to } => Blocker::new(
                error.reason(),
                format!(
                    "coderd redirects to {to}, where the token is not sent: set {field} to the address that answers"
                ),
            ),
            ErrorKind::RateLimited { .. } => Blocker::new(
                error.reason(),
                "Coder API rate limited while reconciling the workspace proxy".to_owned(),
            ),
            _ => coderd::blocker(error),
        }
    }
}

fn listed(proxy: &Proxy) -> ListedProxy {
    ListedProxy {
        id: proxy.id.to_ascii_lowercase(),
        name: proxy.name.clone(),
        display_name: proxy.display_name.clone(),
        icon: proxy.icon_url.clone(),
        created: proxy.created_at,
        version: proxy.version.clone(),
        health: proxy.status.status.clone(),
    }
}
