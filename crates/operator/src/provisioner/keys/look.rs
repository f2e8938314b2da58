//! What is looked at when a decision asks for it.

use std::collections::BTreeMap;

use coder_k8s_coderd::{Daemon, Daemons, Kind, ProvisionerKey};
use coder_k8s_core::provisioner::{
    deployment::run_of,
    keys::{At, Found, Listed, Listing, Look, Proof, SecretPlace, Trouble},
};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::{Api, api::ListParams};

use super::Dealings;
use crate::controller::places::{Unasked, told};

impl Dealings {
    /// Looks, and notes what was seen.
    pub(super) async fn look_at(&mut self, look: Look) {
        match look {
            Look::Organization => self.seen.organization = Some(self.organization().await),
            Look::Proof(place) => {
                let proof = self.proof(&place).await;
                self.seen.proofs.insert(place, proof);
            }
            Look::Keys(at) => {
                let listing = self.listing(&at).await;
                self.seen.listings.insert(at, listing);
            }
            Look::Pods => self.seen.old_pods = Some(self.old_pods().await),
        }
    }

    async fn organization(&mut self) -> Result<Option<String>, Trouble> {
        let target = self.seen.target.clone()?;
        let client = match self.client(&target).await {
            Ok(client) => client,
            Err(unasked) => return Err(told(unasked)),
        };
        match client.organization(&self.seen.wanted.organization).await {
            Ok(found) => Ok(Some(found.id)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// What the target makes of the material in a Secret. Needs no credential but the material.
    async fn proof(&mut self, place: &SecretPlace) -> Proof {
        let target = match self.seen.target.clone() {
            Ok(target) => target,
            Err(trouble) => return Proof::Unknown(trouble),
        };
        let Some(material) = self.course.held.get(&place.name).and_then(|held| held.text(&place.key)) else {
            return Proof::Refused;
        };
        let client = match self.anonymous(&target).await {
            Ok(client) => client,
            Err(unasked) => return Proof::Unknown(told(unasked)),
        };
        match client.provisioner_key_details(&material).await {
            Ok(key) => Proof::Is(found(&key)),
            Err(error) => match error.kind {
                Kind::Unauthenticated { .. } | Kind::Invalid { .. } => Proof::Refused,
                Kind::NotSupported => Proof::Unsupported,
                _ => Proof::Unknown(self.failed(&error)),
            },
        }
    }

    /// The keys of an organization, and what is known of their daemons.
    pub(super) async fn listing(&mut self, at: &At) -> Listing {
        let client = match self.client(&at.place).await {
            Ok(client) => client,
            Err(Unasked::Gone) => return Listing::Gone,
            Err(Unasked::Unknown(trouble)) => return Listing::Unknown(trouble),
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
            Listed {
                key: found(key),
                created: key.created_at,
                was_used: daemons.is_some(),
                last_seen: daemons.into_iter().flatten().filter_map(|daemon| daemon.last_seen_at).max(),
            }
        };
        Listing::Known(keys.iter().map(listed).collect())
    }

    /// Whether a pod is left that runs with something else than the Deployment asks for.
    async fn old_pods(&self) -> Result<bool, Trouble> {
        let Some(workload) = &self.seen.workload else { return Ok(false) };
        let labels = self.selector.iter().map(|(name, value)| format!("{name}={value}"));
        let labels = labels.collect::<Vec<_>>().join(",");
        let api: Api<Pod> = Api::namespaced(self.course.ctx.client.clone(), &self.course.key.namespace);
        let pods = api.list(&ListParams::default().labels(&labels)).await.map_err(|error| Trouble {
            reason: "PodsUnknown",
            message: format!("cannot list the pods: {}", coder_k8s_engine::client::describe(&error)),
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

fn found(key: &ProvisionerKey) -> Found {
    let ProvisionerKey { id, name, organization, tags, created_at: _ } = key;
    Found { id: id.clone(), name: name.clone(), organization: organization.clone(), tags: tags.clone() }
}
