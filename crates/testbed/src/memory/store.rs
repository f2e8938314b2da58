//! Objects, their versions and the history of changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    apply::Managed,
    kinds::{Kind, Kinds},
    refusal::Refusal,
    selector::Selector,
};

/// An answered request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// User of the kubeconfig that the request came with.
    pub user: String,
    /// HTTP method.
    pub method: String,
    /// Plural, with the subresource after a slash.
    pub resource: String,
    /// Empty for cluster-scoped resources.
    pub namespace: String,
    /// Empty for lists and creations.
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) api_version: String,
    pub(super) plural: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Place {
    pub(super) fn new(api_version: &str, plural: &str, namespace: &str, name: &str) -> Self {
        let [api_version, plural, namespace, name] =
            [api_version, plural, namespace, name].map(str::to_owned);
        Self { api_version, plural, namespace, name }
    }

    pub(super) fn called(&self) -> String {
        format!("{} {:?}", self.plural, self.name)
    }
}

/// A stored object and the owners of its fields.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub(super) object: Arc<Value>,
    pub(super) managed: Managed,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    place: Place,
    before: Option<Arc<Value>>,
    /// The object after the change, or its last state if it was deleted.
    pub(super) object: Arc<Value>,
    gone: bool,
}

impl Change {
    /// The event for a watch, or `None` if the watch does not select it.
    pub(super) fn shown(&self, api_version: &str, plural: &str, selector: &Selector) -> Option<&'static str> {
        if self.place.api_version != api_version || self.place.plural != plural {
            return None;
        }
        let before = self.before.as_ref().is_some_and(|object| selector.shows(object));
        match (before, !self.gone && selector.shows(&self.object)) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    version: u64,
    pub(super) objects: BTreeMap<Place, StoredObject>,
    history: Vec<Arc<Change>>,
    /// Changes up to this version are no longer in the history.
    compacted: u64,
    asked: Vec<Asked>,
    pub(super) hold: bool,
    count: u64,
}

/// Everything that the server knows.
#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    pub(super) kinds: Kinds,
    /// The newest version.
    pub(super) changed: watch::Sender<u64>,
    /// How often all watches were closed.
    pub(super) broken: watch::Sender<u64>,
    /// Whether watches show nothing for now.
    pub(super) withheld: watch::Sender<bool>,
}

impl Store {
    pub(super) fn new(kinds: Kinds) -> Self {
        let (changed, broken, withheld) =
            (watch::Sender::new(1), watch::Sender::new(0), watch::Sender::new(false));
        // The first version is no object's: asking for it is asking for an object that is not there.
        let state = Mutex::new(State { version: 1, ..State::default() });
        let crds = kinds.crds.clone();
        let store = Self { state, kinds, changed, broken, withheld };
        for (name, object) in crds.iter() {
            let place = Place::new("apiextensions.k8s.io/v1", "customresourcedefinitions", "", name);
            store.put(place, object.clone());
        }
        for name in ["default", "coder-system"] {
            store.put(Place::new("v1", "namespaces", "", name), json!({"metadata": {"name": name}}));
        }
        store
    }

    fn put(&self, place: Place, object: Value) {
        let _ = self.write(place, |_| Ok((object, Managed::new())));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.lock().asked.clone()
    }

    pub(super) fn note(&self, asked: Asked) {
        self.lock().asked.push(asked);
    }

    pub(super) fn hold_deletions(&self, hold: bool) {
        self.lock().hold = hold;
    }

    pub(super) fn break_watches(&self) {
        self.broken.send_modify(|count| *count += 1);
    }

    pub(super) fn compact(&self) {
        let mut state = self.lock();
        state.compacted = state.version;
        state.history.clear();
    }

    pub(super) fn get(&self, place: &Place) -> Result<Arc<Value>, Refusal> {
        let held = self.lock().objects.get(place).map(|held| held.object.clone());
        held.ok_or_else(|| Refusal::not_found(&place.called()))
    }

    /// Objects that a selector matches, and the version of the list.
    pub(super) fn list(
        &self,
        api_version: &str,
        plural: &str,
        selector: &Selector,
    ) -> (u64, Vec<Arc<Value>>) {
        let state = self.lock();
        let ours = state.objects.iter().filter(|(place, held)| {
            place.api_version == api_version && place.plural == plural && selector.shows(&held.object)
        });
        (state.version, ours.map(|(_, held)| held.object.clone()).collect())
    }

    /// Whether anything but Leases and Events changed after a version.
    pub(super) fn moved_since(&self, version: u64) -> bool {
        let state = self.lock();
        let from = state.history.partition_point(|change| change.version <= version);
        let matters = |change: &Arc<Change>| !matches!(change.place.plural.as_str(), "leases" | "events");
        version < state.compacted || state.history.get(from..).unwrap_or_default().iter().any(matters)
    }

    /// Changes after a version. `None` if the history no longer holds all of them.
    pub(super) fn since(&self, version: u64) -> Option<Vec<Arc<Change>>> {
        let state = self.lock();
        let from = state.history.partition_point(|change| change.version <= version);
        (version >= state.compacted).then(|| state.history.get(from..).unwrap_or_default().to_vec())
    }

    /// Writes the object that `change` computes from the present one.
    pub(super) fn write(
        &self,
        place: Place,
        change: impl FnOnce(Option<&StoredObject>) -> Result<(Value, Managed), Refusal>,
    ) -> Result<(Arc<Value>, bool), Refusal> {
        let mut state = self.lock();
        let before = state.objects.get(&place).cloned();
        let (mut object, managed) = change(before.as_ref())?;
        let kind = self.kinds.get(&place.api_version, &place.plural);
        identify(&mut object, &place, kind);
        if let Some(before) = &before {
            set(&mut object, "resourceVersion", before.object.pointer("/metadata/resourceVersion").cloned());
            if *before.object == object {
                let same = before.object.clone();
                state.objects.insert(place, StoredObject { object: same.clone(), managed });
                return Ok((same, false));
            }
            let generation =
                before.object.pointer("/metadata/generation").and_then(Value::as_u64).unwrap_or(1);
            let edited = before.object.get("spec") != object.get("spec");
            set(&mut object, "generation", Some(json!(generation + u64::from(edited))));
        } else {
            state.count += 1;
            let uid = format!("00000000-0000-4000-8000-{:012x}", state.count);
            set(&mut object, "uid", Some(json!(uid)));
            set(&mut object, "creationTimestamp", Some(json!(now())));
            set(&mut object, "generation", Some(json!(1)));
        }
        let object = state.record(place, before.as_ref().map(|held| held.object.clone()), object, managed);
        self.changed.send_replace(state.version);
        Ok((object, before.is_none()))
    }

    /// Deletes an object, or marks it as deleted while finalizers or the grace period of a pod keep it.
    pub(super) fn delete(
        &self,
        place: &Place,
        fits: impl FnOnce(&Value) -> bool,
        at_once: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let mut state = self.lock();
        let Some(held) = state.objects.get(place).cloned() else {
            return Err(Refusal::not_found(&place.called()));
        };
        if !fits(&held.object) {
            return Err(Refusal::conflict(&place.called()));
        }
        let graceful = place.plural == "pods" && !at_once;
        let mut object = (*held.object).clone();
        if !(graceful || has_finalizers(&object)) {
            let last = state.remove(place, held.object);
            self.changed.send_replace(state.version);
            return Ok(last);
        }
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(held.object);
        }
        set(&mut object, "deletionTimestamp", Some(json!(now())));
        let generation = object.pointer("/metadata/generation").and_then(Value::as_u64).unwrap_or(1);
        set(&mut object, "generation", Some(json!(generation + 1)));
        let object = state.record(place.clone(), Some(held.object), object, held.managed);
        self.changed.send_replace(state.version);
        Ok(object)
    }

    /// UIDs of all objects.
    pub(super) fn uids(&self) -> BTreeSet<String> {
        let state = self.lock();
        let uid = |held: &StoredObject| Some(held.object.pointer("/metadata/uid")?.as_str()?.to_owned());
        state.objects.values().filter_map(uid).collect()
    }
}

impl State {
    fn record(
        &mut self,
        place: Place,
        before: Option<Arc<Value>>,
        mut object: Value,
        managed: Managed,
    ) -> Arc<Value> {
        self.version += 1;
        set(&mut object, "resourceVersion", Some(json!(self.version.to_string())));
        let object = Arc::new(object);
        // Pods are ended by whoever runs them; anything else goes with its last finalizer.
        let gone = place.plural != "pods"
            && object.pointer("/metadata/deletionTimestamp").is_some()
            && !has_finalizers(&object);
        if gone {
            self.objects.remove(&place);
        } else {
            self.objects.insert(place.clone(), StoredObject { object: object.clone(), managed });
        }
        let change = Change { version: self.version, place, before, object: object.clone(), gone };
        self.history.push(Arc::new(change));
        object
    }

    fn remove(&mut self, place: &Place, before: Arc<Value>) -> Arc<Value> {
        self.version += 1;
        let mut object = (*before).clone();
        set(&mut object, "resourceVersion", Some(json!(self.version.to_string())));
        let object = Arc::new(object);
        self.objects.remove(place);
        let (place, version) = (place.clone(), self.version);
        let change = Change { version, place, before: Some(before), object: object.clone(), gone: true };
        self.history.push(Arc::new(change));
        object
    }
}

fn has_finalizers(object: &Value) -> bool {
    object.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|all| !all.is_empty())
}

fn identify(object: &mut Value, place: &Place, kind: Option<&Kind>) {
    let (Some(map), Some(kind)) = (object.as_object_mut(), kind) else { return };
    map.insert("apiVersion".to_owned(), json!(kind.api_version));
    map.insert("kind".to_owned(), json!(kind.called));
    set(object, "name", Some(json!(place.name)));
    set(object, "managedFields", None);
    if !place.namespace.is_empty() {
        set(object, "namespace", Some(json!(place.namespace)));
    }
}

/// Sets or removes a field of the metadata.
pub(super) fn set(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(map) = object.as_object_mut() else { return };
    let metadata = map.entry("metadata").or_insert_with(|| json!({}));
    let Some(metadata) = metadata.as_object_mut() else { return };
    match value {
        Some(value) => drop(metadata.insert(field.to_owned(), value)),
        None => drop(metadata.remove(field)),
    }
}

/// The current time in the format of the API.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
