//! The Secrets of a pool, read live.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{
    CoderProvisioner,
    names::{annotation, label},
};
use coder_k8s_core::provisioner::{
    keys::{Marks, Obstacle, Record, Secret, SecretPlace, Trouble},
    names,
};
use coder_k8s_engine::{
    gate::Owner,
    secret::{self, Belongs, SecretData},
};
use k8s_openapi::api::core::v1 as core;
use kube::{Api, ResourceExt, api::ListParams};

use crate::controller::Context;

/// Reads the wanted Secret, the recorded one, and every other that bears our marks.
pub(super) async fn read(
    owner: &Owner,
    wanted: &SecretPlace,
    record: &Record,
    object: &CoderProvisioner,
    ctx: &Context,
) -> (BTreeMap<SecretPlace, Secret>, BTreeMap<String, SecretData>) {
    let mut places: BTreeSet<SecretPlace> = [wanted.clone()].into();
    places.extend(record.secret.clone());
    places.extend(marked(owner, ctx).await);
    let (mut all, mut held) = (BTreeMap::new(), BTreeMap::new());
    let mut failed: BTreeMap<String, Trouble> = BTreeMap::new();
    for name in places.iter().map(|place| place.name.clone()).collect::<BTreeSet<_>>() {
        match secret::read(&ctx.client, &owner.namespace, &name).await {
            Ok(Some(data)) => drop(held.insert(name, data)),
            Ok(None) => {}
            Err(error) => {
                failed.insert(name, Trouble { reason: "SecretUnreadable", message: error.to_string() });
            }
        }
    }
    let uid = object.uid().unwrap_or_default();
    for place in places {
        let seen = match (failed.get(&place.name), held.get(&place.name)) {
            (Some(trouble), _) => Secret::Unknown(trouble.clone()),
            (None, None) => Secret::Absent,
            (None, Some(data)) => seen(&place, data, owner, &uid),
        };
        all.insert(place, seen);
    }
    (all, held)
}

fn seen(place: &SecretPlace, data: &SecretData, owner: &Owner, uid: &str) -> Secret {
    match data.belongs(owner) {
        Belongs::Ours if data.immutable => Secret::Blocked(Obstacle::Immutable),
        Belongs::Ours => Secret::Ours {
            version: data.resource_version.clone(),
            checksums: data
                .value(&place.key)
                .filter(|value| !value.is_empty())
                .map(|value| [names::checksum(uid, value), names::existing_checksum(value)]),
            marks: marks(&data.annotations),
        },
        Belongs::Leftover => Secret::Unknown(Trouble {
            reason: "AwaitingDeletion",
            message: format!("Secret {} of a deleted object of the same name is still there", place.name),
        }),
        Belongs::Others => {
            let reference = &owner.reference;
            let hand_over = format!("{}={}/{}", annotation::ADOPT_BY, reference.kind, reference.name);
            Secret::Blocked(Obstacle::Foreign(hand_over))
        }
    }
}

fn marks(annotations: &BTreeMap<String, String>) -> Option<Marks> {
    let get = |name: &str| annotations.get(name).filter(|value| !value.is_empty()).cloned();
    Some(Marks {
        id: get(annotation::KEY_ID),
        name: get(annotation::KEY_NAME)?,
        organization: get(annotation::KEY_ORGANIZATION_ID),
        tags_hash: get(annotation::KEY_TAGS_HASH),
        deployment_id: get(annotation::KEY_DEPLOYMENT_ID),
    })
}

/// The annotations for marks. None takes one away.
pub(super) fn annotations(marks: &Marks) -> BTreeMap<String, Option<String>> {
    let Marks { id, name, organization, tags_hash, deployment_id } = marks;
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

/// The places of Secrets that we wrote for this object, found by their metadata.
async fn marked(owner: &Owner, ctx: &Context) -> BTreeSet<SecretPlace> {
    let selector = owner.labels.iter().filter(|(name, _)| *name != label::MANAGED_BY);
    let selector = selector.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let api: Api<core::Secret> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let Ok(found) = api.list_metadata(&ListParams::default().labels(&selector)).await else {
        return BTreeSet::new();
    };
    let ours = found.items.into_iter().filter(|secret| {
        secret.owner_references().iter().any(|other| other.uid == owner.reference.uid)
            && secret.annotations().contains_key(annotation::KEY_NAME)
    });
    ours.flat_map(|secret| {
        let name = secret.name_any();
        data_keys(secret.annotations()).into_iter().map(move |key| SecretPlace { name: name.clone(), key })
    })
    .collect()
}
