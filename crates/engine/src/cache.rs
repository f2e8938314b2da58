//! The last seen state of the objects of one kind, fed by a watch.
//!
//! Only for kinds that are ours and for children that we label: memory does not grow with what others keep
//! in the cluster. What nobody reads is taken off before an object is stored.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
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
    objects: Arc<RwLock<Objects<K>>>,
    /// By what objects are found besides their name.
    group: Option<fn(&K) -> Option<String>>,
    /// Objects that are there and cannot be read, and why.
    unreadable: Arc<RwLock<HashMap<Key, String>>>,
}

#[derive(Debug)]
struct Objects<K> {
    by_key: HashMap<Key, Arc<K>>,
    by_group: HashMap<String, BTreeSet<Key>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            kind: self.kind,
            objects: self.objects.clone(),
            group: self.group,
            unreadable: self.unreadable.clone(),
        }
    }
}

impl<K: Resource> Cache<K> {
    /// An empty cache for a kind.
    pub fn new(kind: &'static str) -> Self {
        let objects = Objects { by_key: HashMap::new(), by_group: HashMap::new() };
        Self { kind, objects: Arc::new(RwLock::new(objects)), group: None, unreadable: Arc::default() }
    }

    /// An empty cache whose objects are also found by what `group` says of them.
    pub fn grouped(kind: &'static str, group: fn(&K) -> Option<String>) -> Self {
        Self { group: Some(group), ..Self::new(kind) }
    }

    /// The kind of its objects.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.read().by_key.get(&Key::new(self.kind, namespace, name)).cloned()
    }

    /// All objects for which `wanted` holds.
    pub fn filter(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.objects.read().by_key.values().filter(|object| wanted(object)).cloned().collect()
    }

    /// Looks at every object without cloning any.
    pub fn each(&self, mut look: impl FnMut(&K)) {
        self.objects.read().by_key.values().for_each(|object| look(object));
    }

    /// Stores an object. Returns what was there before, and the object as it is kept.
    pub fn insert(&self, mut object: K) -> (Option<Arc<K>>, Arc<K>) {
        slim(&mut object);
        let (key, object) = (Key::of(self.kind, &object), Arc::new(object));
        let mut objects = self.objects.write();
        let before = objects.by_key.insert(key.clone(), object.clone());
        let (left, joined) =
            (before.as_deref().and_then(|before| self.group_of(before)), self.group_of(&object));
        if left != joined {
            objects.leave(left, &key);
            if let Some(group) = joined {
                objects.by_group.entry(group).or_default().insert(key);
            }
        }
        (before, object)
    }

    /// The objects of a group, by name.
    pub fn of_group(&self, group: &str) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        let keys = objects.by_group.get(group).into_iter().flatten();
        keys.filter_map(|key| objects.by_key.get(key).cloned()).collect()
    }

    fn group_of(&self, object: &K) -> Option<String> {
        self.group.and_then(|group| group(object))
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
        let mut objects = self.objects.write();
        let gone = objects.by_key.remove(key);
        objects.leave(gone.as_deref().and_then(|gone| self.group_of(gone)), key);
        gone
    }

    /// The keys in `namespace` (all, if none is given) that `kept` does not name, of readable objects and others.
    pub fn others(&self, namespace: Option<&str>, kept: &HashSet<Key>) -> Vec<Key> {
        let (objects, unreadable) = (self.objects.read(), self.unreadable.read());
        let within = |key: &&Key| namespace.is_none_or(|namespace| key.namespace == namespace);
        objects
            .by_key
            .keys()
            .chain(unreadable.keys())
            .filter(within)
            .filter(|key| !kept.contains(*key))
            .cloned()
            .collect()
    }
}

impl<K> Objects<K> {
    fn leave(&mut self, group: Option<String>, key: &Key) {
        let Some(group) = group else { return };
        if let Some(members) = self.by_group.get_mut(&group) {
            members.remove(key);
            if members.is_empty() {
                self.by_group.remove(&group);
            }
        }
    }
}

/// The uid of the object that controls another, to find children by.
pub fn controller_uid<K: Resource>(object: &K) -> Option<String> {
    let controls = object.owner_references().iter().find(|owner| owner.controller == Some(true));
    controls.map(|owner| owner.uid.clone())
}

fn slim<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    object.annotations_mut().remove(LAST_APPLIED);
    if object.annotations().is_empty() {
        object.meta_mut().annotations = None;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::OwnerReference};
    use kube::api::ObjectMeta;

    use super::*;

    fn account(name: &str, owner: Option<&str>) -> ServiceAccount {
        let reference = |uid: &str| OwnerReference {
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            owner_references: owner.map(|uid| vec![reference(uid)]),
            ..ObjectMeta::default()
        };
        ServiceAccount { metadata, ..ServiceAccount::default() }
    }

    #[test]
    fn objects_are_found_by_their_group_as_it_is_now() {
        let cache: Cache<ServiceAccount> = Cache::grouped("ServiceAccount", controller_uid);
        let names =
            |group: &str| cache.of_group(group).iter().map(|object| object.name_any()).collect::<Vec<_>>();
        cache.insert(account("a", Some("1")));
        cache.insert(account("b", Some("1")));
        cache.insert(account("c", None));
        assert_eq!(names("1"), ["a", "b"]);
        cache.insert(account("a", Some("2")));
        assert_eq!((names("1"), names("2")), (vec!["b".to_owned()], vec!["a".to_owned()]));
        cache.remove(&Key::new("ServiceAccount", "ns", "a"));
        assert!(names("2").is_empty());
        assert_eq!(cache.objects.read().by_group.len(), 1);
    }
}
