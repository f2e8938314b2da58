//! Writes the status of an object: by server-side apply, only if it changes, and only onto the version from which it was
//! computed, so that neither a newer spec nor a recreated object gets the status of an older one.

use std::fmt::Debug;

use coder_k8s_api::names::FIELD_MANAGER;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};

/// The result of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrite {
    /// The object already has this status; nothing was sent.
    Unchanged,
    /// The status was written.
    Changed,
    /// The object has changed or is gone since it was read; nothing was written.
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
    /// The precondition. The API server ignores a uid in a patch of the status subresource, but checks this field.
    resource_version: Option<&'a str>,
}

/// Writes `next` as the status of `object`, whose status is `current`.
pub async fn write<K, S>(
    client: &Client,
    object: &K,
    current: Option<&S>,
    next: &S,
) -> kube::Result<StatusWrite>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    S: Serialize + Debug + PartialEq,
{
    if current == Some(next) {
        return Ok(StatusWrite::Unchanged);
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
        Ok(_) => Ok(StatusWrite::Changed),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            Ok(StatusWrite::Outdated)
        }
        Err(error) => Err(error),
    }
}
