//! Who refers to whom: from a Secret, ConfigMap, Namespace or control plane to the objects that name it.
//!
//! Kept by the watches of the root kinds, not by reconciles, so that it is right before the first reconcile.

use std::collections::{BTreeSet, HashMap};

use parking_lot::RwLock;

use crate::key::Key;

/// The reverse index. What is referred to is a [`Key`] as well.
#[derive(Debug, Default)]
pub struct References {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_target: HashMap<Key, BTreeSet<Key>>,
    by_source: HashMap<Key, BTreeSet<Key>>,
}

impl References {
    /// Replaces what `source` refers to. An empty list forgets the source.
    pub fn set(&self, source: &Key, targets: BTreeSet<Key>) {
        let mut inner = self.inner.write();
        let old = if targets.is_empty() {
            inner.by_source.remove(source)
        } else {
            inner.by_source.insert(source.clone(), targets.clone())
        };
        for gone in old.iter().flatten().filter(|target| !targets.contains(target)) {
            if let Some(sources) = inner.by_target.get_mut(gone) {
                sources.remove(source);
                if sources.is_empty() {
                    inner.by_target.remove(gone);
                }
            }
        }
        for target in targets {
            inner.by_target.entry(target).or_default().insert(source.clone());
        }
    }

    /// The objects that refer to `target`.
    pub fn of(&self, target: &Key) -> Vec<Key> {
        self.inner.read().by_target.get(target).into_iter().flatten().cloned().collect()
    }

    /// The objects that refer to anything of a kind.
    pub fn of_kind(&self, kind: &str) -> BTreeSet<Key> {
        let inner = self.inner.read();
        inner
            .by_target
            .iter()
            .filter(|(target, _)| target.kind == kind)
            .flat_map(|(_, sources)| sources.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str) -> Key {
        Key::new("Secret", "ns", name)
    }

    fn root(name: &str) -> Key {
        Key::new("CoderControlPlane", "ns", name)
    }

    #[test]
    fn a_new_set_replaces_the_old_one() {
        let index = References::default();
        index.set(&root("a"), [secret("license"), secret("db")].into());
        index.set(&root("b"), [secret("db")].into());
        assert_eq!(index.of(&secret("db")), [root("a"), root("b")]);
        index.set(&root("a"), [secret("license-2")].into());
        assert_eq!(index.of(&secret("license")), []);
        assert_eq!(index.of(&secret("db")), [root("b")]);
        assert_eq!(index.of_kind("Secret"), [root("a"), root("b")].into());
    }

    #[test]
    fn nothing_is_kept_of_an_object_that_went() {
        let index = References::default();
        index.set(&root("a"), [secret("db")].into());
        index.set(&root("a"), BTreeSet::new());
        let inner = index.inner.read();
        assert!(inner.by_target.is_empty() && inner.by_source.is_empty());
    }
}
