//! The one way in which children are written.
//!
//! Server-side apply under one field manager, with an owner reference, the labels of the owner and a hash of
//! what was asked for. Nothing is sent when the hash matches and the live object already holds every desired
//! field. A child that we do not hold is created without a read and never adopted: an object of others under
//! its name stays untouched and is reported.

mod contains;
mod managed;

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::names::{FIELD_MANAGER, annotation, label};
use coder_k8s_core::outcome::ForeignObject;
use k8s_openapi::{
    NamespaceResourceScope, api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// A kind that can be a child.
pub trait Child:
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

impl<K> Child for K where
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

/// The object that children belong to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Namespace of the owner and of its children.
    pub namespace: String,
    /// The controller reference that each child bears.
    pub reference: OwnerReference,
    /// The labels that each child bears.
    pub labels: BTreeMap<String, String>,
    /// How its children are told from objects of others.
    pub claim: Claim,
}

/// How the children of an owner are told from objects of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// By the controller reference: for children in the owner's namespace.
    Reference,
    /// By the owner's uid in an annotation, and by their labels: for children elsewhere, which no reference may name.
    Mark,
}

impl Owner {
    /// The same owner with children in another namespace.
    #[must_use]
    pub fn outside(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), claim: Claim::Mark, ..self.clone() }
    }

    /// How a foreign object names this owner to be handed over to it: `<kind>/<name>`.
    pub(crate) fn mark(&self) -> String {
        format!("{}/{}", self.reference.kind, self.reference.name)
    }

    fn owns<K: Resource>(&self, object: &K) -> bool {
        if self.claim == Claim::Mark {
            return object.annotations().get(annotation::WORKSPACE_RBAC_OWNER_UID)
                == Some(&self.reference.uid);
        }
        object.owner_references().iter().any(|reference| {
            reference.controller == Some(true)
                && reference.uid == self.reference.uid
                && reference.kind == self.reference.kind
                && reference.name == self.reference.name
        })
    }

    /// Whether an object belongs to an earlier object of our name, and so is about to go.
    fn outlived<K: Resource>(&self, object: &K) -> bool {
        self.claim == Claim::Reference
            && object.owner_references().iter().any(|reference| {
                reference.controller == Some(true)
                    && reference.uid != self.reference.uid
                    && reference.kind == self.reference.kind
                    && reference.name == self.reference.name
            })
    }

    /// Whether an object that we do not own was given to us by whoever does.
    fn was_given<K: Resource>(&self, object: &K) -> bool {
        let unowned = !object.owner_references().iter().any(|reference| reference.controller == Some(true));
        unowned && object.annotations().get(annotation::ADOPT_BY) == Some(&self.mark())
    }
}

/// What became of a child.
#[derive(Clone, Debug)]
pub enum Applied<K> {
    /// It was as desired; nothing was sent. The object, if it had to be read.
    Unchanged(Option<K>),
    /// It was written. The object as the server returned it.
    Written(K),
    /// A child of an earlier object of the same name is still there; the garbage collector will remove it.
    Leftover,
    /// An object of others is in the way; it was not touched.
    Foreign(ForeignObject),
}

/// The gate. One for the process.
pub struct Applier {
    client: Client,
    written: Mutex<HashMap<Place, Wrote>>,
}

/// What the server made of our last write of a child.
struct Wrote {
    uid: String,
    /// Hash of what was asked for, and the version that came of it. Where the server writes a value in another form
    /// than we do, they keep us from sending it again and again.
    hash: String,
    version: String,
    /// The child itself and when it was written, until the watch has shown it.
    unseen: Option<(Arc<dyn Any + Send + Sync>, Instant)>,
}

/// Kind, namespace and name of a child.
type Place = (String, String, String);

fn key_of<K: Resource<DynamicType = ()>>(namespace: Option<&str>, name: &str) -> Place {
    (K::kind(&()).into_owned(), namespace.unwrap_or_default().to_owned(), name.to_owned())
}

/// Whether what was seen is older than a version. Versions are numbers that grow; where they are not, nothing is older.
fn is_older<K: Resource>(seen: &K, version: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    match (seen.meta().resource_version.as_deref().and_then(number), number(version)) {
        (Some(seen), Some(version)) => seen < version,
        _ => false,
    }
}

/// How long a watch may take to show what was written.
const UNSEEN: Duration = Duration::from_secs(10);

impl Applier {
    /// A gate that writes with `client`.
    pub fn new(client: Client) -> Self {
        Self { client, written: Mutex::default() }
    }

    /// Makes the child be as `desired`. `held` is the child as last seen.
    pub async fn apply<K: Child>(
        &self,
        owner: &Owner,
        desired: K,
        held: Option<&K>,
    ) -> kube::Result<Applied<K>> {
        let wanted = Wanted::new(owner, desired)?;
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        let newer = self.unseen(&owner.namespace, &wanted.name, held);
        match newer.as_deref().or(held) {
            Some(live) => match self.update(&api, owner, &wanted, live).await? {
                Applied::Unchanged(_) => Ok(Applied::Unchanged(newer.as_deref().cloned())),
                other => Ok(other),
            },
            None => match self.send(&api, &wanted, Expect::Absent).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    // It exists after all, or has gone this moment; then the conflict is worth a retry.
                    match api.get_opt(&wanted.name).await? {
                        Some(live) => match self.update(&api, owner, &wanted, &live).await? {
                            Applied::Unchanged(_) => Ok(Applied::Unchanged(Some(live))),
                            other => Ok(other),
                        },
                        None => Err(kube::Error::Api(status)),
                    }
                }
                sent => sent.map(Applied::Written),
            },
        }
    }

    /// Removes a child that is no longer desired: only this incarnation, and only if it is ours. What is elsewhere
    /// was judged by whoever asks, as it was seen.
    ///
    /// Returns whether anything was removed.
    pub async fn remove<K: Child>(&self, owner: &Owner, live: &K) -> kube::Result<bool> {
        let judged = owner.claim == Claim::Mark;
        if !(judged || owner.owns(live)) || live.meta().deletion_timestamp.is_some() {
            return Ok(false);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        let resource_version = live.resource_version().filter(|_| judged);
        let exactly = Preconditions { uid: live.uid(), resource_version };
        match api.delete(&live.name_any(), &DeleteParams::background().preconditions(exactly)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a child up: it stays, and no longer belongs to the owner. An annotation lets it come back.
    pub async fn detach<K: Child>(&self, owner: &Owner, live: &K) -> kube::Result<()> {
        if !owner.owns(live) {
            return Ok(());
        }
        let others: Vec<_> =
            live.owner_references().iter().filter(|o| o.uid != owner.reference.uid).cloned().collect();
        let patch = json!({"metadata": {
            "resourceVersion": live.resource_version(),
            "ownerReferences": others,
            "annotations": {annotation::APPLIED_HASH: null, annotation::ADOPT_BY: owner.mark()},
        }});
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        match api.patch(&live.name_any(), &by_hand(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            patched => patched.map(|_| ()),
        }
    }

    /// Hands the number of pods of a Deployment over to whoever scales it from now on.
    ///
    /// A field that its only manager no longer applies falls back to its default, which for replicas is 1. So another
    /// manager holds the number as it is before the operator lets go of it.
    pub async fn hand_over_replicas(&self, live: &Deployment) -> kube::Result<()> {
        let replicas = live.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let patch = json!({
            "apiVersion": Deployment::api_version(&()), "kind": Deployment::kind(&()),
            "metadata": {"name": live.name_any(), "resourceVersion": live.resource_version()},
            "spec": {"replicas": replicas},
        });
        let api: Api<Deployment> =
            Api::namespaced(self.client.clone(), &live.namespace().unwrap_or_default());
        let params = PatchParams::apply(SCALING_MANAGER).force();
        api.patch(&live.name_any(), &params, &Patch::Apply(&patch)).await.map(|_| ())
    }

    async fn update<K: Child>(
        &self,
        api: &Api<K>,
        owner: &Owner,
        wanted: &Wanted,
        live: &K,
    ) -> kube::Result<Applied<K>> {
        if owner.outlived(live) {
            return Ok(Applied::Leftover);
        }
        let inherited = owner.claim == Claim::Mark && wanted.is_labelled(live);
        if !owner.owns(live) && !owner.was_given(live) && !inherited {
            let name = match owner.claim {
                Claim::Reference => wanted.name.clone(),
                Claim::Mark => format!("{}/{}", owner.namespace, wanted.name),
            };
            return Ok(Applied::Foreign(ForeignObject {
                kind: K::kind(&()).into_owned(),
                name,
                hand_over: format!("{}={}", annotation::ADOPT_BY, owner.mark()),
            }));
        }
        let applied_hash = live.annotations().get(annotation::APPLIED_HASH);
        if applied_hash == Some(&wanted.hash) && (self.was_written(live, wanted) || wanted.is_in(live)?) {
            return Ok(Applied::Unchanged(None));
        }
        if applied_hash.is_none() {
            managed::migrate(api, &wanted.name).await?;
        }
        let mut written = self.send(api, wanted, Expect::Incarnation(live.uid())).await?;
        if managed::has_updates(&written) {
            managed::migrate(api, &wanted.name).await?;
            written = self.send(api, wanted, Expect::Incarnation(live.uid())).await?;
        }
        Ok(Applied::Written(written))
    }

    async fn send<K: Child>(&self, api: &Api<K>, wanted: &Wanted, expect: Expect) -> kube::Result<K> {
        let (field, value) = match expect {
            // No object has this version: the server creates, or answers 409.
            Expect::Absent => ("resourceVersion", json!("1")),
            Expect::Incarnation(uid) => ("uid", json!(uid)),
        };
        let object = with(wanted.object.clone(), &["metadata", field], value);
        let written = api
            .patch(&wanted.name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(Unprinted(object)))
            .await?;
        if let (Some(uid), Some(version)) = (written.uid(), written.resource_version()) {
            let unseen: Arc<dyn Any + Send + Sync> = Arc::new(written.clone());
            let hash = wanted.hash.clone();
            let wrote = Wrote { uid, hash, version, unseen: Some((unseen, Instant::now())) };
            self.written.lock().insert(key_of::<K>(written.namespace().as_deref(), &wanted.name), wrote);
        }
        Ok(written)
    }

    /// What was written and is newer than what a watch has shown.
    fn unseen<K: Child>(&self, namespace: &str, name: &str, held: Option<&K>) -> Option<Arc<K>> {
        let mut all = self.written.lock();
        let wrote = all.get_mut(&key_of::<K>(Some(namespace), name))?;
        let (object, since) = wrote.unseen.as_ref()?;
        let shown = held.is_some_and(|held| !is_older(held, &wrote.version));
        if shown || since.elapsed() > UNSEEN {
            wrote.unseen = None;
            return None;
        }
        object.clone().downcast().ok()
    }

    fn was_written<K: Child>(&self, live: &K, wanted: &Wanted) -> bool {
        let written = self.written.lock();
        let last = written.get(&key_of::<K>(live.namespace().as_deref(), &wanted.name));
        last.is_some_and(|wrote| {
            Some(&wrote.uid) == live.uid().as_ref()
                && wrote.hash == wanted.hash
                && Some(&wrote.version) == live.resource_version().as_ref()
        })
    }

    /// Forgets a child that is gone.
    pub fn forget<K: Resource<DynamicType = ()>>(&self, gone: &K) {
        let key = key_of::<K>(gone.namespace().as_deref(), &gone.name_any());
        let mut written = self.written.lock();
        if written.get(&key).is_some_and(|wrote| Some(&wrote.uid) == gone.uid().as_ref()) {
            written.remove(&key);
        }
    }
}

/// The manager that holds the number of pods when the operator does not decide it.
const SCALING_MANAGER: &str = "coder-k8s-scaling";

/// For the few patches that are not applied.
fn by_hand() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

enum Expect {
    Absent,
    Incarnation(Option<String>),
}

/// kube asks for `Debug` of what it sends; a Secret must not be printable.
#[derive(Clone, Serialize)]
#[serde(transparent)]
struct Unprinted(Value);

impl Debug for Unprinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("object")
    }
}

/// The complete object that is asked for, and its hash.
struct Wanted {
    name: String,
    object: Value,
    hash: String,
}

impl Wanted {
    fn new<K: Child>(owner: &Owner, mut desired: K) -> kube::Result<Self> {
        let name = desired.name_any();
        desired.meta_mut().namespace = Some(owner.namespace.clone());
        desired.meta_mut().owner_references = match owner.claim {
            Claim::Reference => Some(vec![owner.reference.clone()]),
            Claim::Mark => None,
        };
        let labels = desired.labels_mut();
        for (key, value) in &owner.labels {
            if key == label::MANAGED_BY {
                // The watch of children goes by it.
                labels.insert(key.clone(), value.clone());
            } else {
                labels.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        let object = typed(&desired)?;
        let hash = short_hash(object.to_string().as_bytes());
        let object = with(object, &["metadata", "annotations", annotation::APPLIED_HASH], json!(hash));
        Ok(Self { name, object, hash })
    }

    /// Whether an object bears all labels that are asked for.
    fn is_labelled<K: Resource>(&self, live: &K) -> bool {
        let labels = self.object.pointer("/metadata/labels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .all(|(key, value)| live.labels().get(key).is_some_and(|found| value.as_str() == Some(found)))
    }

    fn is_in<K: Child>(&self, live: &K) -> kube::Result<bool> {
        Ok(contains::contains(&typed(live)?, &self.object))
    }
}

/// An object as JSON with its kind, which typed objects leave out.
fn typed<K: Child>(object: &K) -> kube::Result<Value> {
    let object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    let object = with(object, &["apiVersion"], json!(K::api_version(&())));
    Ok(with(object, &["kind"], json!(K::kind(&()))))
}

/// The object with `value` at `path`. Parents that are missing are made.
fn with(mut object: Value, path: &[&str], value: Value) -> Value {
    let mut place = &mut object;
    for key in path {
        if !place.is_object() {
            *place = json!({});
        }
        let Some(map) = place.as_object_mut() else { return object };
        place = map.entry(*key).or_insert(Value::Null);
    }
    *place = value;
    object
}

/// The first 16 hexadecimal digits of a SHA-256.
fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"))
}

#[cfg(test)]
mod tests;
