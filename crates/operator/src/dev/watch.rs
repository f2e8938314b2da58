//! Watches the operator's kinds, their children and their events, keeps [`World`] up to date, and prints a line for
//! every change where there is no view.

use std::{fmt::Debug, sync::Arc};

use coder_k8s_api::{CoderControlPlane, CoderKind, CoderProvisioner, CoderWorkspaceProxy, names::label};
use futures::{
    StreamExt,
    future::{BoxFuture, join_all},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, Service, ServiceAccount},
    events::v1::Event,
    networking::v1::Ingress,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;

use super::{
    console::Console,
    world::{self, Child, Happened, Id, Shown, Simulated, World},
};

/// Runs until it is dropped.
pub(super) async fn everything(client: &Client, world: &Arc<World>, simulated: Simulated, console: &Console) {
    let watch = Watch { client, world, simulated, console };
    let objects = CoderKind::ALL.iter().map(|kind| match kind {
        CoderKind::ControlPlane => watch.objects::<CoderControlPlane>(),
        CoderKind::Provisioner => watch.objects::<CoderProvisioner>(),
        CoderKind::WorkspaceProxy => watch.objects::<CoderWorkspaceProxy>(),
    });
    let others = [
        watch.children::<Deployment>(|deployment| {
            let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
            let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
            format!("{ready}/{desired}")
        }),
        watch.children::<Service>(|_| String::new()),
        watch.children::<Ingress>(|_| String::new()),
        watch.children::<PartialObjectMeta<Secret>>(|_| String::new()),
        watch.children::<ServiceAccount>(|_| String::new()),
        watch.children::<Role>(|_| String::new()),
        watch.children::<RoleBinding>(|_| String::new()),
        watch.events(),
    ];
    join_all(objects.chain(others)).await;
}

struct Watch<'a> {
    client: &'a Client,
    world: &'a Arc<World>,
    simulated: Simulated,
    console: &'a Console,
}

impl<'a> Watch<'a> {
    /// Watches one of our kinds.
    fn objects<K: Shown>(&self) -> BoxFuture<'a, ()> {
        let Self { world, simulated, console, .. } = *self;
        self.follow::<K>(watcher::Config::default(), move |object| {
            let (id, next) = (world::id(object), world::object(object, simulated));
            let state = next.ready.as_ref().map(|(status, reason, message)| {
                format!(": Ready={status} {reason}{}{message}", if message.is_empty() { "" } else { ": " })
            });
            let ready = next.ready.clone();
            match world.put_object(id.clone(), next) {
                None => console.change(&format!("created {id}{}", state.unwrap_or_default())),
                Some(before) if before.ready != ready => {
                    console.change(&format!("changed {id}{}", state.unwrap_or_default()));
                }
                Some(_) => {}
            }
        })
    }

    /// Watches a kind of children.
    fn children<K>(&self, state: impl Fn(&K) -> String + Send + 'a) -> BoxFuture<'a, ()>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let Self { world, console, .. } = *self;
        let managed = format!("{}={}", label::MANAGED_BY, label::MANAGER);
        self.follow::<K>(watcher::Config::default().labels(&managed), move |object| {
            let (id, state) = (world::id(object), state(object));
            let child = Child { owner: owner(object), state: state.clone() };
            let text = if state.is_empty() { String::new() } else { format!(": {state} pods are ready") };
            match world.put_child(id.clone(), child) {
                None => console.change(&format!("created {id}{text}")),
                Some(before) if before.state != state => console.change(&format!("changed {id}{text}")),
                Some(_) => {}
            }
        })
    }

    /// Watches the events about our kinds.
    fn events(&self) -> BoxFuture<'a, ()> {
        let Self { world, .. } = *self;
        self.follow::<Event>(watcher::Config::default(), move |event| {
            if let Some(event) = happened(event) {
                world.happened(event);
            }
        })
    }

    /// Watches a kind. `put` takes every object that is new or changed.
    fn follow<K>(&self, config: watcher::Config, put: impl Fn(&K) + Send + 'a) -> BoxFuture<'a, ()>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let Self { world, console, .. } = *self;
        let api = Api::<K>::all(self.client.clone());
        let shown = K::kind(&()) != "Event";
        Box::pin(async move {
            let mut events = watcher(api, config).default_backoff().boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => put(&object),
                    Ok(watcher::Event::Delete(object)) if shown => {
                        let id = world::id(&object);
                        world.remove(&id);
                        console.change(&format!("deleted {id}"));
                    }
                    Ok(_) => {}
                    Err(error) => console.change(&format!("watch of {} failed: {error}", K::plural(&()))),
                }
            }
        })
    }
}

/// Which of our objects a child belongs to.
fn owner<K: Resource>(child: &K) -> Option<Id> {
    let owners = child.meta().owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| CoderKind::named(&owner.kind).is_some())?;
    let namespace = child.namespace().unwrap_or_default();
    Some(Id { kind: owner.kind.clone(), namespace, name: owner.name.clone() })
}

/// The event, if it is about one of our objects.
fn happened(event: &Event) -> Option<Happened> {
    let about = event.regarding.as_ref()?;
    let kind = about.kind.clone().filter(|kind| CoderKind::named(kind).is_some())?;
    let repeated = event.series.as_ref().map(|series| series.last_observed_time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let created = event.creation_timestamp().map(|time| time.0);
    let (reason, note) = (event.reason.clone().unwrap_or_default(), event.note.clone().unwrap_or_default());
    Some(Happened {
        uid: event.uid().unwrap_or_default(),
        at: repeated.or(first).or(created)?,
        about: Id {
            kind,
            namespace: about.namespace.clone().unwrap_or_default(),
            name: about.name.clone().unwrap_or_default(),
        },
        warning: event.type_.as_deref() == Some("Warning"),
        text: format!("{reason}: {note}"),
    })
}
