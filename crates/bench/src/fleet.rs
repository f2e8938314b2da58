//! Control planes by the hundred, and what watches say about them and their children.
//!
//! The watches belong to the bench, not to the operator. They see an object when the API server has stored it, so that times
//! hold for any operator, whatever it reports about itself.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    mem,
    num::NonZero,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::Notify, task::JoinSet};

/// Connections that write at a time.
pub(crate) const WRITERS: usize = 8;
/// How long a whole fleet may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(15);

/// The kinds of children that every control plane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Child {
    Deployment,
    Service,
    ServiceAccount,
    Role,
    RoleBinding,
}

impl Child {
    pub(crate) const ALL: [Self; 5] =
        [Self::Deployment, Self::Service, Self::ServiceAccount, Self::Role, Self::RoleBinding];
}

/// What is known of a child.
#[derive(Clone, Debug)]
pub(crate) struct ObservedChild {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    /// When the watch delivered this version.
    pub(crate) at: Instant,
}

/// What is known of a control plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plane {
    pub(crate) generation: i64,
    /// `status.observedGeneration`.
    pub(crate) observed: i64,
    pub(crate) children: HashMap<Child, ObservedChild>,
}

impl Plane {
    /// Whether all children exist and the status is that of the present spec.
    pub(crate) fn is_complete(&self) -> bool {
        Child::ALL.iter().all(|kind| self.children.contains_key(kind))
            && self.generation > 0
            && self.observed >= self.generation
    }

    /// Whether it was edited to so many replicas, and its Deployment and status are those of the edit. A fleet is created with
    /// one replica, and edited once for each further one.
    pub(crate) fn is_edited_to(&self, replicas: u32) -> bool {
        let generation = i64::from(replicas);
        self.generation >= generation && self.is_complete() && self.rollout() >= generation
    }

    /// The generation of the Deployment, 0 without one.
    pub(crate) fn rollout(&self) -> i64 {
        self.children.get(&Child::Deployment).map_or(0, |child| child.generation)
    }
}

/// What the watches of a fleet have delivered.
#[derive(Debug, Default)]
struct Planes {
    by_name: HashMap<String, Plane>,
    /// The names of those that changed since somebody looked, so that a wait for thousands looks at each change once.
    changed: Vec<String>,
}

impl Planes {
    /// The control plane of this name, which is about to change.
    fn changing(&mut self, name: String) -> &mut Plane {
        self.changed.push(name.clone());
        self.by_name.entry(name).or_default()
    }
}

/// Control planes in one namespace, or spread evenly over several.
pub(crate) struct Fleet {
    client: Client,
    /// At least one.
    namespaces: Vec<String>,
    planes: Arc<Mutex<Planes>>,
    changed: Arc<Notify>,
    /// Ends with the fleet.
    _watches: JoinSet<()>,
}

impl Fleet {
    /// Creates so many namespaces and begins to watch them.
    pub(crate) async fn new(client: Client, name: &str, namespaces: NonZero<usize>) -> Result<Self> {
        let api: Api<Namespace> = Api::all(client.clone());
        let namespaces: Vec<_> = (1..=namespaces.get()).map(|number| format!("{name}-{number}")).collect();
        for namespace in &namespaces {
            let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
            api.create(&PostParams::default(), &object).await.context("cannot create a namespace")?;
        }
        let (planes, changed) = (Arc::<Mutex<Planes>>::default(), Arc::<Notify>::default());
        let mut watches = JoinSet::new();
        for namespace in &namespaces {
            watches.spawn(watch_planes(planes_of(&client, namespace), planes.clone(), changed.clone()));
            macro_rules! children {
                ($($kind:ident),+) => {$(
                    let api: Api<PartialObjectMeta<$kind>> = Api::namespaced(client.clone(), namespace);
                    watches.spawn(watch_children(api, Child::$kind, planes.clone(), changed.clone()));
                )+};
            }
            children!(Deployment, Service, ServiceAccount, Role, RoleBinding);
        }
        Ok(Self { client, namespaces, planes, changed, _watches: watches })
    }

    /// Whether a namespace is one of this fleet.
    pub(crate) fn contains(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|own| own == namespace)
    }

    /// The namespace of the control plane of a number.
    pub(crate) fn namespace_of(&self, number: usize) -> &str {
        self.namespaces.get(number % self.namespaces.len()).map_or("", String::as_str)
    }

    /// Creates control planes of these numbers.
    pub(crate) async fn create(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        self.created(numbers).try_for_each(|_| async { Ok(()) }).await
    }

    /// The same, as each one is created.
    pub(crate) fn created(
        &self,
        numbers: std::ops::Range<usize>,
    ) -> impl Stream<Item = Result<DynamicObject>> {
        let created = stream::iter(numbers).map(|number| {
            let (api, object) = (planes_of(&self.client, self.namespace_of(number)), plane(&name(number)));
            async move {
                api.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create")
            }
        });
        created.buffer_unordered(WRITERS)
    }

    /// Sets the replicas of control planes of these numbers.
    pub(crate) async fn scale(&self, numbers: std::ops::Range<usize>, replicas: u32) -> Result<()> {
        self.scaled(numbers, replicas).try_for_each(|_| async { Ok(()) }).await
    }

    /// The same, as each one is edited.
    pub(crate) fn scaled(
        &self,
        numbers: std::ops::Range<usize>,
        replicas: u32,
    ) -> impl Stream<Item = Result<DynamicObject>> {
        stream::iter(numbers).map(move |number| self.scale_one(number, replicas)).buffer_unordered(WRITERS)
    }

    /// Sets the replicas of one, and returns it.
    pub(crate) async fn scale_one(&self, number: usize, replicas: u32) -> Result<DynamicObject> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let api = planes_of(&self.client, self.namespace_of(number));
        api.patch(&name(number), &PatchParams::default(), &patch).await.context("edit")
    }

    /// Deletes the Service of one.
    pub(crate) async fn delete_service(&self, number: usize) -> Result<()> {
        let service = self.get(number).children.get(&Child::Service).map(|child| child.name.clone());
        let api: Api<Service> = Api::namespaced(self.client.clone(), self.namespace_of(number));
        api.delete(&service.context("no Service")?, &kube::api::DeleteParams::default()).await?;
        Ok(())
    }

    /// What is known of a control plane now.
    pub(crate) fn get(&self, number: usize) -> Plane {
        self.planes.lock().by_name.get(&name(number)).cloned().unwrap_or_default()
    }

    /// Waits until something holds of every control plane of these numbers. Returns when the last of them changed. One wait of
    /// a fleet at a time: a change is shown to one of them.
    pub(crate) async fn until(
        &self,
        what: &str,
        numbers: std::ops::Range<usize>,
        holds: impl Fn(&Plane) -> bool,
    ) -> Result<()> {
        let began = Instant::now();
        let mut open: HashSet<_> = numbers.map(name).collect();
        {
            let mut planes = self.planes.lock();
            planes.changed.clear();
            open.retain(|name| !planes.by_name.get(name).is_some_and(&holds));
        }
        loop {
            let changed = self.changed.notified();
            {
                let mut planes = self.planes.lock();
                for name in mem::take(&mut planes.changed) {
                    if planes.by_name.get(&name).is_some_and(&holds) {
                        open.remove(&name);
                    }
                }
            }
            if open.is_empty() {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!(
                    "{what}: not within {PATIENCE:?} for {} control planes, {:?} among them",
                    open.len(),
                    open.iter().next()
                );
            }
            let _ = tokio::time::timeout(Duration::from_millis(500), changed).await;
        }
    }
}

/// The name of the control plane of a number.
pub(crate) fn name(number: usize) -> String {
    format!("plane-{number:05}")
}

fn plane(name: &str) -> Value {
    json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "metadata": {"name": name},
        "spec": {"image": "example.test/coder:v2.36.1", "replicas": 1}})
}

pub(crate) fn planes_of(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("coder.com", "v1alpha1", "CoderControlPlane"));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn watch_planes(api: Api<DynamicObject>, planes: Arc<Mutex<Planes>>, changed: Arc<Notify>) {
    let mut events = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(object) | Event::InitApply(object)) = event {
            let mut planes = planes.lock();
            let plane = planes.changing(object.name_any());
            plane.generation = object.metadata.generation.unwrap_or_default();
            plane.observed =
                object.data.pointer("/status/observedGeneration").and_then(Value::as_i64).unwrap_or_default();
        }
        changed.notify_waiters();
    }
}

async fn watch_children<K>(
    api: Api<PartialObjectMeta<K>>,
    kind: Child,
    planes: Arc<Mutex<Planes>>,
    changed: Arc<Notify>,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
{
    let mut events = watcher::watcher(api, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(child) | Event::InitApply(child)) => {
                if let Some(owner) = owner(&child) {
                    let seen = ObservedChild {
                        name: child.name_any(),
                        uid: child.uid().unwrap_or_default(),
                        generation: child.metadata.generation.unwrap_or_default(),
                        at: Instant::now(),
                    };
                    planes.lock().changing(owner).children.insert(kind, seen);
                }
            }
            Ok(Event::Delete(child)) => {
                if let Some(owner) = owner(&child) {
                    planes.lock().changing(owner).children.remove(&kind);
                }
            }
            _ => {}
        }
        changed.notify_waiters();
    }
}

fn owner<K>(child: &PartialObjectMeta<K>) -> Option<String> {
    let owners = child.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.kind == "CoderControlPlane").map(|owner| owner.name.clone())
}
