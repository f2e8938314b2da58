//! The Secrets into which the operator stores what coderd issued: provisioner keys and proxy tokens.
//!
//! They are read live and never cached. A write replaces exactly the version that was read and decided on, so that no
//! change of others is lost and no Secret of others is written.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{
    Reason,
    names::{annotation, label},
};
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
    core::Selector,
};
use secrecy::SecretString;

use super::Context;

/// What reading some Secrets brought, by name. A Secret in neither map does not exist.
#[derive(Default)]
pub(crate) struct ReadSecrets {
    pub(crate) data: BTreeMap<String, SecretData>,
    pub(crate) failed: BTreeMap<String, Blocker>,
}

/// Reads Secrets of the owner's namespace live. One that cannot be read does not stop the others.
pub(crate) async fn read(names: BTreeSet<String>, owner: &Owner, ctx: &Context) -> ReadSecrets {
    let mut found = ReadSecrets::default();
    for name in names {
        match secret::read(&ctx.client, &owner.namespace, &name).await {
            Ok(Some(data)) => drop(found.data.insert(name, data)),
            Ok(None) => {}
            Err(error) => {
                let blocker = Blocker::new(Reason::SecretUnreadable, error.to_string());
                found.failed.insert(name, blocker);
            }
        }
    }
    found
}

/// Why the operator must not write a Secret.
pub(crate) enum NotWritable {
    /// Until a person changes the Secret or the spec.
    Blocked(Obstacle),
    /// Until garbage collection has deleted the Secret of an earlier object of the same name.
    Leftover(Blocker),
}

/// Whether the operator may write a Secret for this owner.
pub(crate) fn check_writable(name: &str, data: &SecretData, owner: &Owner) -> Result<(), NotWritable> {
    match data.ownership(owner) {
        SecretOwnership::Ours if data.immutable => Err(NotWritable::Blocked(Obstacle::Immutable)),
        SecretOwnership::Ours => Ok(()),
        SecretOwnership::Leftover => Err(NotWritable::Leftover(Blocker::new(
            Reason::AwaitingDeletion,
            format!(
                "waiting for the deletion of Secret {name}, which belongs to a deleted object of the same name"
            ),
        ))),
        SecretOwnership::Foreign => {
            let reference = &owner.reference;
            let hand_over = format!("{}={}/{}", annotation::ADOPT_BY, reference.kind, reference.name);
            Err(NotWritable::Blocked(Obstacle::Foreign(hand_over)))
        }
    }
}

/// The metadata of the Secrets that belong to this owner and bear an annotation. Empty also if they cannot be listed: they
/// are found again by a later reconcile.
pub(crate) async fn marked(owner: &Owner, annotation: &str, ctx: &Context) -> Vec<PartialObjectMeta<Secret>> {
    // Ownership is checked by UID below, so that the label of the manager is not part of the selector.
    let labels = owner.labels.clone().into_iter();
    let selector: Selector = labels.filter(|(name, _)| *name != label::MANAGED_BY).collect();
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let Ok(found) = api.list_metadata(&ListParams::default().labels_from(&selector)).await else {
        return Vec::new();
    };
    let ours = |secret: &PartialObjectMeta<Secret>| {
        secret.owner_references().iter().any(|other| other.uid == owner.reference.uid)
            && secret.annotations().contains_key(annotation)
    };
    found.items.into_iter().filter(ours).collect()
}

/// Writes a value, or annotations alone, onto exactly the version that was decided on, and returns the new version. None:
/// `stored` is another version, or the API server has one.
pub(crate) async fn store(
    place: &SecretDataRef,
    version: &Version,
    stored: Option<&SecretData>,
    value: Option<&SecretString>,
    annotations: BTreeMap<String, Option<String>>,
    owner: &Owner,
    ctx: &Context,
) -> Result<Option<String>, secret::Error> {
    match (version, stored, value) {
        (Version::Absent, None, Some(value)) => {
            let annotations: BTreeMap<_, _> =
                annotations.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            let entry = SecretEntry { name: &place.name, key: &place.key, value, annotations: &annotations };
            secret::write(&ctx.client, owner, None, &entry).await
        }
        (Version::Is(_), Some(stored), _) if is_version(stored, version) => {
            let data = value.map(|value| (place.key.clone(), Some(value.clone())));
            let change = SecretPatch { data: data.into_iter().collect(), annotations };
            secret::patch(&ctx.client, owner, &place.name, stored, &change).await
        }
        _ => Ok(None),
    }
}

/// Whether a Secret is still of the version that was decided on.
pub(crate) fn is_version(stored: &SecretData, version: &Version) -> bool {
    matches!(version, Version::Is(version) if stored.resource_version == *version)
}
