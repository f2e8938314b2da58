//! What is looked at when a decision asks for it.

use coder_k8s_coderd::{Client, Error, ErrorKind, IdentifiedServer, Proxy};
use coder_k8s_core::{
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef},
    workspaceproxy::registration::{ListedProxy, Listing, RegistrationQuery, TokenProof},
};

use super::RegistrationReconciler;
use crate::coderd::{
    blocker_at,
    targets::{TargetError, other_deployment},
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
            Err(None) => return Listing::Gone,
            Err(Some(blocker)) => return Listing::Unknown(blocker),
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
        let server = match self.server(&target).await {
            Ok(server) => server,
            Err(blocker) => return TokenProof::Unknown(blocker.unwrap_or_else(other_deployment)),
        };
        match server.prove_proxy_token(&token).await {
            Ok(()) => TokenProof::Good,
            Err(error) => match error.kind {
                ErrorKind::Unauthenticated { .. } => TokenProof::Refused,
                ErrorKind::NotSupported => TokenProof::Unsupported,
                _ => TokenProof::Unknown(self.failed(&error)),
            },
        }
    }

    /// A client with the credentials of a target. The error is None if the target is gone.
    pub(super) async fn client(&mut self, target: &CoderdTarget) -> Result<Client, Option<Blocker>> {
        let found = self.state.connections.client(target, &self.state.ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    /// The server of a target. The error is None if the target is gone.
    async fn server(&mut self, target: &CoderdTarget) -> Result<IdentifiedServer, Option<Blocker>> {
        let found = self.state.connections.server(target, &self.state.ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    fn unusable(&mut self, error: TargetError) -> Option<Blocker> {
        match error {
            TargetError::Gone => None,
            TargetError::Blocked(blocker) => Some(blocker),
            TargetError::Failed(error) => Some(self.failed(&error)),
        }
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
            ErrorKind::RateLimited { .. } => Blocker::new(
                error.reason(),
                "Coder API rate limited while reconciling the workspace proxy".to_owned(),
            ),
            _ => blocker_at(error, field),
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
