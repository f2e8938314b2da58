//! Prints a line for every change of the operator's kinds and their children.

use std::{collections::HashMap, fmt::Debug};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, condition};
use futures::{
    StreamExt,
    future::{BoxFuture, join_all},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret, Service, ServiceAccount},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;

use super::Console;
use crate::controller::CoderResource;

/// Prints every change until it is dropped.
pub(crate) async fn everything(client: &Client, console: &Console) {
    let managed = watcher::Config::default().labels("app.kubernetes.io/managed-by=coder-k8s");
    join_all([
        follow_ours::<CoderControlPlane>(client, console),
        follow_ours::<CoderProvisioner>(client, console),
        follow_ours::<CoderWorkspaceProxy>(client, console),
        follow(Api::<Deployment>::all(client.clone()), managed.clone(), console, |o| {
            let status = o.status.as_ref();
            let ready = status.and_then(|s| s.ready_replicas).unwrap_or(0);
            let desired = o.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
            format!("{ready} of {desired} pods are ready")
        }),
        follow(Api::<Pod>::all(client.clone()), managed.clone(), console, |o| {
            o.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default()
        }),
        follow(Api::<Service>::all(client.clone()), managed.clone(), console, |_| String::new()),
        follow(Api::<ServiceAccount>::all(client.clone()), managed.clone(), console, |_| String::new()),
        follow(Api::<PartialObjectMeta<Secret>>::all(client.clone()), managed, console, |_| String::new()),
    ])
    .await;
}

/// Watches one of our kinds and prints a line when its condition Ready changes.
fn follow_ours<'a, K: CoderResource>(client: &Client, console: &'a Console) -> BoxFuture<'a, ()> {
    follow(Api::<K>::all(client.clone()), watcher::Config::default(), console, |object| {
        let conditions = object.status().map_or(&[][..], K::conditions);
        let ready = conditions.iter().find(|c| c.type_ == condition::kind::READY);
        ready.map(|c| format!("Ready={} {}: {}", c.status, c.reason, c.message)).unwrap_or_default()
    })
}

/// Watches one kind and prints a line when the `state` of an object changes.
fn follow<'a, K>(
    api: Api<K>,
    config: watcher::Config,
    console: &'a Console,
    state: impl Fn(&K) -> String + Send + 'a,
) -> BoxFuture<'a, ()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    Box::pin(async move {
        let mut known: HashMap<String, String> = HashMap::new();
        let mut events = watcher(api, config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    let (name, now) = (describe(&object), state(&object));
                    if known.get(&name) != Some(&now) {
                        let verb = if known.contains_key(&name) { "changed" } else { "created" };
                        let colon = if now.is_empty() { "" } else { ": " };
                        console.line(&format!("{verb} {name}{colon}{now}"));
                        known.insert(name, now);
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    let name = describe(&object);
                    known.remove(&name);
                    console.line(&format!("deleted {name}"));
                }
                Ok(_) => {}
                Err(error) => console.line(&format!("watch of {} failed: {error}", K::plural(&()))),
            }
        }
    })
}

fn describe<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
}
