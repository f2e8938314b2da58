//! The last seen state of the objects of one kind, fed by a watch.
//!
//! Only for kinds that are ours and for children that we label: memory does not grow with what others keep
//! in the cluster. What nobody reads is taken off before an object is stored.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use kube::{Resource, ResourceExt};
use parking_lot::RwLock;

use crate::key::Key;

/// The annotation in which client-side `kubectl apply` keeps a copy of the whole manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Objects of one kind. Clones share them.
#[derive(Debug)]
pub struct Cache<K> {
    kind: &'static str,
    objects: Arc<RwLock<HashMap<Key, Arc<K>>>>,
    /// Objects that are there and cannot be read, and why.
    unreadable: Arc<RwLock<HashMap<Key, String>>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { kind: self.kind, objects: self.objects.clone(), unreadable: self.unreadable.clone() }
    }
}

impl<K: Resource> Cache<K> {
    /// An empty cache for a kind.
    pub fn new(kind: &'static str) -> Self {
        Self { kind, objects: Arc::default(), unreadable: Arc::default() }
    }

    /// The kind of its objects.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.read().get(&Key::new(self.kind, namespace, name)).cloned()
    }

    /// All objects for which `wanted` holds.
    pub fn filter(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.objects.read().values().filter(|object| wanted(object)).cloned().collect()
    }

    /// Looks at every object without cloning any.
    pub fn each(&self, mut look: impl FnMut(&K)) {
        self.objects.read().values().for_each(|object| look(object));
    }

    /// Stores an object. Returns what was there before, and the object as it is kept.
    pub fn insert(&self, mut object: K) -> (Option<Arc<K>>, Arc<K>) {
        slim(&mut object);
        let (key, object) = (Key::of(self.kind, &object), Arc::new(object));
        (self.objects.write().insert(key, object.clone()), object)
    }

    /// Notes that an object cannot be read. Returns whether that is news.
    pub fn cannot_read(&self, key: &Key, why: &str) -> bool {
        self.unreadable.write().insert(key.clone(), why.to_owned()).is_none_or(|before| before != why)
    }

    /// Notes that an object can be read, or is gone. Returns whether that is news.
    pub fn is_readable_again(&self, key: &Key) -> bool {
        self.unreadable.write().remove(key).is_some()
    }

    /// How many objects cannot be read.
    pub fn unreadable(&self) -> usize {
        self.unreadable.read().len()
    }

    /// Forgets an object. Returns what was there.
    pub fn remove(&self, key: &Key) -> Option<Arc<K>> {
        self.objects.write().remove(key)
    }

    /// The keys in `namespace` (all, if none is given) that `kept` does not name, of readable objects and others.
    pub fn others(&self, namespace: Option<&str>, kept: &HashSet<Key>) -> Vec<Key> {
        let (objects, unreadable) = (self.objects.read(), self.unreadable.read());
        let within = |key: &&Key| namespace.is_none_or(|namespace| key.namespace == namespace);
        objects
            .keys()
            .chain(unreadable.keys())
            .filter(within)
            .filter(|key| !kept.contains(*key))
            .cloned()
            .collect()
    }
}

fn slim<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    object.annotations_mut().remove(LAST_APPLIED);
    if object.annotations().is_empty() {
        object.meta_mut().annotations = None;
    }
}
