//! Namespaces as the Go operator leaves them, written again object by object as it wrote them: under its manager
//! name, by plain create and update, with status and finalizers.

use std::collections::HashMap;

use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, PostParams},
    discovery,
};
use serde_json::{Value, json};

const RECORDED: &str = include_str!("../fixtures/go_operator.json");
/// The namespace of the recorded objects, and that of their workspaces.
const NAMESPACES: [&str; 2] = ["takeover", "takeover-workspaces"];
const OPERATOR: &str = "coder-k8s";
const USER: &str = "kubectl-create";
const CONTROLLERS: &str = "kube-controller-manager";

/// What belonged to the objects outside Kubernetes: coderd's side and rows of its database.
pub fn outside() -> Value {
    serde_json::from_str(include_str!("../fixtures/go_operator_outside.json")).unwrap()
}

/// The recorded objects, owners first.
pub fn objects() -> Vec<Value> {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    recorded["objects"].as_array().unwrap().clone()
}

/// An object that was written again: its resource, and what the API server made of it.
pub struct Written {
    /// Its resource.
    pub resource: ApiResource,
    /// As the API server answered.
    pub object: DynamicObject,
}

impl Written {
    /// The object as it is now.
    pub async fn now(&self, client: &Client) -> Option<DynamicObject> {
        api(client, &self.resource, &self.object).get_opt(&self.object.name_any()).await.unwrap()
    }

    /// Kind, namespace and name.
    pub fn name(&self) -> String {
        let namespace = self.object.namespace().unwrap_or_default();
        format!("{} {namespace}/{}", self.resource.kind, self.object.name_any())
    }
}

/// Writes the recorded objects for which `wanted` holds, in a cluster that has the kinds and no controllers.
pub async fn replay(client: &Client, wanted: impl Fn(&Value) -> bool) -> Vec<Written> {
    for namespace in NAMESPACES {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        crate::apply(client, object).await;
    }
    replay_in(client, NAMESPACES, wanted).await
}

/// The same in other namespaces, which exist: the one of the objects, and the one of workspaces.
pub async fn replay_in(
    client: &Client,
    namespaces: [&str; 2],
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Written> {
    let [first, second] = namespaces;
    // The name of the first is part of the second.
    let moved =
        RECORDED.replace(NAMESPACES[1], "\u{1}").replace(NAMESPACES[0], first).replace('\u{1}', second);
    let recorded: Value = serde_json::from_str(&moved).unwrap();
    let mut uids = HashMap::new();
    let mut all = Vec::new();
    for recorded in recorded["objects"].as_array().unwrap().iter().filter(|object| wanted(object)).cloned() {
        let old = recorded["metadata"]["uid"].as_str().unwrap().to_owned();
        let written = write(client, recorded, &uids).await;
        uids.insert(old, written.object.uid().unwrap());
        all.push(written);
    }
    all
}

async fn write(client: &Client, recorded: Value, uids: &HashMap<String, String>) -> Written {
    let mut object = with_uids(recorded.clone(), uids);
    let kind = recorded["kind"].as_str().unwrap().to_owned();
    let status = object.as_object_mut().unwrap().remove("status");
    let metadata = object["metadata"].as_object_mut().unwrap();
    let finalizers = metadata.remove("finalizers");
    for assigned in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        metadata.remove(assigned);
    }
    let revision = metadata
        .get_mut("annotations")
        .and_then(|annotations| annotations.as_object_mut()?.remove("deployment.kubernetes.io/revision"));
    let mut later = None;
    match kind.as_str() {
        "Service" => {
            for assigned in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                object["spec"].as_object_mut().unwrap().remove(assigned);
            }
        }
        "CoderProvisioner" => {
            let spec = object["spec"].as_object_mut().unwrap();
            later = Some((spec.remove("key"), spec.remove("resources")));
        }
        _ => {}
    }
    let types: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let gvk = (&types.types.clone().unwrap()).try_into().unwrap();
    let (resource, _) = discovery::pinned_kind(client, &gvk).await.unwrap();
    let api = api(client, &resource, &types);
    let ours = kind.starts_with("Coder");
    let by_operator = recorded["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .any(|entry| entry["manager"] == OPERATOR && entry.get("subresource").is_none());
    let creator = if !ours && by_operator { OPERATOR } else { USER };
    let mut made = api.create(&by(creator), &types).await.unwrap();
    if ours && (finalizers.is_some() || later.is_some()) {
        made.metadata.finalizers = finalizers.map(|list| serde_json::from_value(list).unwrap());
        if let Some((key, resources)) = later {
            for (field, value) in [("key", key), ("resources", resources)] {
                if let Some(value) = value {
                    made.data["spec"][field] = value;
                }
            }
        }
        made = api.replace(&made.name_any(), &by(OPERATOR), &made).await.unwrap();
    }
    let wrote_status = if ours { OPERATOR } else { CONTROLLERS };
    if let Some(status) = status.filter(|_| ours || kind == "Deployment") {
        made.data["status"] = status;
        if let Some(revision) = revision {
            let annotations = made.annotations_mut();
            annotations.insert("deployment.kubernetes.io/revision".into(), revision.as_str().unwrap().into());
        }
        made = api.replace_status(&made.name_any(), &by(wrote_status), &made).await.unwrap();
    }
    Written { resource, object: made }
}

/// What the Go operator does to a child when it finds it otherwise: it puts what it wants in its place.
pub async fn put_back(client: &Client, written: &Written) {
    let api = api(client, &written.resource, &written.object);
    let mut live = api.get(&written.object.name_any()).await.unwrap();
    for part in ["spec", "rules", "subjects"] {
        if let Some(wanted) = written.object.data.get(part) {
            // Of the spec it replaces what it builds and keeps what others own, such as addresses.
            match (part, live.data[part].as_object().cloned()) {
                ("spec", Some(mut spec)) => {
                    for (field, value) in wanted.as_object().unwrap() {
                        spec.insert(field.clone(), value.clone());
                    }
                    live.data[part] = Value::Object(spec);
                }
                _ => live.data[part] = wanted.clone(),
            }
        }
    }
    live.metadata.labels.clone_from(&written.object.metadata.labels);
    api.replace(&live.name_any(), &by(OPERATOR), &live).await.unwrap();
}

fn by(manager: &str) -> PostParams {
    PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() }
}

fn api(client: &Client, resource: &ApiResource, object: &DynamicObject) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &object.namespace().unwrap(), resource)
}

/// The object with every known uid replaced by its new one, wherever it stands.
fn with_uids(object: Value, uids: &HashMap<String, String>) -> Value {
    match object {
        Value::String(text) => Value::String(uids.get(&text).cloned().unwrap_or(text)),
        Value::Array(list) => Value::Array(list.into_iter().map(|item| with_uids(item, uids)).collect()),
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(key, value)| (key, with_uids(value, uids))).collect())
        }
        other => other,
    }
}
