//! The objects of one kind as a watch last delivered them, the keys that name them, and which object refers to which.
//!
//! Caches are meant for kinds that the operator owns and for children that it labels, so that memory does not grow
//! with the objects of others. Managed fields, but for those of the scale subresource, and the manifest of `kubectl apply`,
//! which nobody reads, are removed before an object is stored. A compact cache stores its objects packed (see [`packed`]) and decodes one each time it is read:
//! the types of Kubernetes take several times as much memory as their JSON, most of it for fields that are not set, and
//! the JSON several times as much as what distinguishes it from another. A cache never reads from the API server.

mod packed;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;
use serde::{Serialize, de::DeserializeOwned};

use packed::{Packed, Packer};

/// Names one object. Many are kept for each object, so that they are as small as can be. Two incarnations of an object under the same name have the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The kind without its group, such as `Deployment`.
    pub kind: &'static str,
    /// Empty for a cluster-scoped kind.
    pub namespace: Box<str>,
    /// The object's `metadata.name`.
    pub name: Box<str>,
}

impl ObjectKey {
    /// Names an object that need not exist.
    pub fn new(kind: &'static str, namespace: impl Into<Box<str>>, name: impl Into<Box<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// Names `object`. The caller states the kind, because a typed object does not carry it.
    pub fn of<K: Resource>(kind: &'static str, object: &K) -> Self {
        Self::new(kind, object.namespace().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The annotation in which client-side `kubectl apply` stores a copy of the whole manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Objects of one kind. Clones share them.
#[derive(Clone, Debug)]
pub struct Cache<K> {
    kind: &'static str,
    objects: Arc<RwLock<Objects<K>>>,
    /// Computes the groups of an object, by which it is found besides its name.
    groups: Option<fn(&K) -> Vec<String>>,
    /// Which objects are stored. None: all.
    kept: Option<fn(&K) -> bool>,
    /// How a compact cache stores an object, and reads it again.
    codec: Option<Codec<K>>,
    /// Objects that exist and cannot be parsed, with the error.
    unreadable: Arc<RwLock<HashMap<ObjectKey, String>>>,
}

#[derive(Clone, Debug)]
struct Codec<K> {
    packer: Arc<Packer>,
    encode: fn(&K) -> Option<Vec<u8>>,
    decode: fn(&[u8]) -> Option<K>,
}

/// An object as a cache holds it.
#[derive(Debug)]
enum Stored<K> {
    Decoded(Arc<K>),
    Packed(Packed),
}

// By hand: a derived one would ask that the object can be cloned.
impl<K> Clone for Stored<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Decoded(object) => Self::Decoded(object.clone()),
            Self::Packed(packed) => Self::Packed(packed.clone()),
        }
    }
}

#[derive(Debug)]
struct Objects<K> {
    by_key: HashMap<ObjectKey, Stored<K>>,
    /// Ordered. Most groups have one member, for which a tree would take a node of eleven.
    by_group: HashMap<String, Vec<ObjectKey>>,
}

impl<K: Resource> Cache<K> {
    /// Creates an empty cache for a kind.
    pub fn new(kind: &'static str) -> Self {
        let objects = Objects { by_key: HashMap::new(), by_group: HashMap::new() };
        Self {
            kind,
            objects: Arc::new(RwLock::new(objects)),
            groups: None,
            kept: None,
            codec: None,
            unreadable: Arc::default(),
        }
    }

    /// Creates an empty cache whose objects are also found by the groups that `groups` computes.
    pub fn grouped(kind: &'static str, groups: fn(&K) -> Vec<String>) -> Self {
        Self { groups: Some(groups), ..Self::new(kind) }
    }

    /// The same cache, for the objects for which `kept` holds alone. Anybody can write an object that a watch delivers.
    #[must_use]
    pub fn keeping(self, kept: fn(&K) -> bool) -> Self {
        Self { kept: Some(kept), ..self }
    }

    /// The same cache, which takes less memory and more time to read. For objects that are read one by one or by group.
    #[must_use]
    pub fn compact(self) -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        let codec = Codec {
            packer: Arc::default(),
            encode: |object| serde_json::to_vec(object).ok(),
            decode: |bytes| serde_json::from_slice(bytes).ok(),
        };
        Self { codec: Some(codec), ..self }
    }

    fn stored(&self, object: &Arc<K>) -> Stored<K> {
        let packed =
            self.codec.as_ref().and_then(|codec| (codec.encode)(object).map(|json| codec.packer.pack(json)));
        packed.map_or_else(|| Stored::Decoded(object.clone()), Stored::Packed)
    }

    fn decoded(&self, stored: &Stored<K>) -> Option<Arc<K>> {
        match stored {
            Stored::Decoded(object) => Some(object.clone()),
            Stored::Packed(packed) => {
                let json = packed.unpack()?;
                self.codec.as_ref().and_then(|codec| (codec.decode)(&json)).map(Arc::new)
            }
        }
    }

    /// Whether the object belongs into this cache.
    pub fn keeps(&self, object: &K) -> bool {
        self.kept.is_none_or(|kept| kept(object))
    }

    /// The kind of the objects, as in their [`ObjectKey`].
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The object of this name, if the watch has delivered it.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let stored = self.objects.read().by_key.get(&ObjectKey::new(self.kind, namespace, name)).cloned()?;
        self.decoded(&stored)
    }

    /// All objects for which `predicate` holds, in no order. Decodes every object: not for a reconcile.
    pub fn filter(&self, predicate: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        let all = objects.by_key.values().filter_map(|stored| self.decoded(stored));
        all.filter(|object| predicate(object)).collect()
    }

    /// Whether `predicate` holds for any object of a namespace.
    pub fn any_in(&self, namespace: &str, predicate: impl Fn(&K) -> bool) -> bool {
        let objects = self.objects.read();
        let mut within = objects.by_key.iter().filter(|(key, _)| *key.namespace == *namespace);
        within.any(|(_, stored)| self.decoded(stored).is_some_and(|object| predicate(&object)))
    }

    /// Visits every object. The cache is locked meanwhile: `visit` must not write to it.
    pub fn each(&self, mut visit: impl FnMut(&K)) {
        let objects = self.objects.read();
        objects.by_key.values().filter_map(|stored| self.decoded(stored)).for_each(|object| visit(&object));
    }

    /// Bytes that a compact cache keeps of its objects, each model counted once. Their keys are not counted.
    pub fn kept_bytes(&self) -> usize {
        let objects = self.objects.read();
        let packed = objects.by_key.values().filter_map(|stored| match stored {
            Stored::Packed(packed) => Some(packed),
            Stored::Decoded(_) => None,
        });
        let (mut models, mut bytes) = (HashSet::new(), 0);
        for packed in packed {
            let model = packed.model().filter(|model| models.insert(Arc::as_ptr(model)));
            bytes += packed.kept() + model.map_or(0, |model| model.len());
        }
        bytes
    }

    /// Stores an object. Returns the object that it replaces, and the object as it is stored.
    pub fn insert(&self, mut object: K) -> (Option<Arc<K>>, Arc<K>) {
        slim(&mut object);
        let (key, object) = (ObjectKey::of(self.kind, &object), Arc::new(object));
        let stored = self.stored(&object);
        let mut objects = self.objects.write();
        let before = objects.by_key.insert(key.clone(), stored).and_then(|before| self.decoded(&before));
        let (left, joined) = (
            before.as_deref().map(|before| self.groups_of(before)).unwrap_or_default(),
            self.groups_of(&object),
        );
        if left != joined {
            objects.leave(&left, &key);
            objects.join(joined, &key);
        }
        (before, object)
    }

    /// The objects of a group, ordered by namespace and name.
    pub fn of_group(&self, group: &str) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        let keys = objects.by_group.get(group).into_iter().flatten();
        keys.filter_map(|key| self.decoded(objects.by_key.get(key)?)).collect()
    }

    /// The keys of the objects of a group, ordered by namespace and name.
    pub fn keys_of_group(&self, group: &str) -> Vec<ObjectKey> {
        self.objects.read().by_group.get(group).cloned().unwrap_or_default()
    }

    fn groups_of(&self, object: &K) -> Vec<String> {
        self.groups.map(|groups| groups(object)).unwrap_or_default()
    }

    /// Records that an object cannot be parsed. Returns whether that, or the error, is new.
    pub fn mark_unreadable(&self, key: &ObjectKey, why: &str) -> bool {
        self.unreadable.write().insert(key.clone(), why.to_owned()).is_none_or(|before| before != why)
    }

    /// Records that an object can be parsed, or is gone. Returns whether it could not be parsed before.
    pub fn clear_unreadable(&self, key: &ObjectKey) -> bool {
        self.unreadable.write().remove(key).is_some()
    }

    /// The number of objects that cannot be parsed.
    pub fn unreadable(&self) -> usize {
        self.unreadable.read().len()
    }

    /// Removes an object. Returns it if it was stored.
    pub fn remove(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let mut objects = self.objects.write();
        let gone = objects.by_key.remove(key).and_then(|gone| self.decoded(&gone));
        objects.leave(&gone.as_deref().map(|gone| self.groups_of(gone)).unwrap_or_default(), key);
        gone
    }

    /// The keys that `listed` does not contain, of readable and unreadable objects. `namespace` limits them to one
    /// namespace.
    pub fn keys_except(&self, namespace: Option<&str>, listed: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        let (objects, unreadable) = (self.objects.read(), self.unreadable.read());
        let within = |key: &&ObjectKey| namespace.is_none_or(|namespace| *key.namespace == *namespace);
        objects
            .by_key
            .keys()
            .chain(unreadable.keys())
            .filter(within)
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect()
    }
}

impl<K> Objects<K> {
    fn join(&mut self, groups: Vec<String>, key: &ObjectKey) {
        for group in groups {
            insert_sorted(self.by_group.entry(group).or_default(), key.clone());
        }
    }

    fn leave(&mut self, groups: &[String], key: &ObjectKey) {
        for group in groups {
            if let Some(members) = self.by_group.get_mut(group) {
                members.retain(|member| member != key);
                if members.is_empty() {
                    self.by_group.remove(group);
                }
            }
        }
    }
}

fn insert_sorted(keys: &mut Vec<ObjectKey>, key: ObjectKey) {
    if let Err(at) = keys.binary_search(&key) {
        // Most lists stay as short as they are.
        keys.reserve_exact(usize::from(keys.len() < 4));
        keys.insert(at, key);
    }
}

/// The uid of the controlling owner: the group under which children are found by their owner.
pub fn controller_uid<K: Resource>(object: &K) -> Vec<String> {
    let controls = object.owner_references().iter().find(|owner| owner.controller == Some(true));
    controls.map(|owner| owner.uid.clone()).into_iter().collect()
}

/// Removes what nobody reads and what makes up most of a large object.
fn slim<K: Resource>(object: &mut K) {
    // Who set the replicas through the scale subresource is of interest, and takes a few bytes.
    let managed = object.meta_mut().managed_fields.take().into_iter().flatten();
    let scaled = managed.filter(|entry| entry.subresource.as_deref() == Some("scale"));
    let scaled: Vec<_> = scaled.map(|entry| ManagedFieldsEntry { fields_v1: None, ..entry }).collect();
    object.meta_mut().managed_fields = Some(scaled).filter(|scaled| !scaled.is_empty());
    object.annotations_mut().remove(LAST_APPLIED);
    if object.annotations().is_empty() {
        object.meta_mut().annotations = None;
    }
}

/// Which objects (sources) refer to which objects (targets), such as Secrets, ConfigMaps and Namespaces.
///
/// The watches of the referring kinds maintain it, not their reconciles, so that it is complete before the first
/// reconcile. It does not know whether a referenced object exists.
#[derive(Debug, Default)]
pub struct ReferenceIndex {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The sources of each target, ordered.
    by_target: HashMap<ObjectKey, Vec<ObjectKey>>,
    by_source: HashMap<ObjectKey, Box<[ObjectKey]>>,
}

impl ReferenceIndex {
    /// Replaces the targets of `source`. An empty set removes the source.
    pub fn set(&self, source: &ObjectKey, targets: BTreeSet<ObjectKey>) {
        let mut inner = self.inner.write();
        let old = if targets.is_empty() {
            inner.by_source.remove(source)
        } else {
            inner.by_source.insert(source.clone(), targets.iter().cloned().collect())
        };
        for gone in old.iter().flatten().filter(|target| !targets.contains(target)) {
            if let Some(sources) = inner.by_target.get_mut(gone) {
                sources.retain(|other| other != source);
                if sources.is_empty() {
                    inner.by_target.remove(gone);
                }
            }
        }
        for target in targets {
            insert_sorted(inner.by_target.entry(target).or_default(), source.clone());
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
            .flat_map(|(_, sources)| sources.iter().cloned())
            .collect()
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
    fn an_object_moves_between_groups_with_its_owner() {
        let cache: Cache<ServiceAccount> = Cache::grouped("ServiceAccount", controller_uid);
        let names =
            |group: &str| cache.of_group(group).iter().map(|object| object.name_any()).collect::<Vec<_>>();
        cache.insert(account("a", Some("1")));
        cache.insert(account("b", Some("1")));
        cache.insert(account("c", None));
        assert_eq!(names("1"), ["a", "b"]);
        cache.insert(account("a", Some("2")));
        assert_eq!((names("1"), names("2")), (vec!["b".to_owned()], vec!["a".to_owned()]));
        cache.remove(&ObjectKey::new("ServiceAccount", "ns", "a"));
        assert!(names("2").is_empty());
        assert_eq!(cache.objects.read().by_group.len(), 1);
    }

    #[test]
    fn a_compact_cache_returns_what_was_stored() {
        let cache: Cache<ServiceAccount> = Cache::grouped("ServiceAccount", controller_uid).compact();
        assert_eq!(cache.insert(account("a", Some("1"))).0, None);
        assert_eq!(cache.get("ns", "a").as_deref(), Some(&account("a", Some("1"))));
        let (before, now) = cache.insert(account("a", Some("2")));
        assert_eq!(before.as_deref(), Some(&account("a", Some("1"))));
        assert_eq!((cache.of_group("1"), cache.of_group("2")), (Vec::new(), vec![now]));
        assert_eq!(cache.filter(|_| true).len(), 1);
        let mut seen = 0;
        cache.each(|_| seen += 1);
        assert_eq!(seen, 1);
        assert_eq!(
            cache.remove(&ObjectKey::new("ServiceAccount", "ns", "a")).as_deref(),
            Some(&account("a", Some("2")))
        );
        assert!(cache.of_group("2").is_empty());
    }

    #[test]
    fn only_what_belongs_into_a_cache_is_kept() {
        let cache: Cache<ServiceAccount> = Cache::new("ServiceAccount");
        assert!(cache.keeps(&account("a", None)));
        let cache = cache.keeping(|account| !account.owner_references().is_empty());
        assert!(cache.keeps(&account("a", Some("1"))) && !cache.keeps(&account("a", None)));
    }

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
