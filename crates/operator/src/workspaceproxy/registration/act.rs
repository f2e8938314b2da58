//! What is done in coderd.

use coder_k8s_coderd::{ErrorKind, ProxySettings, RegisteredProxy};
use coder_k8s_core::{
    target::{CoderdTarget, SecretDataRef, Version},
    workspaceproxy::registration::{
        ProxyProfile, RegistrationIntent, RegistrationMarks, RegistrationRecord, RegistrationRef,
    },
};
use coder_k8s_engine::secret;

use super::RegistrationReconciler;
use crate::{coderd::credential::CredentialReconciler as _, controller::secrets as storing};

impl RegistrationReconciler {
    /// Registers the proxy as announced, or gives it another token, and stores the token.
    pub(super) async fn make(
        &mut self,
        pending: &RegistrationIntent,
        settings: ProxyProfile,
        place: &SecretDataRef,
        version: &Version,
    ) -> bool {
        let client = match self.client(&pending.place).await {
            Ok(client) => client,
            Err(blocker) => return self.state.not_performed(blocker),
        };
        // Another token ends the one that there is: look once more whether the Secret is still as it was.
        if !self.is_unchanged(place, version).await {
            return self.state.outdated();
        }
        let settings = as_sent(settings);
        let made = match &pending.id {
            None => client.create_proxy(&settings).await,
            Some(id) => client.update_proxy(id, &settings, true).await,
        };
        self.observed.listings.clear();
        let RegisteredProxy { proxy, token } = match made {
            Ok(made) => made,
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(
                    reason = %blocker.reason,
                    "proxy {} got no token: {}",
                    pending.name,
                    blocker.message
                );
                self.state.blocker = Some(blocker);
                if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                    // Somebody else has taken the name in the meantime: what is there is not what was announced.
                    self.record_status(RegistrationRecord { pending: None, ..self.observed.record.clone() })
                        .await;
                }
                return false;
            }
        };
        let Some(token) = token else { return self.state.outdated() };
        tracing::info!(proxy = proxy.name, "got a token for a workspace proxy");
        let id = proxy.id.to_ascii_lowercase();
        let current = RegistrationRef { id: id.clone(), name: proxy.name, place: pending.place.clone() };
        let marks = RegistrationMarks {
            id: id.clone(),
            name: current.name.clone(),
            deployment_id: pending.place.deployment_id.clone(),
        };
        let announced = Some(RegistrationIntent { id: Some(id), ..pending.clone() });
        let record =
            RegistrationRecord { current: Some(current), pending: announced, ..self.observed.record.clone() };
        let noted = record == self.observed.record || self.record_status(record).await;
        let kept = noted && self.store(place, version, Some(&token), &marks).await;
        if !kept {
            self.state.ctx.verify_schedule.lost(&self.state.key);
        }
        kept
    }

    async fn is_unchanged(&self, place: &SecretDataRef, version: &Version) -> bool {
        match secret::read(&self.state.ctx.client, &self.state.key.namespace, &place.name).await {
            Ok(Some(live)) => storing::is_version(&live, version),
            Ok(None) => *version == Version::Absent,
            Err(_) => false,
        }
    }

    /// Writes the record in the middle of a pass, which ends with what it is for.
    async fn record_status(&mut self, record: RegistrationRecord) -> bool {
        let mut status = self.state.object.status.clone().unwrap_or_default();
        record.write(&mut status);
        self.state.record_status(&status).await
    }

    pub(super) async fn update(&mut self, place: &CoderdTarget, id: &str, settings: ProxyProfile) -> bool {
        let Ok(client) = self.client(place).await else { return self.state.outdated() };
        self.observed.listings.remove(place);
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
    pub(super) async fn deregister(&mut self, place: &CoderdTarget, id: &str, name: &str) -> bool {
        let Ok(client) = self.client(place).await else { return self.state.outdated() };
        self.observed.listings.remove(place);
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
