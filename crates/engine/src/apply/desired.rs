//! The complete object that is sent for a child, and its comparison with the live one.

use std::fmt::{self, Debug};

use coder_k8s_api::names::{annotation, label};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Child, Owner, OwnerMark, contains};

/// A child with namespace, owner, labels and hash added.
pub(super) struct DesiredObject {
    pub(super) name: String,
    pub(super) object: Value,
    /// Hash of `object` before the hash was added to its annotations.
    pub(super) hash: String,
}

impl DesiredObject {
    pub(super) fn new<K: Child>(owner: &Owner, mut desired: K) -> kube::Result<Self> {
        let name = desired.name_any();
        desired.meta_mut().namespace = Some(owner.namespace.clone());
        desired.meta_mut().owner_references = match owner.mark {
            OwnerMark::ControllerReference => Some(vec![owner.reference.clone()]),
            OwnerMark::UidAnnotation(_) => None,
        };
        let labels = desired.labels_mut();
        for (key, value) in &owner.labels {
            if key == label::MANAGED_BY {
                // The watches of children select by this label: without it the operator would not see the child.
                labels.insert(key.clone(), value.clone());
            } else {
                labels.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        let object = typed(&desired)?;
        let hash = short_hash(object.to_string().as_bytes());
        let object = with(object, &["metadata", "annotations", annotation::APPLIED_HASH], json!(hash));
        Ok(Self { name, object, hash })
    }

    /// Whether a live object has all desired labels.
    pub(super) fn labels_match<K: Resource>(&self, live: &K) -> bool {
        let labels = self.object.pointer("/metadata/labels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .all(|(key, value)| live.labels().get(key).is_some_and(|found| value.as_str() == Some(found)))
    }

    /// Whether a live object contains every desired field.
    pub(super) fn is_in<K: Child>(&self, live: &K) -> kube::Result<bool> {
        Ok(contains::contains(&typed(live)?, &self.object))
    }

    /// The object with a precondition in its metadata.
    pub(super) fn with_precondition(&self, field: &str, value: Value) -> Unprintable {
        Unprintable(with(self.object.clone(), &["metadata", field], value))
    }
}

/// A patch whose `Debug`, which kube requires, does not show the object: it may be a Secret.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Unprintable(Value);

impl Debug for Unprintable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("object")
    }
}

/// An object as JSON with apiVersion and kind, which typed objects do not serialize.
fn typed<K: Child>(object: &K) -> kube::Result<Value> {
    let object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    let object = with(object, &["apiVersion"], json!(K::api_version(&())));
    Ok(with(object, &["kind"], json!(K::kind(&()))))
}

/// The object with `value` at `path`. Missing parents are created.
fn with(mut object: Value, path: &[&str], value: Value) -> Value {
    let mut field = &mut object;
    for key in path {
        if !field.is_object() {
            *field = json!({});
        }
        let Some(map) = field.as_object_mut() else { return object };
        field = map.entry(*key).or_insert(Value::Null);
    }
    *field = value;
    object
}

/// The first 16 hexadecimal digits of a SHA-256.
fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"))
}
