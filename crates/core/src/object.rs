//! What holds of an object whatever its kind.

use coder_k8s_api::names::annotation;
use kube::Resource;

/// Whether an annotation stops all writes for the object. A deletion goes on.
pub fn is_paused<K: Resource>(object: &K) -> bool {
    let meta = object.meta();
    let paused = meta.annotations.as_ref().and_then(|all| all.get(annotation::PAUSED));
    meta.deletion_timestamp.is_none() && paused.is_some_and(|value| value.trim() == "true")
}

/// Whether the object is being deleted.
pub fn is_going<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether a finalizer is on the object.
pub fn is_held<K: Resource>(object: &K, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|name| name == finalizer)
}

/// The finalizers that the object is to have. None: it has them.
pub fn finalizers<K: Resource>(object: &K, finalizer: &str, wanted: bool) -> Option<Vec<String>> {
    let current = object.meta().finalizers.iter().flatten();
    match (is_held(object, finalizer), wanted) {
        (false, true) => Some(current.cloned().chain([finalizer.to_owned()]).collect()),
        (true, false) => Some(current.filter(|name| *name != finalizer).cloned().collect()),
        _ => None,
    }
}
