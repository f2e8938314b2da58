//! The effects of a decision.

use std::ops::ControlFlow;

use coder_k8s_api::names::annotation;
use coder_k8s_core::{
    outcome::Retry,
    provisioner::keys::{At, Listing, Marks, Pending, SecretPlace, Step, Version, tags::Tags},
};
use coder_k8s_engine::{
    failure,
    secret::{self, Change},
    status::Written,
};
use secrecy::SecretString;

use super::{Dealings, secrets};
use crate::controller::{places::told, secrets as storing};

impl Dealings<'_> {
    /// Does one thing. Breaks where the pass must not go on: something failed, or is no longer as it was.
    pub(super) async fn effect(&mut self, step: Step) -> ControlFlow<()> {
        let done = match step {
            Step::Hold => true,
            Step::Make { key, tags, secret, version, marks } => {
                self.make(&key, &tags, &secret, &version, marks).await
            }
            Step::Delete { at, name, id } => self.delete(&at, &name, &id).await,
            Step::Copy { from, to, version, marks } => {
                let material = self.held.get(&from.name).and_then(|held| held.text(&from.key));
                match material {
                    Some(material) => self.store(&to, &version, Some(&material), &marks).await,
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

    /// Makes the announced key and stores it.
    async fn make(
        &mut self,
        key: &Pending,
        tags: &Tags,
        place: &SecretPlace,
        version: &Version,
        mut marks: Marks,
    ) -> bool {
        let client = match self.client(&key.place).await {
            Ok(client) => client,
            Err(unasked) => {
                self.retry = Some(Retry::Backoff);
                self.trouble = Some(told(unasked));
                return false;
            }
        };
        let organization = key.organization.word();
        let material = match client.create_provisioner_key(organization, &key.name, tags).await {
            Ok(material) => material,
            Err(error) => {
                let trouble = self.failed(&error);
                tracing::warn!(reason = trouble.reason, "key {} was not made: {}", key.name, trouble.message);
                self.trouble = Some(trouble);
                return false;
            }
        };
        tracing::info!(key = key.name, "made a provisioner key");
        self.seen.listings.clear();
        let made = match client.provisioner_keys(organization).await {
            Ok(keys) => keys.into_iter().find(|made| made.name == key.name),
            Err(error) => {
                self.trouble = Some(self.failed(&error));
                return false;
            }
        };
        let Some(made) = made else { return self.outdated() };
        if !self.is_noted(&made.id).await {
            return false;
        }
        marks.id = Some(made.id);
        self.store(place, version, Some(&material), &marks).await
    }

    /// Writes the UUID of the key that was made to the status, which makes it ours beyond doubt. The pass ends with what
    /// it is for.
    async fn is_noted(&mut self, id: &str) -> bool {
        let mut record = self.seen.record.clone();
        if let Some(pending) = &mut record.pending {
            pending.id = Some(id.to_owned());
        }
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

    /// Deletes a key, if it still is the one that was meant.
    async fn delete(&mut self, at: &At, name: &str, id: &str) -> bool {
        // coderd deletes by name: look right before it.
        let listing = self.listing(at).await;
        let is_it = match &listing {
            Listing::Known(keys) => keys.iter().any(|listed| listed.key.id == id && listed.key.name == name),
            Listing::Unknown(_) | Listing::Gone => false,
        };
        self.seen.listings.insert(at.clone(), listing);
        if !is_it {
            return self.retry.is_none();
        }
        let Ok(client) = self.client(&at.place).await else { return self.outdated() };
        match client.delete_provisioner_key(at.organization.word(), name).await {
            Ok(()) => tracing::info!(key = name, "deleted a provisioner key"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let trouble = self.failed(&error);
                tracing::warn!(reason = trouble.reason, "key {name} was not deleted: {}", trouble.message);
                return false;
            }
        }
        self.seen.listings.remove(at);
        true
    }

    /// Writes material, or annotations alone, onto exactly the Secret that was decided on.
    async fn store(
        &mut self,
        place: &SecretPlace,
        version: &Version,
        material: Option<&SecretString>,
        marks: &Marks,
    ) -> bool {
        let held = self.held.get(&place.name);
        let mut annotations = secrets::annotations(marks);
        let mut data_keys = held.map(|held| secrets::data_keys(&held.annotations)).unwrap_or_default();
        data_keys.insert(place.key.clone());
        let list = data_keys.into_iter().collect::<Vec<_>>().join(",");
        annotations.insert(annotation::KEY_DATA_KEYS.to_owned(), Some(list));
        let written =
            storing::store(place, version, held, material, annotations, &self.owner, self.ctx).await;
        self.noted(&place.name, written)
    }

    /// Takes a place away that nothing reads any more: the Secret with the last of ours.
    async fn remove(&mut self, place: &SecretPlace, version: &Version) -> bool {
        let Some(held) = self.held.get(&place.name).filter(|held| storing::is_version(held, version)) else {
            return self.outdated();
        };
        let mut ours = secrets::data_keys(&held.annotations);
        ours.remove(&place.key);
        let others = held.keys().filter(|key| *key != place.key).count();
        let written = if ours.is_empty() && others == 0 {
            let removed = secret::remove(&self.ctx.client, &self.owner.namespace, &place.name, held).await;
            removed.map(|_| Some(String::new()))
        } else {
            let list = ours.into_iter().collect::<Vec<_>>().join(",");
            let change = Change {
                data: [(place.key.clone(), None)].into(),
                annotations: [(annotation::KEY_DATA_KEYS.to_owned(), Some(list))].into(),
            };
            secret::change(&self.ctx.client, &self.owner, &place.name, held, &change).await
        };
        self.noted(&place.name, written)
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
