//! Reads, writes and deletes single Secrets, always live: no Secret is ever cached.
//!
//! Values are held in types that do not print them and erase them when dropped. A Secret that cannot be decoded is an
//! error that quotes nothing; kube's typed API would log the whole body. Whether a Secret may be written is decided by
//! the caller with [`SecretData::ownership`].

mod write;

use std::collections::BTreeMap;

use coder_k8s_api::names::annotation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde::Deserialize;

pub use self::write::{SecretEntry, SecretPatch, patch, remove, write};
use crate::apply::Owner;

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
    #[serde(default)]
    data: Option<BTreeMap<String, k8s_openapi::ByteString>>,
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

/// Reads a Secret. `None` if there is none of this name.
pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Option<SecretData>, Error> {
    let api = |source| Error::Api {
        action: "read",
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    };
    let url = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    let request =
        http::Request::get(url).body(Vec::new()).map_err(|error| api(kube::Error::HttpError(error)))?;
    let text = match client.request_text(request).await {
        Ok(text) => text,
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
        // The source of this error contains the bytes of the response.
        Err(kube::Error::FromUtf8(_)) => {
            return Err(Error::Decode { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        Err(error) => return Err(api(error)),
    };
    let text = SecretString::from(text);
    let body: Body = serde_json::from_str(text.expose_secret())
        .map_err(|_| Error::Decode { namespace: namespace.to_owned(), name: name.to_owned() })?;
    let values =
        body.data.unwrap_or_default().into_iter().map(|(key, value)| (key, SecretSlice::from(value.0)));
    let controls = body.metadata.owner_references.into_iter().find(|owner| owner.controller == Some(true));
    Ok(Some(SecretData {
        uid: body.metadata.uid,
        resource_version: body.metadata.resource_version,
        annotations: body.metadata.annotations,
        immutable: body.immutable.unwrap_or_default(),
        controller: controls,
        values: values.collect(),
    }))
}
