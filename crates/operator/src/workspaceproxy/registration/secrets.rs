//! The Secrets of a proxy, read live.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{CoderWorkspaceProxy, names::annotation};
use coder_k8s_core::{
    outcome::Trouble,
    place::SecretPlace,
    provisioner::names::checksum,
    workspaceproxy::{
        TOKEN,
        registration::{Given, Marks, Record, Secret, Token, Wanted, token_id},
    },
};
use coder_k8s_engine::{gate::Owner, key::Key, secret::SecretData};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use crate::controller::{
    Context, places,
    secrets::{self, Held, NotOurs},
};

/// Reads the wanted Secret, the recorded one, and every other that bears our marks.
pub(super) async fn read(
    wanted: Option<&Wanted>,
    record: &Record,
    object: &CoderWorkspaceProxy,
    owner: &Owner,
    ctx: &Context,
) -> (BTreeMap<SecretPlace, Secret>, BTreeMap<String, SecretData>) {
    let mut places: BTreeSet<SecretPlace> = wanted.iter().map(|wanted| wanted.secret.clone()).collect();
    places.extend(record.secret.clone().filter(|_| wanted.is_some()));
    let marked = secrets::marked(owner, annotation::PROXY_ID, ctx).await;
    places.extend(marked.iter().map(|found| SecretPlace { name: found.name_any(), key: TOKEN.to_owned() }));
    let names = places.iter().map(|place| place.name.clone()).collect();
    let Held { data, failed } = secrets::read(names, owner, ctx).await;
    let uid = object.uid().unwrap_or_default();
    let seen = |place: &SecretPlace| match (failed.get(&place.name), data.get(&place.name)) {
        (Some(trouble), _) => Secret::Unknown(trouble.clone()),
        (None, None) => Secret::Absent,
        (None, Some(data)) => match secrets::is_ours(&place.name, data, owner) {
            Ok(()) => Secret::Ours {
                version: data.resource_version.clone(),
                holds: data.text(&place.key).map(|text| token(&text, &uid)),
                marks: marks(&data.annotations),
            },
            Err(NotOurs::Blocked(obstacle)) => Secret::Blocked(obstacle),
            Err(NotOurs::Leftover(trouble)) => Secret::Unknown(trouble),
        },
    };
    let all = places.iter().map(|place| (place.clone(), seen(place))).collect();
    (all, data)
}

/// The token that a person supplies, where one does.
pub(super) async fn given(object: &CoderWorkspaceProxy, key: &Key, ctx: &Context) -> Result<Given, Trouble> {
    const MISSING: &str = "TokenSecretUnavailable";
    let Some(reference) = &object.spec.proxy_session_token_secret_ref else {
        return Err(Trouble { reason: MISSING, message: "nobody supplies a token".to_owned() });
    };
    let data_key = reference.key.as_ref().map_or(TOKEN, AsRef::as_ref).to_owned();
    let place = SecretPlace { name: reference.name.to_string(), key: data_key };
    match places::token(&place, &key.namespace, ctx).await? {
        Some(text) => {
            let token = token(&text, &object.uid().unwrap_or_default());
            Ok(Given { place, token })
        }
        None => Err(places::missing(MISSING, &place)),
    }
}

fn token(text: &SecretString, uid: &str) -> Token {
    let text = text.expose_secret();
    Token { checksum: checksum(uid, text.as_bytes()), id: token_id(text) }
}

fn marks(annotations: &BTreeMap<String, String>) -> Option<Marks> {
    let get = |name: &str| annotations.get(name).filter(|value| !value.is_empty()).cloned();
    Some(Marks {
        id: get(annotation::PROXY_ID)?,
        name: get(annotation::PROXY_NAME).unwrap_or_default(),
        deployment_id: get(annotation::PROXY_DEPLOYMENT_ID),
    })
}

/// The annotations for marks. None takes one away.
pub(super) fn annotations(marks: &Marks) -> BTreeMap<String, Option<String>> {
    let Marks { id, name, deployment_id } = marks;
    [
        (annotation::PROXY_ID, Some(id.clone())),
        (annotation::PROXY_NAME, Some(name.clone())),
        (annotation::PROXY_DEPLOYMENT_ID, deployment_id.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
