//! Writing status: by server-side apply, only when it changes, and only onto the incarnation it was computed for.

use std::fmt::Debug;

use coder_k8s_api::names::FIELD_MANAGER;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};

/// What became of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was so already; nothing was sent.
    Unchanged,
    /// It was written.
    Changed,
    /// The object has moved on or is gone: what was computed no longer applies.
    Outdated,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusPatch<'a, S> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Metadata<'a>,
    status: &'a S,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    name: &'a str,
    /// The API server compares a uid in a status with nothing; a version it does compare.
    resource_version: Option<&'a str>,
}

/// Writes `next` as the status of `object`, which has `current`.
pub async fn write<K, S>(client: &Client, object: &K, current: Option<&S>, next: &S) -> kube::Result<Written>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    S: Serialize + Debug + PartialEq,
{
    if current == Some(next) {
        return Ok(Written::Unchanged);
    }
    let name = object.name_any();
    let patch = StatusPatch {
        api_version: &K::api_version(&()),
        kind: &K::kind(&()),
        metadata: Metadata { name: &name, resource_version: object.meta().resource_version.as_deref() },
        status: next,
    };
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    match api.patch_status(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&patch)).await {
        Ok(_) => Ok(Written::Changed),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            Ok(Written::Outdated)
        }
        Err(error) => Err(error),
    }
}
