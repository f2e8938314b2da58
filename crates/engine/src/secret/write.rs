//! Writing a Secret of ours: one key of it, on exactly the version that was read.

use std::collections::BTreeMap;

use coder_k8s_api::names::FIELD_MANAGER;
use http::{Method, Request, header::CONTENT_TYPE};
use k8s_openapi::ByteString;
use kube::Client;
use secrecy::{ExposeSecret, SecretString, zeroize::Zeroizing};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Error, SecretData};
use crate::apply::Owner;

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The name of the Secret.
    pub name: &'a str,
    /// The key of its data.
    pub key: &'a str,
    /// The value.
    pub value: &'a SecretString,
    /// Annotations beside it.
    pub annotations: &'a BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Answer {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    resource_version: String,
}

/// Writes an entry. `held` is the Secret as it was read; none: it is not there. Other keys stay.
///
/// Returns the version that came of it. None: the Secret has changed since it was read; nothing was written.
pub async fn write(
    client: &Client,
    owner: &Owner,
    held: Option<&SecretData>,
    entry: &Entry<'_>,
) -> Result<Option<String>, Error> {
    let namespace = &owner.namespace;
    let failed = |source| Error::Api {
        action: "write",
        namespace: namespace.clone(),
        name: entry.name.to_owned(),
        source: Box::new(source),
    };
    let url = format!(
        "/api/v1/namespaces/{namespace}/secrets/{}?fieldManager={FIELD_MANAGER}&force=true",
        entry.name
    );
    let body = body(owner, held, entry);
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(url)
        .header(CONTENT_TYPE, "application/apply-patch+yaml")
        .body(body.to_vec())
        .map_err(|error| failed(kube::Error::HttpError(error)))?;
    match client.request_text(request).await.map(SecretString::from) {
        Ok(answer) => {
            let answer: Result<Answer, _> = serde_json::from_str(answer.expose_secret());
            Ok(Some(answer.map(|answer| answer.metadata.resource_version).unwrap_or_default()))
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// What is sent. No Secret has the version 1: with it the server creates one, or answers 409.
fn body(owner: &Owner, held: Option<&SecretData>, entry: &Entry<'_>) -> Zeroizing<Vec<u8>> {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(rename = "apiVersion")]
        api_version: &'a str,
        kind: &'a str,
        metadata: serde_json::Value,
        r#type: &'a str,
        data: BTreeMap<&'a str, ByteString>,
    }
    let version = held.map_or("1", |held| held.resource_version.as_str());
    let metadata = json!({
        "name": entry.name,
        "namespace": owner.namespace,
        "resourceVersion": version,
        "labels": owner.labels,
        "annotations": entry.annotations,
        "ownerReferences": [owner.reference],
    });
    let value = ByteString(entry.value.expose_secret().as_bytes().to_vec());
    let body = Body {
        api_version: "v1",
        kind: "Secret",
        metadata,
        r#type: "Opaque",
        data: [(entry.key, value)].into(),
    };
    // Strings and maps of strings always serialize.
    Zeroizing::new(serde_json::to_vec(&body).unwrap_or_default())
}

/// What is to change in a Secret; None takes something away. What is not named stays.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Values by key.
    pub data: BTreeMap<String, Option<SecretString>>,
    /// Annotations.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// Changes a Secret as it was read. Returns the version that came of it. None: it has changed since; nothing was written.
pub async fn change(
    client: &Client,
    owner: &Owner,
    name: &str,
    held: &SecretData,
    change: &Change,
) -> Result<Option<String>, Error> {
    #[derive(Serialize)]
    struct Body<'a> {
        metadata: serde_json::Value,
        data: BTreeMap<&'a str, Option<ByteString>>,
    }
    let namespace = &owner.namespace;
    let failed = |source| Error::Api {
        action: "write",
        namespace: namespace.clone(),
        name: name.to_owned(),
        source: Box::new(source),
    };
    let mut metadata = json!({
        "uid": held.uid,
        "resourceVersion": held.resource_version,
        "labels": owner.labels,
        "annotations": change.annotations,
    });
    if let (None, Some(fields)) = (&held.controller, metadata.as_object_mut()) {
        // It was handed over.
        fields.insert("ownerReferences".to_owned(), json!([owner.reference]));
    }
    let bytes = |value: &SecretString| ByteString(value.expose_secret().as_bytes().to_vec());
    let data = change.data.iter().map(|(key, value)| (key.as_str(), value.as_ref().map(bytes))).collect();
    let body = Zeroizing::new(serde_json::to_vec(&Body { metadata, data }).unwrap_or_default());
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("/api/v1/namespaces/{namespace}/secrets/{name}?fieldManager={FIELD_MANAGER}"))
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .body(body.to_vec())
        .map_err(|error| failed(kube::Error::HttpError(error)))?;
    match client.request_text(request).await.map(SecretString::from) {
        Ok(answer) => {
            let answer: Result<Answer, _> = serde_json::from_str(answer.expose_secret());
            Ok(Some(answer.map(|answer| answer.metadata.resource_version).unwrap_or_default()))
        }
        Err(kube::Error::Api(status)) if status.code == 409 || status.is_not_found() => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Removes a Secret as it was read. Returns whether anything was removed.
pub async fn remove(client: &Client, namespace: &str, name: &str, held: &SecretData) -> Result<bool, Error> {
    let failed = |source| Error::Api {
        action: "remove",
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    };
    let body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": held.uid, "resourceVersion": held.resource_version},
    });
    let request = Request::delete(format!("/api/v1/namespaces/{namespace}/secrets/{name}"))
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|error| failed(kube::Error::HttpError(error)))?;
    match client.request_text(request).await.map(SecretString::from) {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(failed(error)),
    }
}
