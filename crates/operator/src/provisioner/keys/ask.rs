//! What is looked at when a decision asks for it.

use coder_k8s_api::Reason;
use std::collections::BTreeMap;

use coder_k8s_coderd::{Daemon, Daemons, ErrorKind, ProvisionerKey};
use coder_k8s_core::provisioner::{
    deployment::run_of,
    keys::{Blocker, FoundKey, KeyProof, KeyQuery, KeyScope, ListedKey, Listing, SecretDataRef},
};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::{Api, api::ListParams};

use super::KeyReconciler;
use crate::coderd::targets::other_deployment;

impl KeyReconciler {
    /// Looks, and notes what was seen.
    pub(super) async fn look_at(&mut self, look: KeyQuery) {
        match look {
            KeyQuery::Organization => self.observed.organization = Some(self.organization().await),
            KeyQuery::KeyProof(place) => {
                let proof = self.proof(&place).await;
                self.observed.proofs.insert(place, proof);
            }
            KeyQuery::Keys(at) => {
                let listing = self.listing(&at).await;
                self.observed.listings.insert(at, listing);
            }
            KeyQuery::Pods => self.observed.old_pods = Some(self.old_pods().await),
        }
    }

    async fn organization(&mut self) -> Result<Option<String>, Blocker> {
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

    /// What the target makes of the material in a Secret. Needs no credential but the material.
    async fn proof(&mut self, place: &SecretDataRef) -> KeyProof {
        let target = match self.observed.target.clone() {
            Ok(target) => target,
            Err(blocker) => return KeyProof::Unknown(blocker),
        };
        let Some(material) = self.state.held.get(&place.name).and_then(|held| held.text(&place.key)) else {
            return KeyProof::Refused;
        };
        let server = match self.server(&target).await {
            Ok(server) => server,
            Err(blocker) => return KeyProof::Unknown(blocker.unwrap_or_else(other_deployment)),
        };
        match server.provisioner_key_details(&material).await {
            Ok(key) => KeyProof::Is(found(&key)),
            Err(error) => match error.kind {
                ErrorKind::Unauthenticated { .. } | ErrorKind::Invalid { .. } => KeyProof::Refused,
                ErrorKind::NotSupported => KeyProof::Unsupported,
                _ => KeyProof::Unknown(self.failed(&error)),
            },
        }
    }

    /// The keys of an organization, and what is known of their daemons.
    pub(super) async fn listing(&mut self, at: &KeyScope) -> Listing {
        let client = match self.client(&at.place).await {
            Ok(client) => client,
            Err(None) => return Listing::Gone,
            Err(Some(blocker)) => return Listing::Unknown(blocker),
        };
        let organization = at.organization.word();
        let keys = match client.provisioner_keys(organization).await {
            Ok(keys) => keys,
            Err(error) => return Listing::Unknown(self.failed(&error)),
        };
        let daemons = match client.provisioner_daemons(organization, Daemons { offline: true }).await {
            Ok(daemons) => daemons,
            Err(error) => return Listing::Unknown(self.failed(&error)),
        };
        let mut by_key: BTreeMap<&str, Vec<&Daemon>> = BTreeMap::new();
        for daemon in &daemons {
            by_key.entry(&daemon.key_id).or_default().push(daemon);
        }
        let listed = |key: &ProvisionerKey| {
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
    async fn old_pods(&self) -> Result<bool, Blocker> {
        let Some(workload) = &self.observed.workload else { return Ok(false) };
        let labels = self.selector.iter().map(|(name, value)| format!("{name}={value}"));
        let labels = labels.collect::<Vec<_>>().join(",");
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
}

fn found(key: &ProvisionerKey) -> FoundKey {
    let ProvisionerKey { id, name, organization, tags, created_at: _ } = key;
    FoundKey { id: id.clone(), name: name.clone(), organization: organization.clone(), tags: tags.clone() }
}
