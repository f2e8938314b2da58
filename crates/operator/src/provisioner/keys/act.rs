//! What is done in coderd.

use coder_k8s_coderd::{Error, ProvisionerKey};
use coder_k8s_core::provisioner::keys::{
    KeyIntent, KeyMarks, KeyScope, Listing, SecretDataRef, Version, tags::Tags,
};
use secrecy::SecretString;

use super::KeyReconciler;
use crate::coderd::credential::CredentialReconciler as _;

impl KeyReconciler {
    /// Makes the announced key and stores it.
    pub(super) async fn make(
        &mut self,
        key: &KeyIntent,
        tags: &Tags,
        place: &SecretDataRef,
        version: &Version,
        marks: KeyMarks,
    ) -> bool {
        let client = match self.client(&key.place).await {
            Ok(client) => client,
            Err(blocker) => return self.state.not_performed(blocker),
        };
        let organization = key.organization.word();
        let material = match client.create_provisioner_key(organization, &key.name, tags).await {
            Ok(material) => material,
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(reason = %blocker.reason, "key {} was not made: {}", key.name, blocker.message);
                self.state.blocker = Some(blocker);
                return false;
            }
        };
        tracing::info!(key = key.name, "made a provisioner key");
        self.observed.listings.clear();
        let listed = client.provisioner_keys(organization).await;
        let kept = self.keep(&key.name, &material, listed, place, version, marks).await;
        if !kept {
            self.state.ctx.verify_schedule.lost(&self.state.key);
        }
        kept
    }

    /// Stores a key that was made, of which coderd tells the UUID.
    async fn keep(
        &mut self,
        name: &str,
        material: &SecretString,
        listed: Result<Vec<ProvisionerKey>, Error>,
        place: &SecretDataRef,
        version: &Version,
        mut marks: KeyMarks,
    ) -> bool {
        let made = match listed {
            Ok(keys) => keys.into_iter().find(|made| made.name == name),
            Err(error) => {
                self.state.blocker = Some(self.failed(&error));
                return false;
            }
        };
        let Some(made) = made else { return self.state.outdated() };
        if !self.record_status(&made.id).await {
            return false;
        }
        marks.id = Some(made.id);
        self.store(place, version, Some(material), &marks).await
    }

    /// Writes the UUID of the key that was made to the status, which makes it ours beyond doubt. The pass ends with what
    /// it is for.
    async fn record_status(&mut self, id: &str) -> bool {
        let mut record = self.observed.record.clone();
        if let Some(pending) = &mut record.pending {
            pending.id = Some(id.to_owned());
        }
        let mut status = self.state.object.status.clone().unwrap_or_default();
        record.write(&mut status);
        self.state.record_status(&status).await
    }

    /// Deletes a key, if it still is the one that was meant.
    pub(super) async fn delete(&mut self, at: &KeyScope, name: &str, id: &str) -> bool {
        // coderd deletes by name: look right before it.
        let listing = self.listing(at).await;
        let is_it = match &listing {
            Listing::Known(keys) => keys.iter().any(|listed| listed.key.id == id && listed.key.name == name),
            Listing::Unknown(_) | Listing::Gone => false,
        };
        self.observed.listings.insert(at.clone(), listing);
        if !is_it {
            return self.state.retry.is_none();
        }
        let Ok(client) = self.client(&at.place).await else { return self.state.outdated() };
        match client.delete_provisioner_key(at.organization.word(), name).await {
            Ok(()) => tracing::info!(key = name, "deleted a provisioner key"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(reason = %blocker.reason, "key {name} was not deleted: {}", blocker.message);
                return false;
            }
        }
        self.observed.listings.remove(at);
        true
    }
}
