//! The applier: the only way in which child objects are written.
//!
//! It writes under one field manager, with an owner reference, the labels of the owner and a hash of the desired object.
//! It sends nothing if the hash matches and the live object contains every desired field. The applier never adopts an object
//! of others on its own: an object that happens to have the name of a child is left untouched and reported. Objects that are
//! handed over are taken over together or not at all.
//!
//! A child that is not cached is created without a read. A child of ours in which only values are to change is patched with
//! these values. Everything else is written by server-side apply, which alone can remove the fields that are no longer
//! desired and leave those of others: where a field is added or dropped, where somebody changed the child, and where this
//! process has not seen it as desired yet, because another operator may have written it. The three differ in what they cost
//! the API server: a patch less than half of an apply.

mod desired;
mod managed_fields;
mod owner;

use std::{
    any::Any,
    collections::{HashMap, HashSet},
    fmt::Debug,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use coder_k8s_api::names::{FIELD_MANAGER, annotation};
use coder_k8s_core::outcome::ForeignObject;
use k8s_openapi::{NamespaceResourceScope, api::apps::v1::Deployment};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, Request},
    core::Status,
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::Instant;

use crate::intervals::MAX_WATCH_LAG;

use desired::{AppliedHash, DesiredObject, Unprintable};
use managed_fields::has_updates;
pub use owner::{Owner, OwnerMark, Part};

/// A namespaced kind with a static type, such as that of a child. Implemented for each.
pub trait NamespacedKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> NamespacedKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// The result of applying a child.
#[derive(Clone, Debug)]
pub enum Applied<K> {
    /// The child is as desired; nothing was sent. Holds the child if it is newer than the cached one.
    Unchanged(Option<K>),
    /// The child was written. Holds the response of the server.
    Written(K),
    /// A child of an earlier object of the owner's name still exists; the garbage collector is about to delete it.
    Leftover,
    /// An object of others has the child's name; it was not touched.
    Foreign(ForeignObject),
}

/// Writes and deletes children. The process has one, because it remembers what it wrote.
pub struct Applier {
    client: Client,
    /// The responses to writes that a watch has not delivered yet.
    undelivered: Mutex<HashMap<ChildKey, Undelivered>>,
    /// The children that the server stores in another form than they were sent.
    reformatted: Mutex<HashMap<ChildKey, Reformatted>>,
    /// Hashes of kind and uid of the children that this process wrote or found as desired.
    seen_as_desired: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

struct Undelivered {
    uid: String,
    version: String,
    response: Arc<dyn Any + Send + Sync>,
    since: Instant,
}

/// A child in which the desired object is never found, because the server stores a value in another form. As long as uid, hash
/// and version match, the same object is not sent again.
struct Reformatted {
    uid: String,
    /// Of the desired object.
    hash: String,
    version: String,
}

/// Kind, namespace and name of a child.
type ChildKey = (String, String, String);

fn key_of<K: Resource<DynamicType = ()>>(namespace: Option<&str>, name: &str) -> ChildKey {
    (K::kind(&()).into_owned(), namespace.unwrap_or_default().to_owned(), name.to_owned())
}

/// Whether `object` is older than `version`. Versions are compared as numbers; of any other form none is older.
fn is_older<K: Resource>(object: &K, version: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    match (object.meta().resource_version.as_deref().and_then(number), number(version)) {
        (Some(object), Some(version)) => object < version,
        _ => false,
    }
}

impl Applier {
    /// Creates an applier that writes with `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            undelivered: Mutex::default(),
            reformatted: Mutex::default(),
            seen_as_desired: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Makes the child equal to `desired`. `cached` is the child as a watch last delivered it, if it did.
    pub async fn apply<K: NamespacedKind>(
        &self,
        owner: &Owner,
        desired: K,
        cached: Option<&K>,
    ) -> kube::Result<Applied<K>> {
        let desired = DesiredObject::new(owner, desired)?;
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        let newer = self.newer_than(&owner.namespace, &desired.name, cached);
        match newer.as_deref().or(cached) {
            Some(live) => self.update(&api, owner, &desired, live, newer.is_some()).await,
            None => match self.create(&owner.namespace, &desired).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    // The object exists, or was deleted this moment. Then the conflict is returned, and retried.
                    match api.get_opt(&desired.name).await? {
                        Some(live) => self.update(&api, owner, &desired, &live, true).await,
                        None => Err(kube::Error::Api(status)),
                    }
                }
                sent => sent.map(Applied::Written),
            },
        }
    }

    /// Whether the server would accept `desired`. Nothing is written. False: it is forbidden.
    pub async fn would_accept<K: NamespacedKind>(&self, owner: &Owner, desired: K) -> kube::Result<bool> {
        let desired = DesiredObject::new(owner, desired)?;
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        let params = PatchParams { dry_run: true, ..PatchParams::apply(FIELD_MANAGER).force() };
        match api.patch(&desired.name, &params, &Patch::Apply(desired.whole())).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Why the parts of the owner cannot be taken over together. Reads each of them, so that it is asked only before one is
    /// taken over. None: they can.
    async fn hand_over_obstacles(&self, owner: &Owner) -> kube::Result<Option<String>> {
        let mut obstacles = Vec::new();
        for part in &owner.parts {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &owner.namespace, &part.resource);
            let live = api.get_opt(&part.name).await?;
            obstacles.extend(live.and_then(|live| owner.obstacle(part, &live)));
        }
        Ok((!obstacles.is_empty()).then(|| obstacles.join("; ")))
    }

    /// Deletes a child that is no longer desired: only this incarnation, and only if the owner owns it.
    ///
    /// For children that are marked by an annotation the caller has decided that they are to go; then the deletion holds
    /// only for the version that the caller saw. Returns whether anything was deleted.
    pub async fn remove<K: NamespacedKind>(&self, owner: &Owner, live: &K) -> kube::Result<bool> {
        let decided_by_caller = matches!(owner.mark, OwnerMark::UidAnnotation(_));
        if !(decided_by_caller || owner.owns(live)) || live.meta().deletion_timestamp.is_some() {
            return Ok(false);
        }
        self.delete(live, live.resource_version().filter(|_| decided_by_caller)).await
    }

    /// Deletes a child whose owner no longer exists, or that the caller has decided is to go: exactly the version that the
    /// caller saw. Returns whether anything was deleted.
    pub async fn remove_stray<K: NamespacedKind>(&self, live: &K) -> kube::Result<bool> {
        if live.meta().deletion_timestamp.is_some() {
            return Ok(false);
        }
        self.delete(live, live.resource_version()).await
    }

    async fn delete<K: NamespacedKind>(
        &self,
        live: &K,
        resource_version: Option<String>,
    ) -> kube::Result<bool> {
        let api: Api<K> = Api::namespaced(self.client.clone(), &live.namespace().unwrap_or_default());
        let preconditions = Preconditions { uid: live.uid(), resource_version };
        match api.delete(&live.name_any(), &DeleteParams::background().preconditions(preconditions)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Releases a child: it stays and no longer belongs to the owner. An annotation lets the owner take it back later.
    pub async fn detach<K: NamespacedKind>(&self, owner: &Owner, live: &K) -> kube::Result<()> {
        if !owner.owns(live) {
            return Ok(());
        }
        let others: Vec<_> =
            live.owner_references().iter().filter(|o| o.uid != owner.reference.uid).cloned().collect();
        // A merge patch replaces the whole list: the version protects an owner that somebody else has added meanwhile.
        let patch = json!({"metadata": {
            "resourceVersion": live.resource_version(),
            "ownerReferences": others,
            "annotations": {annotation::APPLIED_HASH: null, annotation::ADOPT_BY: owner.adopt_value()},
        }});
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        match api.patch(&live.name_any(), &update_params(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            patched => patched.map(|_| ()),
        }
    }

    /// Hands the replicas of a Deployment over to an autoscaler or a person.
    ///
    /// A field that its last manager no longer applies falls back to its default, which is 1 replica. So another field
    /// manager takes the present number before the operator stops applying the field.
    pub async fn hand_over_replicas(&self, live: &Deployment) -> kube::Result<()> {
        let replicas = live.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let patch = json!({
            "apiVersion": Deployment::api_version(&()), "kind": Deployment::kind(&()),
            "metadata": {"name": live.name_any(), "resourceVersion": live.resource_version()},
            "spec": {"replicas": replicas},
        });
        let api: Api<Deployment> =
            Api::namespaced(self.client.clone(), &live.namespace().unwrap_or_default());
        let params = PatchParams::apply(&format!("{FIELD_MANAGER}-scaling")).force();
        api.patch(&live.name_any(), &params, &Patch::Apply(&patch)).await.map(|_| ())
    }

    /// Makes `live` equal to `desired`, if it belongs to the owner. `newer` says whether it is newer than the cached one.
    async fn update<K: NamespacedKind>(
        &self,
        api: &Api<K>,
        owner: &Owner,
        desired: &DesiredObject,
        live: &K,
        newer: bool,
    ) -> kube::Result<Applied<K>> {
        if owner.owned_before(live) {
            return Ok(Applied::Leftover);
        }
        let (full_name, inherited) = match owner.mark {
            OwnerMark::ControllerReference => (desired.name.clone(), false),
            // No garbage collector deletes the child of an earlier object of the owner's name: take it over.
            OwnerMark::UidAnnotation(_) => {
                (format!("{}/{}", owner.namespace, desired.name), desired.labels_match(live))
            }
        };
        if !owner.owns(live) && !inherited {
            let is_given = owner.was_given(live);
            let refused = if is_given { self.hand_over_obstacles(owner).await? } else { None };
            if !is_given || refused.is_some() {
                return Ok(Applied::Foreign(ForeignObject {
                    kind: K::kind(&()).into_owned(),
                    name: full_name,
                    hand_over: format!("{}={}", annotation::ADOPT_BY, owner.adopt_value()),
                    refused,
                }));
            }
        }
        let applied = live.annotations().get(annotation::APPLIED_HASH).map(|text| AppliedHash::parse(text));
        if applied.is_some_and(|applied| applied.hash == desired.hash)
            && (self.is_reformatted(live, desired) || desired.is_in(live)?)
        {
            self.seen_as_desired.lock().insert(self.id_of(live));
            return Ok(Applied::Unchanged(newer.then(|| live.clone())));
        }
        let shape = applied.and_then(|applied| applied.shape);
        let is_new = applied.is_some_and(|applied| applied.hash != desired.hash);
        if is_new
            && shape == Some(&*desired.shape)
            && self.seen_as_desired.lock().contains(&self.id_of(live))
            && owner.owns(live)
            && is_built_in::<K>()
            && let Some(values) = desired.changed_values(live)?
        {
            match self.patch(api, desired, values).await {
                // A value that excludes another one, which the server has set by default.
                Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {}
                Ok(patched) if desired.is_in(&patched)? => {
                    self.remember(&patched, desired, true);
                    return Ok(Applied::Written(patched));
                }
                // Somebody has changed another value of ours since, or the server stores one in another form.
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        if applied.is_none() || shape.is_some() {
            // Written by others, or by a creation or a patch.
            managed_fields::migrate(api, &desired.name).await?;
        }
        let mut written = self.send(api, desired, desired.if_same(live)).await?;
        // A cached object has no managed fields: only the response shows whether fields must be migrated.
        if has_updates(&written) {
            managed_fields::migrate(api, &desired.name).await?;
            written = self.send(api, desired, desired.if_same(live)).await?;
        }
        Ok(Applied::Written(written))
    }

    /// Creates a child. Fails with a conflict if an object of its name exists.
    async fn create<K: NamespacedKind>(&self, namespace: &str, desired: &DesiredObject) -> kube::Result<K> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let body = serde_json::to_vec(&desired.object).map_err(kube::Error::SerdeError)?;
        let mut request = Request::new(K::url_path(&(), Some(namespace)))
            .create(&params, body)
            .map_err(kube::Error::BuildRequest)?;
        // As kube marks its own requests, so that the client knows what is meant.
        request.extensions_mut().insert("create");
        let created = self.client.request(request).await?;
        self.remember(&created, desired, desired.is_in(&created)?);
        Ok(created)
    }

    /// Sets values of a child. Fails with a conflict if it was deleted since.
    async fn patch<K: NamespacedKind>(
        &self,
        api: &Api<K>,
        desired: &DesiredObject,
        values: Unprintable,
    ) -> kube::Result<K> {
        match api.patch(&desired.name, &update_params(), &Patch::Strategic(values)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                Err(kube::Error::Api(Box::new(Status {
                    code: 409,
                    reason: "Conflict".to_owned(),
                    ..*status
                })))
            }
            patched => patched,
        }
    }

    async fn send<K: NamespacedKind>(
        &self,
        api: &Api<K>,
        desired: &DesiredObject,
        patch: Unprintable,
    ) -> kube::Result<K> {
        let written = api
            .patch(&desired.name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(patch))
            .await?;
        self.remember(&written, desired, desired.is_in(&written)?);
        Ok(written)
    }

    /// Eight bytes that stand for a child. Two that share them cost at most an apply where a patch would do, or the other way
    /// round.
    fn id_of<K: Resource<DynamicType = ()>>(&self, child: &K) -> u64 {
        self.hasher.hash_one((K::kind(&()), child.meta().uid.as_deref()))
    }

    /// Remembers the response to a write, and whether the desired object is in it. One lock at a time, here and in
    /// [`Self::forget`]: no order of locks to keep.
    fn remember<K: NamespacedKind>(&self, written: &K, desired: &DesiredObject, is_as_desired: bool) {
        let (Some(uid), Some(version)) = (written.uid(), written.resource_version()) else { return };
        let key = key_of::<K>(written.namespace().as_deref(), &desired.name);
        if is_as_desired {
            self.reformatted.lock().remove(&key);
        } else {
            let (uid, version) = (uid.clone(), version.clone());
            let reformatted = Reformatted { uid, hash: desired.hash.clone(), version };
            self.reformatted.lock().insert(key.clone(), reformatted);
        }
        self.seen_as_desired.lock().insert(self.id_of(written));
        let response = Arc::new(written.clone());
        let undelivered = Undelivered { uid, version, response, since: Instant::now() };
        self.undelivered.lock().insert(key, undelivered);
    }

    /// The response to the last write, if it is newer than the cached object. The cache lags behind by the delay of the
    /// watch, and deciding by an older object would send the same write again.
    pub fn newer_than<K: NamespacedKind>(
        &self,
        namespace: &str,
        name: &str,
        cached: Option<&K>,
    ) -> Option<Arc<K>> {
        let key = key_of::<K>(Some(namespace), name);
        let mut all = self.undelivered.lock();
        let last = all.get(&key)?;
        let delivered = cached.is_some_and(|cached| !is_older(cached, &last.version));
        // Past the limit the child was probably deleted before the watch delivered it.
        if delivered || last.since.elapsed() > MAX_WATCH_LAG {
            all.remove(&key);
            return None;
        }
        last.response.clone().downcast().ok()
    }

    /// Whether `live` is exactly what the server made of the last write of the same desired object.
    fn is_reformatted<K: NamespacedKind>(&self, live: &K, desired: &DesiredObject) -> bool {
        let all = self.reformatted.lock();
        let last = all.get(&key_of::<K>(live.namespace().as_deref(), &desired.name));
        last.is_some_and(|last| {
            Some(&last.uid) == live.uid().as_ref()
                && last.hash == desired.hash
                && Some(&last.version) == live.resource_version().as_ref()
        })
    }

    /// Drops the response to a write that a watch has delivered. Returns whether `cached` is exactly that response, which
    /// the reconcile that wrote it has seen.
    pub fn delivered<K: Resource<DynamicType = ()>>(&self, cached: &K) -> bool {
        let mut all = self.undelivered.lock();
        // Most of the time nothing is under way.
        if all.is_empty() {
            return false;
        }
        let key = key_of::<K>(cached.namespace().as_deref(), &cached.name_any());
        let Some(last) = all.get(&key).filter(|last| !is_older(cached, &last.version)) else { return false };
        let is_response = cached.meta().uid.as_ref() == Some(&last.uid)
            && cached.meta().resource_version.as_ref() == Some(&last.version);
        all.remove(&key);
        is_response
    }

    /// Drops what is remembered of a child that was deleted.
    pub fn forget<K: Resource<DynamicType = ()>>(&self, deleted: &K) {
        let (key, uid) = (key_of::<K>(deleted.namespace().as_deref(), &deleted.name_any()), deleted.uid());
        self.seen_as_desired.lock().remove(&self.id_of(deleted));
        remove_if(&self.undelivered, &key, |last| Some(&last.uid) == uid.as_ref());
        remove_if(&self.reformatted, &key, |last| Some(&last.uid) == uid.as_ref());
    }
}

fn remove_if<T>(all: &Mutex<HashMap<ChildKey, T>>, key: &ChildKey, condition: impl Fn(&T) -> bool) {
    let mut all = all.lock();
    if all.get(key).is_some_and(condition) {
        all.remove(key);
    }
}

/// The groups whose kinds take strategic merge patches, which merge lists by key. Those of custom resources do not.
const BUILT_IN_GROUPS: [&str; 5] = ["", "apps", "policy", "networking.k8s.io", "rbac.authorization.k8s.io"];

fn is_built_in<K: Resource<DynamicType = ()>>() -> bool {
    BUILT_IN_GROUPS.contains(&&*K::group(&()))
}

/// Parameters of the few patches that are not server-side apply.
fn update_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

#[cfg(test)]
mod tests;
