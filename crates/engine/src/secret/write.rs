//! Writes and deletes Secrets that the operator owns, always on exactly the version that was read.

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

/// One entry of a Secret's data, and the annotations that describe it.
#[derive(Clone, Copy, Debug)]
pub struct SecretEntry<'a> {
    /// Name of the Secret.
    pub name: &'a str,
    /// Key of the entry in the data.
    pub key: &'a str,
    /// Value of the entry, not encoded.
    pub value: &'a SecretString,
    /// Annotations of the Secret that are applied together with the value.
    pub annotations: &'a BTreeMap<String, String>,
}

/// The only part of a response that is decoded: the rest contains the data.
#[derive(Deserialize)]
struct WriteResponse {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    resource_version: String,
}

/// Applies an entry. `current` is the Secret as it was read, `None` if there is none. Keys of other managers stay.
///
/// Returns the new resourceVersion, or `None` if the Secret has changed since it was read and nothing was written.
pub async fn write(
    client: &Client,
    owner: &Owner,
    current: Option<&SecretData>,
    entry: &SecretEntry<'_>,
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
    let body = body(owner, current, entry);
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(url)
        .header(CONTENT_TYPE, "application/apply-patch+yaml")
        .body(body.to_vec())
        .map_err(|error| failed(kube::Error::HttpError(error)))?;
    match client.request_text(request).await.map(SecretString::from) {
        Ok(response) => Ok(Some(version_of(&response))),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// The resourceVersion in the response to a write. Empty if it cannot be decoded: the write has succeeded all the same.
fn version_of(response: &SecretString) -> String {
    let decoded: Result<WriteResponse, _> = serde_json::from_str(response.expose_secret());
    decoded.map(|response| response.metadata.resource_version).unwrap_or_default()
}

/// The body of an apply. No Secret has version 1: the server creates the Secret, or responds with 409 if it exists.
fn body(owner: &Owner, current: Option<&SecretData>, entry: &SecretEntry<'_>) -> Zeroizing<Vec<u8>> {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(rename = "apiVersion")]
        api_version: &'a str,
        kind: &'a str,
        metadata: serde_json::Value,
        r#type: &'a str,
        data: BTreeMap<&'a str, ByteString>,
    }
    let version = current.map_or("1", |current| current.resource_version.as_str());
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
    // invariant: strings and maps of strings always serialize.
    Zeroizing::new(serde_json::to_vec(&body).unwrap_or_default())
}

/// A change of a Secret. `None` removes an entry; entries that are not named stay.
#[derive(Clone, Debug, Default)]
pub struct SecretPatch {
    /// Values of the data, not encoded.
    pub data: BTreeMap<String, Option<SecretString>>,
    /// Annotations of the Secret.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// Patches a Secret.
///
/// Returns the new resourceVersion, or `None` if the Secret has changed since it was read and nothing was written.
pub async fn patch(
    client: &Client,
    owner: &Owner,
    name: &str,
    current: &SecretData,
    patch: &SecretPatch,
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
        "uid": current.uid,
        "resourceVersion": current.resource_version,
        "labels": owner.labels,
        "annotations": patch.annotations,
    });
    if let (None, Some(fields)) = (&current.controller, metadata.as_object_mut()) {
        // Nobody controls it, so that it was handed over: take it into ownership.
        fields.insert("ownerReferences".to_owned(), json!([owner.reference]));
    }
    let bytes = |value: &SecretString| ByteString(value.expose_secret().as_bytes().to_vec());
    let data = patch.data.iter().map(|(key, value)| (key.as_str(), value.as_ref().map(bytes))).collect();
    let body = Zeroizing::new(serde_json::to_vec(&Body { metadata, data }).unwrap_or_default());
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("/api/v1/namespaces/{namespace}/secrets/{name}?fieldManager={FIELD_MANAGER}"))
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .body(body.to_vec())
        .map_err(|error| failed(kube::Error::HttpError(error)))?;
    match client.request_text(request).await.map(SecretString::from) {
        Ok(response) => Ok(Some(version_of(&response))),
        Err(kube::Error::Api(status)) if status.code == 409 || status.is_not_found() => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Deletes a Secret, if it is unchanged since it was read. Returns whether anything was deleted.
pub async fn remove(
    client: &Client,
    namespace: &str,
    name: &str,
    current: &SecretData,
) -> Result<bool, Error> {
    let failed = |source| Error::Api {
        action: "remove",
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    };
    let body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": current.uid, "resourceVersion": current.resource_version},
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
