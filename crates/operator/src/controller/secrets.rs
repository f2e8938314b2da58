//! Secrets of ours with what an object holds of coderd: read live, and written onto exactly the version that was read.

use coder_k8s_api::Reason;
use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::names::{annotation, label};
use coder_k8s_core::{
    outcome::Blocker,
    target::{Obstacle, SecretDataRef, Version},
};
use coder_k8s_engine::{
    apply::Owner,
    secret::{self, SecretData, SecretEntry, SecretOwnership, SecretPatch},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PartialObjectMeta},
};
use secrecy::SecretString;

use super::Context;

/// Secrets as they were read, by name.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) data: BTreeMap<String, SecretData>,
    pub(crate) failed: BTreeMap<String, Blocker>,
}

/// Reads Secrets.
pub(crate) async fn read(names: BTreeSet<String>, owner: &Owner, ctx: &Context) -> Held {
    let mut held = Held::default();
    for name in names {
        match secret::read(&ctx.client, &owner.namespace, &name).await {
            Ok(Some(data)) => drop(held.data.insert(name, data)),
            Ok(None) => {}
            Err(error) => {
                let blocker = Blocker::new(Reason::SecretUnreadable, error.to_string());
                held.failed.insert(name, blocker);
            }
        }
    }
    held
}

/// Why a Secret is not ours to write.
pub(crate) enum NotOurs {
    /// As long as nobody changes that.
    Blocked(Obstacle),
    /// For a while.
    Leftover(Blocker),
}

/// Whether a Secret is ours to write.
pub(crate) fn is_ours(name: &str, data: &SecretData, owner: &Owner) -> Result<(), NotOurs> {
    match data.ownership(owner) {
        SecretOwnership::Ours if data.immutable => Err(NotOurs::Blocked(Obstacle::Immutable)),
        SecretOwnership::Ours => Ok(()),
        SecretOwnership::Leftover => Err(NotOurs::Leftover(Blocker::new(
            Reason::AwaitingDeletion,
            format!("Secret {name} of a deleted object of the same name is still there"),
        ))),
        SecretOwnership::Foreign => {
            let reference = &owner.reference;
            let hand_over = format!("{}={}/{}", annotation::ADOPT_BY, reference.kind, reference.name);
            Err(NotOurs::Blocked(Obstacle::Foreign(hand_over)))
        }
    }
}

/// The Secrets that we wrote for this object and that bear an annotation, found by their metadata.
pub(crate) async fn marked(owner: &Owner, annotation: &str, ctx: &Context) -> Vec<PartialObjectMeta<Secret>> {
    let selector = owner.labels.iter().filter(|(name, _)| *name != label::MANAGED_BY);
    let selector = selector.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let Ok(found) = api.list_metadata(&ListParams::default().labels(&selector)).await else {
        return Vec::new();
    };
    let ours = |secret: &PartialObjectMeta<Secret>| {
        secret.owner_references().iter().any(|other| other.uid == owner.reference.uid)
            && secret.annotations().contains_key(annotation)
    };
    found.items.into_iter().filter(ours).collect()
}

/// Writes a value, or annotations alone, onto exactly the Secret that was decided on. None: it is no longer that one.
pub(crate) async fn store(
    place: &SecretDataRef,
    version: &Version,
    held: Option<&SecretData>,
    value: Option<&SecretString>,
    annotations: BTreeMap<String, Option<String>>,
    owner: &Owner,
    ctx: &Context,
) -> Result<Option<String>, secret::Error> {
    match (version, held, value) {
        (Version::Absent, None, Some(value)) => {
            let annotations: BTreeMap<_, _> =
                annotations.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            let entry = SecretEntry { name: &place.name, key: &place.key, value, annotations: &annotations };
            secret::write(&ctx.client, owner, None, &entry).await
        }
        (Version::Is(_), Some(held), _) if is_version(held, version) => {
            let data = value.map(|value| (place.key.clone(), Some(value.clone())));
            let change = SecretPatch { data: data.into_iter().collect(), annotations };
            secret::patch(&ctx.client, owner, &place.name, held, &change).await
        }
        _ => Ok(None),
    }
}

/// Whether a Secret is the one that was decided on.
pub(crate) fn is_version(held: &SecretData, version: &Version) -> bool {
    matches!(version, Version::Is(version) if held.resource_version == *version)
}
