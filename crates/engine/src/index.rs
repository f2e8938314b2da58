//! The reverse index of references: from a Secret, ConfigMap, Namespace or custom resource to the objects that
//! refer to it.
//!
//! The watches of the referring kinds maintain it, not their reconciles, so that it is complete before the first
//! reconcile. It does not know whether a referenced object exists.

use std::collections::{BTreeSet, HashMap};

use parking_lot::RwLock;

use crate::cache::ObjectKey;

/// Which objects (sources) refer to which objects (targets).
#[derive(Debug, Default)]
pub struct ReferenceIndex {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_target: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    by_source: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl ReferenceIndex {
    /// Replaces the targets of `source`. An empty set removes the source.
    pub fn set(&self, source: &ObjectKey, targets: BTreeSet<ObjectKey>) {
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

    /// The objects that refer to `target`, in order.
    pub fn of(&self, target: &ObjectKey) -> Vec<ObjectKey> {
        self.inner.read().by_target.get(target).into_iter().flatten().cloned().collect()
    }

    /// The objects that refer to any object of `kind`.
    pub fn of_kind(&self, kind: &str) -> BTreeSet<ObjectKey> {
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

    fn secret(name: &str) -> ObjectKey {
        ObjectKey::new("Secret", "ns", name)
    }

    fn root(name: &str) -> ObjectKey {
        ObjectKey::new("Widget", "ns", name)
    }

    #[test]
    fn new_targets_replace_the_old_ones() {
        let index = ReferenceIndex::default();
        index.set(&root("a"), [secret("license"), secret("db")].into());
        index.set(&root("b"), [secret("db")].into());
        assert_eq!(index.of(&secret("db")), [root("a"), root("b")]);
        index.set(&root("a"), [secret("license-2")].into());
        assert_eq!(index.of(&secret("license")), []);
        assert_eq!(index.of(&secret("db")), [root("b")]);
        assert_eq!(index.of_kind("Secret"), [root("a"), root("b")].into());
    }

    #[test]
    fn a_removed_source_leaves_nothing_behind() {
        let index = ReferenceIndex::default();
        index.set(&root("a"), [secret("db")].into());
        index.set(&root("a"), BTreeSet::new());
        let inner = index.inner.read();
        assert!(inner.by_target.is_empty() && inner.by_source.is_empty());
    }
}
