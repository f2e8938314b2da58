//! Labels, finalizers and deletion of an object of any kind.

use std::collections::BTreeMap;

use coder_k8s_api::names::{annotation, label};
use kube::{Resource, ResourceExt};

use crate::names::instance_label;

/// The deletion of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// Whether `--cleanup-timeout` has passed since clean-up could begin, and it was tried: nothing is tried any more, and
    /// what is left is abandoned.
    pub overdue: bool,
}

/// The labels of all children of an object, which also select its pods.
pub fn selector<K: Resource>(object: &K, component: &str) -> BTreeMap<String, String> {
    [
        (label::NAME.to_owned(), component.to_owned()),
        (label::INSTANCE.to_owned(), instance_label(&object.name_any())),
        (label::MANAGED_BY.to_owned(), label::MANAGER.to_owned()),
    ]
    .into()
}

/// The labels as a label selector in text form, for lists and for the scale subresource.
pub fn selector_text<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Whether an annotation stops all writes for the object, but for its status and the end of workspace RBAC that lost its
/// consent. It does not stop a deletion.
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

/// The finalizers to write so that the object has this one, or not, as desired. None: nothing has to change.
pub fn finalizers<K: Resource>(object: &K, finalizer: &str, desired: bool) -> Option<Vec<String>> {
    let current = object.meta().finalizers.iter().flatten();
    match (has_finalizer(object, finalizer), desired) {
        (false, true) => Some(current.cloned().chain([finalizer.to_owned()]).collect()),
        (true, false) => Some(current.filter(|name| *name != finalizer).cloned().collect()),
        _ => None,
    }
}
