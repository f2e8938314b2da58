//! Secrets: read live, one at a time and without a trace; written and removed only where they are ours.
//!
//! The value is kept in types that do not print it and wipe it when dropped. A Secret that cannot be decoded
//! is an error that quotes nothing: kube's own reading would log the whole body.

mod write;

use std::collections::BTreeMap;

use coder_k8s_api::names::annotation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde::Deserialize;

pub use self::write::{Change, Entry, change, remove, write};
use crate::apply::Owner;

/// Why a Secret could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not give or take it.
    #[error("cannot {action} the Secret {namespace}/{name}: {}", crate::client::describe(.source))]
    Api {
        /// What was tried.
        action: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What happened.
        source: Box<kube::Error>,
    },
    /// It is not a Secret as Kubernetes writes one. The content is not quoted.
    #[error("the Secret {namespace}/{name} cannot be decoded")]
    Decode {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A Secret. `Debug` shows the keys of its data alone.
#[derive(Clone, Default)]
pub struct SecretData {
    /// Its uid.
    pub uid: String,
    /// The version that was read.
    pub resource_version: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether nobody may change its data any more.
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
    /// The names of its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The value under a key.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(ExposeSecret::expose_secret)
    }

    /// The value under a key as text without outer blanks. None: there is none, or nothing else in it.
    pub fn text(&self, key: &str) -> Option<SecretString> {
        let text = std::str::from_utf8(self.value(key)?).ok()?.trim();
        (!text.is_empty()).then(|| SecretString::from(text.to_owned()))
    }

    /// Whose it is, as seen by an owner.
    pub fn belongs(&self, owner: &Owner) -> Belongs {
        match &self.controller {
            Some(controller) if controller.uid == owner.reference.uid => Belongs::Ours,
            Some(controller)
                if controller.kind == owner.reference.kind && controller.name == owner.reference.name =>
            {
                Belongs::Leftover
            }
            None if self.annotations.get(annotation::ADOPT_BY) == Some(&owner.mark()) => Belongs::Ours,
            _ => Belongs::Others,
        }
    }
}

/// Whose a Secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// The owner's, or given to it.
    Ours,
    /// That of an earlier object of the same name; the garbage collector will remove it.
    Leftover,
    /// Somebody else's.
    Others,
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

/// Reads a Secret. None: there is none of that name.
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
        // Its cause would hold the bytes of the answer.
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
