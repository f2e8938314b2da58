//! What holds of an object whatever its kind.

use std::collections::BTreeMap;

use coder_k8s_api::names::{annotation, label};
use kube::{Resource, ResourceExt};

use crate::names::instance_label;

/// What is known of an object that is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// Whether the time for cleaning up is over.
    pub overdue: bool,
}

/// The labels that all children of an object bear and that select its pods.
pub fn selector<K: Resource>(object: &K, component: &str) -> BTreeMap<String, String> {
    [
        (label::NAME.to_owned(), component.to_owned()),
        (label::INSTANCE.to_owned(), instance_label(&object.name_any())),
        (label::MANAGED_BY.to_owned(), label::MANAGER.to_owned()),
    ]
    .into()
}

/// Whether an annotation stops all writes for the object. A deletion goes on.
pub fn is_paused<K: Resource>(object: &K) -> bool {
    let meta = object.meta();
    let paused = meta.annotations.as_ref().and_then(|all| all.get(annotation::PAUSED));
    meta.deletion_timestamp.is_none() && paused.is_some_and(|value| value.trim() == "true")
}

/// Whether the object is being deleted.
pub fn is_deleting<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether an object was there before another one: it is older, or has the smaller UID of two of the same second.
pub fn is_before<K: Resource>(object: &K, other: &K) -> bool {
    let age = |object: &K| (object.creation_timestamp(), object.uid());
    age(object) < age(other)
}

/// Whether a finalizer is on the object.
pub fn has_finalizer<K: Resource>(object: &K, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|name| name == finalizer)
}

/// The finalizers that the object is to have. None: it has them.
pub fn finalizers<K: Resource>(object: &K, finalizer: &str, desired: bool) -> Option<Vec<String>> {
    let current = object.meta().finalizers.iter().flatten();
    match (has_finalizer(object, finalizer), desired) {
        (false, true) => Some(current.cloned().chain([finalizer.to_owned()]).collect()),
        (true, false) => Some(current.filter(|name| *name != finalizer).cloned().collect()),
        _ => None,
    }
}
