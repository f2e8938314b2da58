//! The parts of the controller-manager and the kubelet that tests need: Deployments get pods, pods become ready and
//! end, orphans are deleted.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    apply::Managed,
    selector::Selector,
    store::{Place, Store, now},
};

/// Delay between a change and the reaction to it.
const PAUSE: Duration = Duration::from_millis(15);

/// Runs until dropped.
pub(super) async fn run(store: Arc<Store>) {
    let mut changed = store.changed.subscribe();
    loop {
        let seen = *changed.borrow_and_update();
        let acted = collect(&store) | ready(&store) | roll_out(&store);
        tokio::time::sleep(PAUSE).await;
        while !acted && !store.moved_since(seen) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Deletes objects whose owners are all gone. Returns whether there were any.
fn collect(store: &Store) -> bool {
    let uids = store.uids();
    let orphans: Vec<_> = {
        let state = store.lock();
        let orphan = |object: &Value| {
            let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            owners.is_some_and(|owners| {
                !owners.is_empty()
                    && !owners.iter().any(|owner| {
                        owner.get("uid").and_then(Value::as_str).is_some_and(|uid| uids.contains(uid))
                    })
            }) && object.pointer("/metadata/deletionTimestamp").is_none()
        };
        state
            .objects
            .iter()
            .filter(|(_, held)| orphan(&held.object))
            .map(|(place, _)| place.clone())
            .collect()
    };
    let mut acted = false;
    for place in orphans {
        acted |= store.delete(&place, |_| true, false).is_ok();
    }
    acted
}

/// Makes pods ready, and removes those that were asked to end. Returns whether there were any.
fn ready(store: &Store) -> bool {
    let hold = store.lock().hold;
    let mut acted = false;
    for (place, pod) in all(store, "v1", "pods") {
        if pod.pointer("/metadata/deletionTimestamp").is_some() {
            acted |= !hold && store.delete(&place, |_| true, true).is_ok();
        } else if pod.get("status").is_none() {
            let images: Vec<_> = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten().map(|container| {
                json!({"name": container.get("name"), "image": container.get("image"), "imageID": "", "ready": true,
                    "restartCount": 0, "state": {"running": {"startedAt": now()}}})
            }).collect();
            let conditions = json!([{"type": "Ready", "status": "True", "lastTransitionTime": now()}]);
            let status = json!({"phase": "Running", "podIP": "10.0.0.1", "startTime": now(),
                "conditions": conditions, "containerStatuses": images});
            acted |= set_status(store, &place, status);
        }
    }
    acted
}

/// Advances every Deployment by one step: all new pods at once, then the old ones are removed when the new ones are
/// ready.
fn roll_out(store: &Store) -> bool {
    let pods = all(store, "v1", "pods");
    let mut acted = false;
    for (place, deployment) in all(store, "apps/v1", "deployments") {
        if deployment.pointer("/metadata/deletionTimestamp").is_some() {
            continue;
        }
        let rollout = Rollout::of(&deployment, &pods);
        for _ in rollout.new.len()..rollout.wanted {
            acted |= start(store, &place, &deployment, &rollout.hash);
        }
        for (pod, _) in rollout.superfluous() {
            acted |= store.delete(pod, |_| true, false).is_ok();
        }
        acted |= set_status(store, &place, rollout.status(&deployment));
    }
    acted
}

/// Progress of a Deployment.
struct Rollout<'a> {
    wanted: usize,
    hash: String,
    /// Pods of the present template, those with the highest deletion cost first.
    new: Vec<&'a (Place, Arc<Value>)>,
    old: Vec<&'a (Place, Arc<Value>)>,
}

impl<'a> Rollout<'a> {
    fn of(deployment: &Value, pods: &'a [(Place, Arc<Value>)]) -> Self {
        let uid = deployment.pointer("/metadata/uid");
        let hash = hash(deployment.pointer("/spec/template"));
        let stays = |pod: &Value| {
            pod.pointer("/metadata/ownerReferences/0/uid") == uid
                && pod.pointer("/metadata/deletionTimestamp").is_none()
        };
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for pod in pods.iter().filter(|(_, pod)| stays(pod)) {
            let of = pod.1.pointer("/metadata/labels/pod-template-hash").and_then(Value::as_str);
            if of == Some(&hash) { new.push(pod) } else { old.push(pod) }
        }
        new.sort_by_key(|(_, pod)| std::cmp::Reverse(cost(pod)));
        let wanted = deployment.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        Self { wanted: usize::try_from(wanted).unwrap_or(1), hash, new, old }
    }

    fn available(&self) -> usize {
        self.new.iter().take(self.wanted).filter(|(_, pod)| is_ready(pod)).count()
    }

    fn superfluous(&self) -> impl Iterator<Item = &&'a (Place, Arc<Value>)> {
        let outdated = if self.available() >= self.wanted { self.old.as_slice() } else { &[] };
        self.new.iter().skip(self.wanted).chain(outdated)
    }

    fn status(&self, deployment: &Value) -> Value {
        let (updated, available) = (self.new.len().min(self.wanted), self.available());
        let ready = available + self.old.iter().filter(|(_, pod)| is_ready(pod)).count();
        let complete = available >= self.wanted && self.old.is_empty();
        let conditions = json!([
            {"type": "Available", "status": if ready >= self.wanted { "True" } else { "False" }, "reason": "Memory"},
            {"type": "Progressing", "status": "True",
             "reason": if complete { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" }},
        ]);
        let observed = deployment.pointer("/metadata/generation");
        let mut status = json!({"observedGeneration": observed, "conditions": conditions});
        let counts = [
            ("replicas", updated + self.old.len()),
            ("updatedReplicas", updated),
            ("readyReplicas", ready),
            ("availableReplicas", ready),
        ];
        for (field, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            if let Some(map) = status.as_object_mut() {
                map.insert(field.to_owned(), json!(count));
            }
        }
        status
    }
}

fn is_ready(pod: &Value) -> bool {
    pod.get("status").is_some()
}

fn cost(pod: &Value) -> i64 {
    let annotations = pod.pointer("/metadata/annotations");
    let cost = annotations.and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
    cost.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn start(store: &Store, owner: &Place, deployment: &Value, hash: &str) -> bool {
    let template = deployment.pointer("/spec/template").cloned().unwrap_or_default();
    let taken: BTreeSet<_> = all(store, "v1", "pods").into_iter().map(|(place, _)| place.name).collect();
    let names = (0..).map(|n: u32| format!("{}-{hash}-{n}", owner.name));
    let Some(name) = names.into_iter().find(|name| !taken.contains(name)) else { return false };
    let mut metadata = template.get("metadata").cloned().unwrap_or_else(|| json!({}));
    if let Some(map) = metadata.as_object_mut() {
        let labels = map.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("pod-template-hash".to_owned(), json!(hash));
        }
        map.insert(
            "ownerReferences".to_owned(),
            json!([{"apiVersion": "apps/v1", "kind": "Deployment",
            "name": owner.name, "uid": deployment.pointer("/metadata/uid"), "controller": true}]),
        );
    }
    let pod = json!({"metadata": metadata, "spec": template.get("spec")});
    store.write(Place::new("v1", "pods", &owner.namespace, &name), |_| Ok((pod, Managed::new()))).is_ok()
}

/// Sets a status. Returns whether it changed.
fn set_status(store: &Store, place: &Place, status: Value) -> bool {
    let mut differs = false;
    let written = store.write(place.clone(), |before| {
        let before = before.ok_or_else(|| super::refusal::Refusal::not_found(&place.called()))?;
        let mut object = (*before.object).clone();
        if let Some(map) = object.as_object_mut() {
            differs = map.get("status") != Some(&status);
            map.insert("status".to_owned(), status);
        }
        Ok((object, before.managed.clone()))
    });
    written.is_ok() && differs
}

fn all(store: &Store, api_version: &str, plural: &str) -> Vec<(Place, Arc<Value>)> {
    let (_, objects) = store.list(api_version, plural, &Selector::default());
    let text = |object: &Value, path: &str| {
        object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let place = |object: &Value| {
        Place::new(api_version, plural, &text(object, "/metadata/namespace"), &text(object, "/metadata/name"))
    };
    objects.into_iter().map(|object| (place(&object), object)).collect()
}

fn hash(template: Option<&Value>) -> String {
    let text = template.map(Value::to_string).unwrap_or_default();
    Sha256::digest(text.as_bytes())
        .iter()
        .take(4)
        .fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"))
}
