//! The identity of an object, as the queue and the indexes use it.

use std::fmt;

use kube::{Resource, ResourceExt};

/// One object of one kind. Two incarnations under the same name have the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind, such as `CoderControlPlane`.
    pub kind: &'static str,
    /// The namespace; empty for a kind without namespaces.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// The key of a name in a namespace.
    pub fn new(kind: &'static str, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object.
    pub fn of<K: Resource>(kind: &'static str, object: &K) -> Self {
        Self::new(kind, object.namespace().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}
