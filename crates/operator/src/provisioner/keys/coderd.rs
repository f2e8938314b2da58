//! The queries and effects of keys in coderd, and the pods that may still use one.

use std::collections::BTreeMap;

use coder_k8s_api::Reason;
use coder_k8s_coderd::{CoderdError, Daemon, DaemonFilter, ErrorKind, ListedProvisionerKey};
use coder_k8s_core::provisioner::{
    deployment::run_of,
    keys::{
        Blocker, FoundKey, KeyIntent, KeyMarks, KeyProof, KeyRef, KeyScope, ListedKey, Listing,
        SecretDataRef, Version, tags::Tags,
    },
};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::{Api, api::ListParams};
use secrecy::SecretString;

use super::KeyReconciler;
use crate::coderd::{credential::CredentialReconciler as _, targets::other_deployment};

impl KeyReconciler {
    /// The UUID of the wanted organization. None: coderd knows no such organization.
    pub(super) async fn organization(&mut self) -> Result<Option<String>, Blocker> {
        let target = self.observed.target.clone()?;
        let client = match self.client(&target).await {
            Ok(client) => client,
            Err(blocker) => return Err(blocker.unwrap_or_else(other_deployment)),
        };
        match client.organization(&self.observed.desired.organization).await {
            Ok(found) => Ok(Some(found.id)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// What the target answers about the material in a Secret. Needs no other credential.
    pub(super) async fn proof(&mut self, place: &SecretDataRef) -> KeyProof {
        let target = match self.observed.target.clone() {
            Ok(target) => target,
            Err(blocker) => return KeyProof::Unknown(blocker),
        };
        let Some(material) = self.state.material(place) else {
            return KeyProof::Refused;
        };
        let server = match self.server(&target).await {
            Ok(server) => server,
            Err(blocker) => return KeyProof::Unknown(blocker.unwrap_or_else(other_deployment)),
        };
        match server.anonymous().provisioner_key_details(&material).await {
            Ok(key) => KeyProof::Is(found(&key)),
            Err(error) => match error.kind {
                ErrorKind::Unauthenticated { .. } | ErrorKind::Invalid { .. } => KeyProof::Refused,
                ErrorKind::NotSupported => KeyProof::Unsupported,
                _ => KeyProof::Unknown(self.failed(&error)),
            },
        }
    }

    /// The keys of an organization, and what is known of their daemons.
    pub(super) async fn listing(&mut self, scope: &KeyScope) -> Listing {
        let client = match self.client(&scope.target).await {
            Ok(client) => client,
            Err(None) => return Listing::Gone,
            Err(Some(blocker)) => return Listing::Unknown(blocker),
        };
        let organization = scope.organization.word();
        let keys = match client.provisioner_keys(organization).await {
            Ok(keys) => keys,
            Err(error) => return Listing::Unknown(self.failed(&error)),
        };
        let daemons = match client.provisioner_daemons(organization, DaemonFilter { offline: true }).await {
            Ok(daemons) => daemons,
            Err(error) => return Listing::Unknown(self.failed(&error)),
        };
        let mut by_key: BTreeMap<&str, Vec<&Daemon>> = BTreeMap::new();
        for daemon in &daemons {
            by_key.entry(&daemon.key_id).or_default().push(daemon);
        }
        let listed = |key: &ListedProvisionerKey| {
            let daemons = by_key.get(key.id.as_str());
            ListedKey {
                key: found(key),
                created: key.created_at,
                was_used: daemons.is_some(),
                last_seen: daemons.into_iter().flatten().filter_map(|daemon| daemon.last_seen_at).max(),
            }
        };
        Listing::Known(keys.iter().map(listed).collect())
    }

    /// Whether a pod is left that runs with something else than the Deployment asks for.
    pub(super) async fn old_pods(&self) -> Result<bool, Blocker> {
        let Some(workload) = &self.observed.workload else { return Ok(false) };
        let labels = coder_k8s_core::object::selector_text(&self.selector);
        let api: Api<Pod> = Api::namespaced(self.state.ctx.client.clone(), &self.state.key.namespace);
        let pods = api.list(&ListParams::default().labels(&labels)).await.map_err(|error| {
            Blocker::new(
                Reason::PodsUnknown,
                format!("cannot list the pods: {}", coder_k8s_engine::client::describe(&error)),
            )
        })?;
        let is_over = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let is_old = |pod: &Pod| {
            let template = PodTemplateSpec { metadata: Some(pod.metadata.clone()), spec: pod.spec.clone() };
            run_of(&template).is_none_or(|run| {
                let url = self.own_url || run.url == workload.run.url;
                !url || run.secret != workload.run.secret || run.checksum != workload.run.checksum
            })
        };
        Ok(pods.iter().any(|pod| !is_over(pod) && is_old(pod)))
    }

    /// Makes the announced key and stores it.
    pub(super) async fn make(
        &mut self,
        key: &KeyIntent,
        tags: &Tags,
        place: &SecretDataRef,
        version: &Version,
        marks: KeyMarks,
    ) -> bool {
        let KeyRef { name, target, details, id: _ } = &key.credential;
        let client = match self.client(target).await {
            Ok(client) => client,
            Err(blocker) => return self.state.not_performed(blocker),
        };
        let organization = details.organization.word();
        let material = match client.create_provisioner_key(organization, name, tags).await {
            Ok(material) => material,
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(reason = %blocker.reason, "key {name} was not made: {}", blocker.message);
                self.state.blocker = Some(blocker);
                return false;
            }
        };
        tracing::info!(key = name, "made a provisioner key");
        self.observed.listings.clear();
        let listed = client.provisioner_keys(organization).await;
        let stored = self.store_made(name, &material, listed, place, version, marks).await;
        if !stored {
            self.state.ctx.verify_schedule.lost(&self.state.key);
        }
        stored
    }

    /// Stores a key that was made. Its UUID comes from a listing: coderd answers with the material alone.
    async fn store_made(
        &mut self,
        name: &str,
        material: &SecretString,
        listed: Result<Vec<ListedProvisionerKey>, CoderdError>,
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
        if !self.record_id(&made.id).await {
            return false;
        }
        marks.id = Some(made.id);
        self.store(place, version, Some(material), &marks).await
    }

    /// Writes the UUID of the key that was made to the status, which makes it ours beyond doubt.
    async fn record_id(&mut self, id: &str) -> bool {
        let mut record = self.observed.record.clone();
        if let Some(pending) = &mut record.pending {
            pending.credential.id = Some(id.to_owned());
        }
        let mut status = self.state.object.status.clone().unwrap_or_default();
        record.write(&mut status);
        self.state.record_status(&status).await
    }

    /// Deletes a key, if it still is the one that was meant.
    pub(super) async fn delete(&mut self, scope: &KeyScope, name: &str, id: &str) -> bool {
        // coderd deletes by name, and somebody may have replaced the key.
        let listing = self.listing(scope).await;
        let is_it = match &listing {
            Listing::Known(keys) => keys.iter().any(|listed| listed.key.id == id && listed.key.name == name),
            Listing::Unknown(_) | Listing::Gone => false,
        };
        self.observed.listings.insert(scope.clone(), listing);
        if !is_it {
            return self.state.retry.is_none();
        }
        let Ok(client) = self.client(&scope.target).await else { return self.state.outdated() };
        match client.delete_provisioner_key(scope.organization.word(), name).await {
            Ok(()) => tracing::info!(key = name, "deleted a provisioner key"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let blocker = self.failed(&error);
                tracing::warn!(reason = %blocker.reason, "key {name} was not deleted: {}", blocker.message);
                return false;
            }
        }
        self.observed.listings.remove(scope);
        true
    }
}

fn found(key: &ListedProvisionerKey) -> FoundKey {
    let ListedProvisionerKey { id, name, organization, tags, created_at: _ } = key;
    FoundKey { id: id.clone(), name: name.clone(), organization: organization.clone(), tags: tags.clone() }
}
