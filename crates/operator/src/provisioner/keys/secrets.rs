//! The Secrets of a pool, read live.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{CoderProvisioner, names::annotation};
use coder_k8s_core::provisioner::{
    keys::{KeyMarks, KeyRecord, Secret, SecretDataRef},
    names,
};
use coder_k8s_engine::{apply::Owner, secret::SecretData};
use kube::ResourceExt;

use crate::controller::{
    Context,
    secrets::{self, NotWritable, ReadSecrets},
};

/// Reads the wanted Secret, the recorded one, and every other with our annotations.
pub(super) async fn read(
    owner: &Owner,
    desired: &SecretDataRef,
    record: &KeyRecord,
    object: &CoderProvisioner,
    ctx: &Context,
) -> (BTreeMap<SecretDataRef, Secret>, BTreeMap<String, SecretData>) {
    let mut places: BTreeSet<SecretDataRef> = [desired.clone()].into();
    places.extend(record.secret.clone());
    places.extend(marked(owner, ctx).await);
    let names = places.iter().map(|place| place.name.clone()).collect();
    let ReadSecrets { data: stored, failed } = secrets::read(names, owner, ctx).await;
    let mut all = BTreeMap::new();
    let uid = object.uid().unwrap_or_default();
    for place in places {
        let observed = match (failed.get(&place.name), stored.get(&place.name)) {
            (Some(blocker), _) => Secret::Unknown(blocker.clone()),
            (None, None) => Secret::Absent,
            (None, Some(data)) => observed(&place, data, owner, &uid),
        };
        all.insert(place, observed);
    }
    (all, stored)
}

fn observed(place: &SecretDataRef, data: &SecretData, owner: &Owner, uid: &str) -> Secret {
    match secrets::check_writable(&place.name, data, owner) {
        Ok(()) => Secret::Ours {
            version: data.resource_version.clone(),
            holds: data
                .value(&place.key)
                .filter(|value| !value.is_empty())
                .map(|value| [names::checksum(uid, value), names::existing_checksum(value)]),
            marks: marks(&data.annotations),
        },
        Err(NotWritable::Blocked(obstacle)) => Secret::Blocked(obstacle),
        Err(NotWritable::Leftover(blocker)) => Secret::Unknown(blocker),
    }
}

fn marks(annotations: &BTreeMap<String, String>) -> Option<KeyMarks> {
    let get = |name: &str| annotations.get(name).filter(|value| !value.is_empty()).cloned();
    Some(KeyMarks {
        id: get(annotation::KEY_ID),
        name: get(annotation::KEY_NAME)?,
        organization: get(annotation::KEY_ORGANIZATION_ID),
        tags_hash: get(annotation::KEY_TAGS_HASH),
        deployment_id: get(annotation::KEY_DEPLOYMENT_ID),
    })
}

/// The annotations that identify a key. None removes one.
pub(super) fn annotations(marks: &KeyMarks) -> BTreeMap<String, Option<String>> {
    let KeyMarks { id, name, organization, tags_hash, deployment_id } = marks;
    [
        (annotation::KEY_ID, id.clone()),
        (annotation::KEY_NAME, Some(name.clone())),
        (annotation::KEY_ORGANIZATION_ID, organization.clone()),
        (annotation::KEY_TAGS_HASH, tags_hash.clone()),
        (annotation::KEY_DEPLOYMENT_ID, deployment_id.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The data keys that the operator wrote into a Secret.
pub(super) fn data_keys(annotations: &BTreeMap<String, String>) -> BTreeSet<String> {
    let list = annotations.get(annotation::KEY_DATA_KEYS).map(String::as_str).unwrap_or_default();
    list.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// Data keys as the annotation lists them.
pub(super) fn list(data_keys: BTreeSet<String>) -> String {
    data_keys.into_iter().collect::<Vec<_>>().join(",")
}

/// The data keys that we wrote for this object, found by the metadata of Secrets.
async fn marked(owner: &Owner, ctx: &Context) -> BTreeSet<SecretDataRef> {
    let found = secrets::marked(owner, annotation::KEY_NAME, ctx).await;
    found
        .into_iter()
        .flat_map(|secret| {
            let name = secret.name_any();
            data_keys(secret.annotations())
                .into_iter()
                .map(move |key| SecretDataRef { name: name.clone(), key })
        })
        .collect()
}
