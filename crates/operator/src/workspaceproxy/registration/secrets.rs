//! The Secrets of a proxy, read live.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{CoderWorkspaceProxy, Reason, names::annotation};
use coder_k8s_core::{
    outcome::Blocker,
    provisioner::names::checksum,
    target::SecretDataRef,
    workspaceproxy::{
        TOKEN,
        registration::{
            DesiredRegistration, RegistrationMarks, RegistrationRecord, Secret, SuppliedToken, TokenFacts,
            token_id,
        },
    },
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey, secret::SecretData};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    coderd::credentials,
    controller::{
        Context,
        secrets::{self, NotWritable, ReadSecrets},
    },
};

/// Reads the wanted Secret, the recorded one, and every other with our annotations.
pub(super) async fn read(
    desired: Option<&DesiredRegistration>,
    record: &RegistrationRecord,
    object: &CoderWorkspaceProxy,
    owner: &Owner,
    ctx: &Context,
) -> (BTreeMap<SecretDataRef, Secret>, BTreeMap<String, SecretData>) {
    let mut places: BTreeSet<SecretDataRef> = desired.iter().map(|desired| desired.secret.clone()).collect();
    places.extend(record.secret.clone().filter(|_| desired.is_some()));
    let marked = secrets::marked(owner, annotation::PROXY_ID, ctx).await;
    places.extend(marked.iter().map(|found| SecretDataRef { name: found.name_any(), key: TOKEN.to_owned() }));
    let names = places.iter().map(|place| place.name.clone()).collect();
    let ReadSecrets { data, failed } = secrets::read(names, owner, ctx).await;
    let uid = object.uid().unwrap_or_default();
    let observed = |place: &SecretDataRef| match (failed.get(&place.name), data.get(&place.name)) {
        (Some(blocker), _) => Secret::Unknown(blocker.clone()),
        (None, None) => Secret::Absent,
        (None, Some(data)) => match secrets::check_writable(&place.name, data, owner) {
            Ok(()) => Secret::Ours {
                version: data.resource_version.clone(),
                holds: data.text(&place.key).map(|text| token(&text, &uid)),
                marks: marks(&data.annotations),
            },
            Err(NotWritable::Blocked(obstacle)) => Secret::Blocked(obstacle),
            Err(NotWritable::Leftover(blocker)) => Secret::Unknown(blocker),
        },
    };
    let all = places.iter().map(|place| (place.clone(), observed(place))).collect();
    (all, data)
}

/// The token that a person supplies. The error says why there is none.
pub(super) async fn given(
    object: &CoderWorkspaceProxy,
    key: &ObjectKey,
    ctx: &Context,
) -> Result<SuppliedToken, Blocker> {
    const MISSING: Reason = Reason::TokenSecretUnavailable;
    let Some(reference) = &object.spec.proxy_session_token_secret_ref else {
        return Err(Blocker::new(MISSING, "nobody supplies a token".to_owned()));
    };
    let data_key = reference.key.as_ref().map_or(TOKEN, AsRef::as_ref).to_owned();
    let place = SecretDataRef { name: reference.name.to_string(), key: data_key };
    match credentials::read(&place, &key.namespace, ctx).await? {
        Some(text) => {
            let token = token(&text, &object.uid().unwrap_or_default());
            Ok(SuppliedToken { place, token })
        }
        None => Err(credentials::missing(MISSING, &place)),
    }
}

fn token(text: &SecretString, uid: &str) -> TokenFacts {
    let text = text.expose_secret();
    TokenFacts { checksum: checksum(uid, text.as_bytes()), id: token_id(text) }
}

fn marks(annotations: &BTreeMap<String, String>) -> Option<RegistrationMarks> {
    let get = |name: &str| annotations.get(name).filter(|value| !value.is_empty()).cloned();
    Some(RegistrationMarks {
        id: get(annotation::PROXY_ID)?,
        name: get(annotation::PROXY_NAME).unwrap_or_default(),
        deployment_id: get(annotation::PROXY_DEPLOYMENT_ID),
    })
}

/// The annotations that identify a token. None removes one.
pub(super) fn annotations(marks: &RegistrationMarks) -> BTreeMap<String, Option<String>> {
    let RegistrationMarks { id, name, deployment_id } = marks;
    [
        (annotation::PROXY_ID, Some(id.clone())),
        (annotation::PROXY_NAME, Some(name.clone())),
        (annotation::PROXY_DEPLOYMENT_ID, deployment_id.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
