//! Which manager a field of a child belongs to: what earlier writes left is made removable by server-side apply.

use coder_k8s_api::names::FIELD_MANAGER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::{Api, Resource, ResourceExt, api::Patch};
use serde_json::{Value, json};

use super::{NamespacedKind, update_params};

const UPDATE: &str = "Update";
const APPLY: &str = "Apply";

/// Whether the object has fields that the field manager wrote by update.
pub(super) fn has_updates<K: Resource>(object: &K) -> bool {
    object.managed_fields().iter().any(|entry| is_ours(entry, UPDATE))
}

/// Turns the manager's `Update` entries into an `Apply` entry, on the live object. Does nothing if the object is gone.
///
/// An object that the field manager wrote by create or update lists its fields under an `Update` entry. Server-side
/// apply does not take fields from that entry, and so never removes a field that is no longer desired. With an `Apply`
/// entry the next apply owns, and removes, those fields. The object itself does not change.
pub(super) async fn migrate<K: NamespacedKind>(api: &Api<K>, name: &str) -> kube::Result<()> {
    let Some(live) = api.get_opt(name).await? else { return Ok(()) };
    if !has_updates(&live) {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "resourceVersion": live.resource_version(),
        "managedFields": merged(live.managed_fields()),
    }});
    api.patch(name, &update_params(), &Patch::Merge(&patch)).await.map(|_| ())
}

fn is_ours(entry: &ManagedFieldsEntry, operation: &str) -> bool {
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some(operation)
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// The entries, with those of the manager merged into one `Apply` entry.
fn merged(entries: &[ManagedFieldsEntry]) -> Vec<ManagedFieldsEntry> {
    let (ours, mut others): (Vec<_>, Vec<_>) =
        entries.iter().cloned().partition(|entry| is_ours(entry, UPDATE) || is_ours(entry, APPLY));
    let mut fields = json!({});
    for entry in &ours {
        if let Some(FieldsV1(more)) = &entry.fields_v1 {
            unite(&mut fields, more);
        }
    }
    if let Some(first) = ours.into_iter().next() {
        let operation = Some(APPLY.to_owned());
        others.push(ManagedFieldsEntry { operation, fields_v1: Some(FieldsV1(fields)), ..first });
    }
    others
}

fn unite(into: &mut Value, more: &Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        for (key, value) in more {
            unite(into.entry(key.clone()).or_insert_with(|| json!({})), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, subresource: Option<&str>, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.into()),
            operation: Some(operation.into()),
            subresource: subresource.map(Into::into),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }
    }

    #[test]
    fn entries_of_the_manager_become_one_and_the_others_stay() {
        let entries = [
            entry("kubectl", UPDATE, None, json!({"f:data": {}})),
            entry(FIELD_MANAGER, UPDATE, None, json!({"f:spec": {"f:a": {}}})),
            entry(FIELD_MANAGER, APPLY, None, json!({"f:spec": {"f:b": {}}})),
            entry(FIELD_MANAGER, UPDATE, Some("status"), json!({"f:status": {}})),
        ];
        let merged = merged(&entries);
        assert_eq!(merged.len(), 3);
        let ours = merged.iter().find(|entry| is_ours(entry, APPLY)).unwrap();
        assert_eq!(ours.fields_v1.as_ref().unwrap().0, json!({"f:spec": {"f:a": {}, "f:b": {}}}));
        assert!(merged.iter().any(|entry| entry.subresource.as_deref() == Some("status")));
    }
}
