//! Reads, writes and deletes single Secrets, always live: no Secret is ever cached.
//!
//! Values are held in types that do not print them and erase them when dropped. A Secret that cannot be decoded is an
//! error that quotes nothing; kube's typed API would log the whole body. Whether a Secret may be written is decided by
//! the caller with [`SecretData::ownership`]. A write or deletion takes effect only on exactly the version that was read.

use std::collections::BTreeMap;

use coder_k8s_api::names::{FIELD_MANAGER, annotation};
use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Client, core::Status};
use secrecy::{ExposeSecret, SecretSlice, SecretString, zeroize::Zeroizing};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{apply::Owner, client::object_name};

/// Why a Secret could not be read, written or deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call to the API server failed.
    #[error("cannot {action} the Secret {namespace}/{name}: {}", crate::client::describe(.source))]
    Api {
        /// The verb of the message: `read`, `write` or `remove`.
        action: &'static str,
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// The failure.
        source: Box<kube::Error>,
    },
    /// The response is not a valid Secret. Nothing of it is quoted.
    #[error("the Secret {namespace}/{name} cannot be decoded")]
    Decode {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
    },
}

/// A Secret as it was read. `Debug` shows only the keys of its data.
#[derive(Clone, Default)]
pub struct SecretData {
    /// Tells incarnations of the same name apart. The precondition of a deletion.
    pub uid: String,
    /// The version that was read. The precondition of every write.
    pub resource_version: String,
    /// All annotations, of the operator and of others.
    pub annotations: BTreeMap<String, String>,
    /// Whether the API server refuses changes of the data.
    pub immutable: bool,
    controller: Option<OwnerReference>,
    values: BTreeMap<String, SecretSlice<u8>>,
}

impl std::fmt::Debug for SecretData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretData").field("keys", &self.values.keys()).finish_non_exhaustive()
    }
}

impl SecretData {
    /// The keys of the data, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(ExposeSecret::expose_secret)
    }

    /// The value of a key as text without surrounding blanks. `None` if it is missing, blank or not UTF-8.
    pub fn text(&self, key: &str) -> Option<SecretString> {
        let text = std::str::from_utf8(self.value(key)?).ok()?.trim();
        (!text.is_empty()).then(|| SecretString::from(text.to_owned()))
    }

    /// Whether the Secret belongs to `owner`.
    pub fn ownership(&self, owner: &Owner) -> SecretOwnership {
        match &self.controller {
            Some(controller) if controller.uid == owner.reference.uid => SecretOwnership::Ours,
            Some(controller)
                if controller.kind == owner.reference.kind && controller.name == owner.reference.name =>
            {
                SecretOwnership::Leftover
            }
            None if self.annotations.get(annotation::ADOPT_BY) == Some(&owner.adopt_value()) => {
                SecretOwnership::Ours
            }
            _ => SecretOwnership::Foreign,
        }
    }
}

/// Whom a Secret belongs to, from the view of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretOwnership {
    /// The owner controls it, or it was handed over to the owner with an annotation.
    Ours,
    /// It belongs to an earlier object of the owner's name; the garbage collector is about to delete it.
    Leftover,
    /// It belongs to others and must not be written.
    Foreign,
}

#[derive(Deserialize)]
struct Body {
    metadata: Meta,
    // The API server leaves out empty maps and lists, here and in the metadata.
    #[serde(default)]
    data: Option<BTreeMap<String, ByteString>>,
    #[serde(default)]
    immutable: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

/// Sends one request about a Secret and returns the body of the response. `None` if the server refused it in a way that
/// `is_answer` accepts: that the Secret is absent or has changed is an answer, not a failure.
async fn send(
    client: &Client,
    action: &'static str,
    (namespace, name): (&str, &str),
    request: http::Result<Request<Vec<u8>>>,
    is_answer: fn(&Status) -> bool,
) -> Result<Option<SecretString>, Error> {
    let response = match (object_name(name), request) {
        (Err(error), _) => Err(error),
        (Ok(_), Ok(request)) => client.request_text(request).await,
        (Ok(_), Err(error)) => Err(kube::Error::HttpError(error)),
    };
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    match response {
        Ok(text) => Ok(Some(SecretString::from(text))),
        Err(kube::Error::Api(status)) if is_answer(&status) => Ok(None),
        // The source of this error contains the bytes of the response.
        Err(kube::Error::FromUtf8(_)) => Err(Error::Decode { namespace, name }),
        Err(source) => Err(Error::Api { action, namespace, name, source: Box::new(source) }),
    }
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

/// Reads a Secret. `None` if there is none of this name.
pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Option<SecretData>, Error> {
    let request = Request::get(path(namespace, name)).body(Vec::new());
    let sent = send(client, "read", (namespace, name), request, Status::is_not_found).await?;
    let Some(text) = sent else { return Ok(None) };
    let body: Body = serde_json::from_str(text.expose_secret())
        .map_err(|_| Error::Decode { namespace: namespace.to_owned(), name: name.to_owned() })?;
    let values = body.data.unwrap_or_default().into_iter();
    let mut owners = body.metadata.owner_references.into_iter();
    Ok(Some(SecretData {
        uid: body.metadata.uid,
        resource_version: body.metadata.resource_version,
        annotations: body.metadata.annotations,
        immutable: body.immutable.unwrap_or_default(),
        controller: owners.find(|owner| owner.controller == Some(true)),
        values: values.map(|(key, value)| (key, SecretSlice::from(value.0))).collect(),
    }))
}

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

/// Applies an entry. `current` is the Secret as it was read, `None` if there is none. Keys of other managers stay.
///
/// Returns the new resourceVersion, or `None` if the Secret has changed since it was read and nothing was written.
pub async fn write(
    client: &Client,
    owner: &Owner,
    current: Option<&SecretData>,
    entry: &SecretEntry<'_>,
) -> Result<Option<String>, Error> {
    let url = format!("{}?fieldManager={FIELD_MANAGER}&force=true", path(&owner.namespace, entry.name));
    let body = body(owner, current, entry);
    let request =
        Request::patch(url).header(CONTENT_TYPE, "application/apply-patch+yaml").body(body.to_vec());
    let sent =
        send(client, "write", (&owner.namespace, entry.name), request, |status| status.code == 409).await?;
    Ok(sent.map(|response| version_of(&response)))
}

/// The resourceVersion in the response to a write. Nothing else of it is decoded: the rest contains the data. Empty if it
/// cannot be decoded: the write has succeeded all the same.
fn version_of(response: &SecretString) -> String {
    #[derive(Deserialize)]
    struct WriteResponse {
        metadata: Meta,
    }
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
    let url = format!("{}?fieldManager={FIELD_MANAGER}", path(&owner.namespace, name));
    let request =
        Request::patch(url).header(CONTENT_TYPE, "application/merge-patch+json").body(body.to_vec());
    let is_answer = |status: &Status| status.code == 409 || status.is_not_found();
    let sent = send(client, "write", (&owner.namespace, name), request, is_answer).await?;
    Ok(sent.map(|response| version_of(&response)))
}

/// Deletes a Secret, if it is unchanged since it was read. Returns whether anything was deleted.
pub async fn remove(
    client: &Client,
    namespace: &str,
    name: &str,
    current: &SecretData,
) -> Result<bool, Error> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": current.uid, "resourceVersion": current.resource_version},
    });
    let request = Request::delete(path(namespace, name))
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes());
    Ok(send(client, "remove", (namespace, name), request, Status::is_not_found).await?.is_some())
}
