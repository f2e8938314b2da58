//! What is done in coderd.

use coder_k8s_coderd::{Kind, ProxySettings, RegisteredProxy};
use coder_k8s_core::{
    place::{Place, SecretPlace, Version},
    workspaceproxy::registration::{Marks, Pending, Record, Registration, Settings},
};
use coder_k8s_engine::secret;

use super::Dealings;
use crate::controller::{credential::Dealings as _, secrets as storing};

impl Dealings {
    /// Registers the proxy as announced, or gives it another token, and stores the token.
    pub(super) async fn make(
        &mut self,
        pending: &Pending,
        settings: Settings,
        place: &SecretPlace,
        version: &Version,
    ) -> bool {
        let client = match self.client(&pending.place).await {
            Ok(client) => client,
            Err(unasked) => return self.course.unasked(unasked),
        };
        // Another token ends the one that there is: look once more whether the Secret is still as it was.
        if !self.is_unchanged(place, version).await {
            return self.course.outdated();
        }
        let settings = as_sent(settings);
        let made = match &pending.id {
            None => client.create_proxy(&settings).await,
            Some(id) => client.update_proxy(id, &settings, true).await,
        };
        self.seen.listings.clear();
        let RegisteredProxy { proxy, token } = match made {
            Ok(made) => made,
            Err(error) => {
                let trouble = self.failed(&error);
                tracing::warn!(
                    reason = trouble.reason,
                    "proxy {} got no token: {}",
                    pending.name,
                    trouble.message
                );
                self.course.trouble = Some(trouble);
                if matches!(error.kind, Kind::Duplicate { .. }) {
                    // Somebody else has taken the name in the meantime: what is there is not what was announced.
                    self.is_noted(Record { pending: None, ..self.seen.record.clone() }).await;
                }
                return false;
            }
        };
        let Some(token) = token else { return self.course.outdated() };
        tracing::info!(proxy = proxy.name, "got a token for a workspace proxy");
        let id = proxy.id.to_ascii_lowercase();
        let current = Registration { id: id.clone(), name: proxy.name, place: pending.place.clone() };
        let marks = Marks {
            id: id.clone(),
            name: current.name.clone(),
            deployment_id: pending.place.deployment_id.clone(),
        };
        let announced = Some(Pending { id: Some(id), ..pending.clone() });
        let record = Record { current: Some(current), pending: announced, ..self.seen.record.clone() };
        let noted = record == self.seen.record || self.is_noted(record).await;
        let kept = noted && self.store(place, version, Some(&token), &marks).await;
        if !kept {
            self.course.ctx.pools.lost(&self.course.key);
        }
        kept
    }

    async fn is_unchanged(&self, place: &SecretPlace, version: &Version) -> bool {
        match secret::read(&self.course.ctx.client, &self.course.key.namespace, &place.name).await {
            Ok(Some(live)) => storing::is_version(&live, version),
            Ok(None) => *version == Version::Absent,
            Err(_) => false,
        }
    }

    /// Writes the record in the middle of a pass, which ends with what it is for.
    async fn is_noted(&mut self, record: Record) -> bool {
        let mut status = self.course.object.status.clone().unwrap_or_default();
        record.write(&mut status);
        self.course.is_noted(&status).await
    }

    pub(super) async fn update(&mut self, place: &Place, id: &str, settings: Settings) -> bool {
        let Ok(client) = self.client(place).await else { return self.course.outdated() };
        self.seen.listings.remove(place);
        match client.update_proxy(id, &as_sent(settings), false).await {
            Ok(updated) => {
                tracing::info!(proxy = updated.proxy.name, "updated a workspace proxy");
                true
            }
            Err(error) => {
                self.course.trouble = Some(self.failed(&error));
                false
            }
        }
    }

    /// Deletes a registration, by its UUID.
    pub(super) async fn deregister(&mut self, place: &Place, id: &str, name: &str) -> bool {
        let Ok(client) = self.client(place).await else { return self.course.outdated() };
        self.seen.listings.remove(place);
        match client.delete_proxy(id).await {
            Ok(()) => tracing::info!(proxy = name, "deleted a workspace proxy"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let trouble = self.failed(&error);
                tracing::warn!(reason = trouble.reason, "proxy {name} was not deleted: {}", trouble.message);
                return false;
            }
        }
        true
    }
}

fn as_sent(settings: Settings) -> ProxySettings {
    let Settings { name, display_name, icon } = settings;
    ProxySettings { name, display_name, icon }
}
