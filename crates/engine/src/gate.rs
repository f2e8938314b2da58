//! The one way in which children are written.
//!
//! Server-side apply under one field manager, with an owner reference, the labels of the owner and a hash of
//! what was asked for. Nothing is sent when the hash matches and the live object already holds every desired
//! field. A child that we do not hold is created without a read and never adopted: an object of others under
//! its name stays untouched and is reported.

mod contains;
mod managed;

use std::{collections::BTreeMap, collections::HashMap, fmt::Debug};

use coder_k8s_api::names::{FIELD_MANAGER, annotation};
use coder_k8s_core::outcome::Foreign;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A kind that can be a child.
pub trait Child:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Child for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
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
}

impl Owner {
    /// How a foreign object names this owner to be handed over to it: `<kind>/<name>`.
    fn mark(&self) -> String {
        format!("{}/{}", self.reference.kind, self.reference.name)
    }

    fn owns<K: Resource>(&self, object: &K) -> bool {
        object.owner_references().iter().any(|reference| {
            reference.controller == Some(true)
                && reference.uid == self.reference.uid
                && reference.kind == self.reference.kind
                && reference.name == self.reference.name
        })
    }

    /// Whether an object belongs to an earlier object of our name, and so is about to go.
    fn outlived<K: Resource>(&self, object: &K) -> bool {
        object.owner_references().iter().any(|reference| {
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
    /// It was as desired; nothing was sent.
    Unchanged,
    /// It was written. The object as the server returned it.
    Written(K),
    /// A child of an earlier object of the same name is still there; the garbage collector will remove it.
    Leftover,
    /// An object of others is in the way; it was not touched.
    Foreign(Foreign),
}

/// The gate. One for the process.
pub struct Gate {
    client: Client,
    /// What the server made of the last write, by uid: hash and resourceVersion. Where the server writes a value
    /// in another form than we do, this keeps us from sending it again and again.
    written: Mutex<HashMap<String, (String, String)>>,
}

impl Gate {
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
        match held {
            Some(live) => self.update(&api, owner, &wanted, live).await,
            None => match self.send(&api, &wanted, Expect::Absent).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    // It exists after all, or has gone this moment; then the conflict is worth a retry.
                    match api.get_opt(&wanted.name).await? {
                        Some(live) => self.update(&api, owner, &wanted, &live).await,
                        None => Err(kube::Error::Api(status)),
                    }
                }
                sent => sent.map(Applied::Written),
            },
        }
    }

    /// Removes a child that is no longer desired: only this incarnation, and only if it is ours.
    ///
    /// Returns whether anything was removed.
    pub async fn remove<K: Child>(&self, owner: &Owner, live: &K) -> kube::Result<bool> {
        if !owner.owns(live) || live.meta().deletion_timestamp.is_some() {
            return Ok(false);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), &owner.namespace);
        let exactly = Preconditions { uid: live.uid(), resource_version: None };
        match api.delete(&live.name_any(), &DeleteParams::background().preconditions(exactly)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
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
        if !owner.owns(live) && !owner.was_given(live) {
            return Ok(Applied::Foreign(Foreign {
                kind: K::kind(&()).into_owned(),
                name: wanted.name.clone(),
                hand_over: format!("{}={}", annotation::ADOPT_BY, owner.mark()),
            }));
        }
        let applied_hash = live.annotations().get(annotation::APPLIED_HASH);
        if applied_hash == Some(&wanted.hash) && (self.was_written(live, wanted) || wanted.is_in(live)?) {
            return Ok(Applied::Unchanged);
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
            self.written.lock().insert(uid, (wanted.hash.clone(), version));
        }
        Ok(written)
    }

    fn was_written<K: Resource>(&self, live: &K, wanted: &Wanted) -> bool {
        let written = self.written.lock();
        let last = live.uid().and_then(|uid| written.get(&uid));
        last.is_some_and(|(hash, version)| {
            *hash == wanted.hash && Some(version) == live.resource_version().as_ref()
        })
    }

    /// Forgets a child that is gone.
    pub fn forget(&self, uid: &str) {
        self.written.lock().remove(uid);
    }
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
        desired.meta_mut().owner_references = Some(vec![owner.reference.clone()]);
        let labels = desired.labels_mut();
        for (key, value) in &owner.labels {
            labels.insert(key.clone(), value.clone());
        }
        let object = typed(&desired)?;
        let hash = short_hash(object.to_string().as_bytes());
        let object = with(object, &["metadata", "annotations", annotation::APPLIED_HASH], json!(hash));
        Ok(Self { name, object, hash })
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
mod tests {
    use k8s_openapi::api::core::v1::ServiceAccount;
    use kube::api::ObjectMeta;

    use super::*;

    fn owner() -> Owner {
        Owner {
            namespace: "ns".into(),
            reference: OwnerReference {
                api_version: "coder.com/v1alpha1".into(),
                kind: "CoderControlPlane".into(),
                name: "coder".into(),
                uid: "1".into(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            },
            labels: [("app.kubernetes.io/managed-by".to_owned(), "coder-k8s".to_owned())].into(),
        }
    }

    fn account(annotation: Option<&str>, owners: Vec<OwnerReference>) -> ServiceAccount {
        ServiceAccount {
            metadata: ObjectMeta {
                name: Some("coder".into()),
                annotations: annotation
                    .map(|value| [(annotation::ADOPT_BY.to_owned(), value.to_owned())].into()),
                owner_references: Some(owners),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        }
    }

    #[test]
    fn the_hash_changes_with_the_content_and_not_with_the_run() {
        let mut other = account(None, vec![]);
        other.automount_service_account_token = Some(false);
        let hash = |object| Wanted::new(&owner(), object).unwrap().hash;
        assert_eq!(hash(account(None, vec![])), hash(account(None, vec![])));
        assert_ne!(hash(account(None, vec![])), hash(other));
    }

    #[test]
    fn only_the_same_incarnation_of_the_owner_owns() {
        let (me, mut before) = (owner(), owner().reference);
        assert!(me.owns(&account(None, vec![me.reference.clone()])));
        before.uid = "0".into();
        assert!(!me.owns(&account(None, vec![before])));
        let mut guest = owner().reference;
        guest.controller = None;
        assert!(!me.owns(&account(None, vec![guest])));
    }

    #[test]
    fn an_object_is_handed_over_by_name_and_only_if_nobody_controls_it() {
        let me = owner();
        assert!(me.was_given(&account(Some("CoderControlPlane/coder"), vec![])));
        assert!(!me.was_given(&account(Some("CoderControlPlane/other"), vec![])));
        assert!(!me.was_given(&account(None, vec![])));
        let mut other = me.reference.clone();
        other.uid = "2".into();
        assert!(!me.was_given(&account(Some("CoderControlPlane/coder"), vec![other])));
    }
}
