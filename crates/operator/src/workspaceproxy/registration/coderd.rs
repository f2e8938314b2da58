//! The queries and effects of registrations in coderd.

use coder_k8s_coderd::{ErrorKind, Proxy, ProxySettings, RegisteredProxy};
use coder_k8s_core::{
    target::{CoderdTarget, SecretDataRef, Version},
    workspaceproxy::registration::{
        ListedProxy, Listing, ProxyProfile, RegistrationIntent, RegistrationMarks, RegistrationRecord,
        RegistrationRef, TokenProof,
    },
};
use coder_k8s_engine::secret;

use super::RegistrationReconciler;
use crate::{
    coderd::{credential::CredentialReconciler as _, targets::other_deployment},
    controller::secrets as storing,
};

impl RegistrationReconciler {
    /// The registrations of a coderd.
    pub(super) async fn listing(&mut self, target: &CoderdTarget) -> Listing {
        let client = match self.client(target).await {
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

    /// What the target answers about the token in a Secret. Needs no other credential.
    pub(super) async fn proof(&mut self, place: &SecretDataRef) -> TokenProof {
        let target = match self.observed.target.clone() {
            Ok(target) => target,
            Err(blocker) => return TokenProof::Unknown(blocker),
        };
        let Some(token) = self.state.material(place) else {
            return TokenProof::Refused;
        };
        let server = match self.server(&target).await {
            Ok(server) => server,
            Err(blocker) => return TokenProof::Unknown(blocker.unwrap_or_else(other_deployment)),
        };
        match server.anonymous().prove_proxy_token(&token).await {
            Ok(()) => TokenProof::Good,
            Err(error) => match error.kind {
                ErrorKind::Unauthenticated { .. } => TokenProof::Refused,
                ErrorKind::NotSupported => TokenProof::Unsupported,
                _ => TokenProof::Unknown(self.failed(&error)),
            },
        }
    }

    /// Registers the proxy as announced, or gives it another token, and stores the token.
    pub(super) async fn make(
        &mut self,
        pending: &RegistrationIntent,
        settings: ProxyProfile,
        place: &SecretDataRef,
        version: &Version,
    ) -> bool {
        let RegistrationRef { id: known, name, target, details: _ } = &pending.credential;
        let client = match self.client(target).await {
            Ok(client) => client,
            Err(blocker) => return self.state.not_performed(blocker),
        };
        // Another token ends the one in the Secret, which must still be the Secret that was decided on.
        if !self.is_unchanged(place, version).await {
            return self.state.outdated();
        }
        let settings = as_sent(settings);
        let made = match known {
            None => client.create_proxy(&settings).await,
            Some(id) => client.update_proxy(id, &settings, true).await,
        };
        self.observed.listings.clear();
        let RegisteredProxy { proxy, token } = match made {
            Ok(made) => made,
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(reason = %blocker.reason, "proxy {name} got no token: {}", blocker.message);
                self.state.blocker = Some(blocker);
                if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                    // The name was free a moment ago. Whoever has it now must not be taken for what was announced.
                    let record = RegistrationRecord { pending: None, ..self.observed.record.clone() };
                    self.record(&record).await;
                }
                return false;
            }
        };
        let Some(token) = token else { return self.state.outdated() };
        tracing::info!(proxy = proxy.name, "got a token for a workspace proxy");
        let id = proxy.id.to_ascii_lowercase();
        let current = RegistrationRef::new(Some(id.clone()), proxy.name, target.clone());
        let marks = RegistrationMarks {
            id: id.clone(),
            name: current.name.clone(),
            deployment_id: target.deployment_id.clone(),
        };
        let credential = RegistrationRef { id: Some(id), ..pending.credential.clone() };
        let announced = Some(RegistrationIntent { credential, ..pending.clone() });
        let record =
            RegistrationRecord { current: Some(current), pending: announced, ..self.observed.record.clone() };
        let recorded = record == self.observed.record || self.record(&record).await;
        let stored = recorded && self.store(place, version, Some(&token), &marks).await;
        if !stored {
            self.state.ctx.verify_schedule.lost(&self.state.key);
        }
        stored
    }

    async fn is_unchanged(&self, place: &SecretDataRef, version: &Version) -> bool {
        match secret::read(&self.state.ctx.client, &self.state.key.namespace, &place.name).await {
            Ok(Some(live)) => storing::is_version(&live, version),
            Ok(None) => *version == Version::Absent,
            Err(_) => false,
        }
    }

    /// Writes the record between two parts of an effect.
    async fn record(&mut self, record: &RegistrationRecord) -> bool {
        let mut status = self.state.object.status.clone().unwrap_or_default();
        record.write(&mut status);
        self.state.record_status(&status).await
    }

    /// Changes what a registration is called.
    pub(super) async fn update(&mut self, target: &CoderdTarget, id: &str, settings: ProxyProfile) -> bool {
        let Ok(client) = self.client(target).await else { return self.state.outdated() };
        self.observed.listings.remove(target);
        match client.update_proxy(id, &as_sent(settings), false).await {
            Ok(updated) => {
                tracing::info!(proxy = updated.proxy.name, "updated a workspace proxy");
                true
            }
            Err(error) => {
                self.state.blocker = Some(self.failed(&error));
                false
            }
        }
    }

    /// Deletes a registration, by its UUID.
    pub(super) async fn deregister(&mut self, target: &CoderdTarget, id: &str, name: &str) -> bool {
        let Ok(client) = self.client(target).await else { return self.state.outdated() };
        self.observed.listings.remove(target);
        match client.delete_proxy(id).await {
            Ok(()) => tracing::info!(proxy = name, "deleted a workspace proxy"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(reason = %blocker.reason, "proxy {name} was not deleted: {}", blocker.message);
                return false;
            }
        }
        true
    }
}

fn as_sent(settings: ProxyProfile) -> ProxySettings {
    let ProxyProfile { name, display_name, icon } = settings;
    ProxySettings { name, display_name, icon }
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
