//! The effects of a decision.

use std::ops::ControlFlow;

use coder_k8s_coderd::{Kind, ProxySettings, RegisteredProxy};
use coder_k8s_core::{
    outcome::Retry,
    place::{Place, SecretPlace, Version},
    workspaceproxy::registration::{Marks, Pending, Record, Registration, Settings, Step},
};
use coder_k8s_engine::{failure, secret, status::Written};
use secrecy::SecretString;

use super::{Dealings, secrets};
use crate::controller::{places::told, secrets as storing};

impl Dealings<'_> {
    /// Does one thing. Breaks where the pass must not go on: something failed, or is no longer as it was.
    pub(super) async fn effect(&mut self, step: Step) -> ControlFlow<()> {
        let done = match step {
            Step::Hold => true,
            Step::Make { pending, settings, secret, version } => {
                self.make(&pending, settings, &secret, &version).await
            }
            Step::Update { place, id, settings } => self.update(&place, &id, settings).await,
            Step::Deregister { place, id, name } => self.deregister(&place, &id, &name).await,
            Step::Copy { from, to, version, marks } => {
                let token = self.held.get(&from.name).and_then(|held| held.text(&from.key));
                match token {
                    Some(token) => self.store(&to, &version, Some(&token), &marks).await,
                    None => self.outdated(),
                }
            }
            Step::Annotate { secret, version, marks } => self.store(&secret, &version, None, &marks).await,
            Step::Remove { secret, version } => self.remove(&secret, &version).await,
        };
        if !done || self.touched {
            return ControlFlow::Break(());
        }
        self.read_again().await;
        ControlFlow::Continue(())
    }

    fn outdated(&mut self) -> bool {
        self.retry = Some(Retry::Soon);
        false
    }

    /// Registers the proxy as announced, or gives it another token, and stores the token.
    async fn make(
        &mut self,
        pending: &Pending,
        settings: Settings,
        place: &SecretPlace,
        version: &Version,
    ) -> bool {
        let client = match self.client(&pending.place).await {
            Ok(client) => client,
            Err(unasked) => {
                self.retry = Some(Retry::Backoff);
                self.trouble = Some(told(unasked));
                return false;
            }
        };
        // Another token ends the one that there is: look once more whether the Secret is still as it was.
        if !self.is_unchanged(place, version).await {
            return self.outdated();
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
                self.trouble = Some(trouble);
                if matches!(error.kind, Kind::Duplicate { .. }) {
                    // Somebody else has taken the name in the meantime: what is there is not what was announced.
                    self.is_noted(Record { pending: None, ..self.seen.record.clone() }).await;
                }
                return false;
            }
        };
        let Some(token) = token else { return self.outdated() };
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
        if record != self.seen.record && !self.is_noted(record).await {
            return false;
        }
        self.store(place, version, Some(&token), &marks).await
    }

    async fn is_unchanged(&self, place: &SecretPlace, version: &Version) -> bool {
        match secret::read(&self.ctx.client, &self.key.namespace, &place.name).await {
            Ok(Some(live)) => storing::is_version(&live, version),
            Ok(None) => *version == Version::Absent,
            Err(_) => false,
        }
    }

    /// Writes the record in the middle of a pass, which ends with what it is for.
    async fn is_noted(&mut self, record: Record) -> bool {
        let mut status = self.object.status.clone().unwrap_or_default();
        record.write(&mut status);
        match self.ctx.note_status(self.key, self.object, &status).await {
            Ok(Written::Changed) => {
                self.touched = true;
                true
            }
            Ok(Written::Unchanged | Written::Outdated) => self.outdated(),
            Err(error) => {
                let failure = failure::judge("write the status", &error);
                tracing::warn!(reason = failure.reason, "{}", failure.message);
                self.retry = Some(failure.retry);
                false
            }
        }
    }

    async fn update(&mut self, place: &Place, id: &str, settings: Settings) -> bool {
        let Ok(client) = self.client(place).await else { return self.outdated() };
        self.seen.listings.remove(place);
        match client.update_proxy(id, &as_sent(settings), false).await {
            Ok(updated) => {
                tracing::info!(proxy = updated.proxy.name, "updated a workspace proxy");
                true
            }
            Err(error) => {
                self.trouble = Some(self.failed(&error));
                false
            }
        }
    }

    /// Deletes a registration, by its UUID.
    async fn deregister(&mut self, place: &Place, id: &str, name: &str) -> bool {
        let Ok(client) = self.client(place).await else { return self.outdated() };
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

    /// Writes a token, or annotations alone, onto exactly the Secret that was decided on.
    async fn store(
        &mut self,
        place: &SecretPlace,
        version: &Version,
        token: Option<&SecretString>,
        marks: &Marks,
    ) -> bool {
        let (held, annotations) = (self.held.get(&place.name), secrets::annotations(marks));
        let written = storing::store(place, version, held, token, annotations, &self.owner, self.ctx).await;
        self.noted(&place.name, written)
    }

    /// Removes a Secret that nothing reads any more.
    async fn remove(&mut self, place: &SecretPlace, version: &Version) -> bool {
        let Some(held) = self.held.get(&place.name).filter(|held| storing::is_version(held, version)) else {
            return self.outdated();
        };
        let removed = secret::remove(&self.ctx.client, &self.owner.namespace, &place.name, held).await;
        self.noted(&place.name, removed.map(|_| Some(String::new())))
    }

    fn noted(&mut self, name: &str, written: Result<Option<String>, secret::Error>) -> bool {
        match written {
            Ok(Some(_)) => {
                tracing::info!("wrote Secret {name}");
                true
            }
            Ok(None) => self.outdated(),
            Err(error) => {
                tracing::warn!("{error}");
                self.retry = Some(Retry::Backoff);
                false
            }
        }
    }
}

fn as_sent(settings: Settings) -> ProxySettings {
    let Settings { name, display_name, icon } = settings;
    ProxySettings { name, display_name, icon }
}
