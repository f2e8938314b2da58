//! The API server in memory does as the real one does: every check runs against both.

use std::collections::BTreeMap;

use coder_k8s_testbed::{Cluster, Memory, eventually, memory};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Pod, Secret},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
        WatchEvent, WatchParams,
    },
};
use serde_json::{Value, json};

use crate::SOON;

#[tokio::test]
async fn the_real_server_passes_the_checks() {
    let cluster = Cluster::builder().crds(vec![crd()]).start().await.unwrap();
    let _node = cluster.node("one").await.unwrap();
    checks(&cluster.client()).await;
    expiry(&cluster.client()).await;
}

#[tokio::test]
async fn the_server_in_memory_passes_the_checks() {
    let memory = Memory::start(&memory::Kinds::new(&[crd()]).unwrap()).await.unwrap();
    checks(&memory.client().unwrap()).await;
    memory.compact();
    expiry(&memory.client().unwrap()).await;
    assert!(memory.asked().iter().any(|asked| asked.user == "tests" && asked.resource == "things/status"));
}

async fn checks(client: &Client) {
    creation(client).await;
    application(client).await;
    versions(client).await;
    statuses(client).await;
    finalizers(client).await;
    watches(client).await;
    metadata(client).await;
    rollouts(client).await;
    garbage(client).await;
}

fn crd() -> CustomResourceDefinition {
    let size =
        json!({"type": "object", "default": {}, "properties": {"count": {"type": "integer", "default": 1}}});
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}, "status": {"type": "string"}}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "default": {}, "properties": {"size": size, "text": {"type": "string"}}},
        "status": {"type": "object", "properties": {"said": {"type": "string"}, "conditions": list}}}}});
    serde_json::from_value(json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}}}]}}))
    .unwrap()
}

fn things(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Thing".into(),
        plural: "things".into(),
    };
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

fn map(name: &str, more: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    for (field, value) in more.as_object().unwrap() {
        object[field] = value.clone();
    }
    object
}

fn code<T>(answer: kube::Result<T>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

fn by(manager: &str) -> PatchParams {
    PatchParams::apply(manager).force()
}

async fn creation(client: &Client) {
    let api = maps(client);
    assert_eq!(code(api.get("new").await), 404);
    let object: ConfigMap = serde_json::from_value(map("new", &json!({"data": {"a": "1"}}))).unwrap();
    let made = api.create(&PostParams::default(), &object).await.unwrap();
    assert!(made.uid().is_some() && made.creation_timestamp().is_some() && made.resource_version().is_some());
    assert_eq!(code(api.create(&PostParams::default(), &object).await), 409);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let text = json!({"metadata": {"name": "text"}, "stringData": {"a": "plain"}});
    let made = secrets.create(&PostParams::default(), &serde_json::from_value(text).unwrap()).await.unwrap();
    assert_eq!(made.data.unwrap()["a"].0, b"plain");
    assert_eq!(code(api.delete("new", &DeleteParams::default()).await), 200);
    assert_eq!(code(api.delete("new", &DeleteParams::default()).await), 404);
}

/// Fields go with the last manager that holds them.
async fn application(client: &Client) {
    let api = maps(client);
    let data = |entries: &[(&str, &str)]| {
        let data: BTreeMap<_, _> = entries.iter().copied().collect();
        map("applied", &json!({"data": data}))
    };
    api.patch("applied", &by("one"), &Patch::Apply(data(&[("a", "1"), ("b", "1")]))).await.unwrap();
    api.patch("applied", &by("two"), &Patch::Apply(data(&[("b", "1"), ("c", "2")]))).await.unwrap();
    let object = api.patch("applied", &by("one"), &Patch::Apply(data(&[("d", "4")]))).await.unwrap();
    let data = object.data.unwrap();
    assert_eq!(data.into_keys().collect::<Vec<_>>(), ["b", "c", "d"]);
    let before = object.metadata.resource_version;
    let again = map("applied", &json!({"data": {"d": "4"}}));
    let same = api.patch("applied", &by("one"), &Patch::Apply(again)).await.unwrap();
    assert_eq!(same.metadata.resource_version, before, "nothing changed");
    let merged = json!({"data": {"b": null, "e": "5"}});
    let object = api.patch("applied", &PatchParams::default(), &Patch::Merge(merged)).await.unwrap();
    assert_eq!(object.data.unwrap().into_keys().collect::<Vec<_>>(), ["c", "d", "e"]);
}

/// Versions and uids that are asked for must be those that are there.
async fn versions(client: &Client) {
    let api = maps(client);
    let at = |field: &str, value: &str| {
        let mut object = map("versions", &json!({"data": {"a": value}}));
        object["metadata"][field] = json!(value);
        object
    };
    let first = at("resourceVersion", "1");
    assert_eq!(code(api.patch("versions", &by("one"), &Patch::Apply(&first)).await), 200, "absent");
    assert_eq!(code(api.patch("versions", &by("one"), &Patch::Apply(&first)).await), 409, "there");
    let nobody = at("uid", "00000000-0000-4000-8000-ffffffffffff");
    assert_eq!(code(api.patch("versions", &by("one"), &Patch::Apply(&nobody)).await), 422, "another");
    let mut elsewhere = nobody.clone();
    elsewhere["metadata"]["name"] = json!("nowhere");
    assert_eq!(code(api.patch("nowhere", &by("one"), &Patch::Apply(&elsewhere)).await), 409);
    let mut held = api.get("versions").await.unwrap();
    held.data = Some(BTreeMap::from([("b".to_owned(), "2".to_owned())]));
    api.replace("versions", &PostParams::default(), &held).await.unwrap();
    assert_eq!(code(api.replace("versions", &PostParams::default(), &held).await), 409, "outdated");
    let stale = json!({"metadata": {"resourceVersion": held.resource_version()}, "data": {"c": "3"}});
    let merged = api.patch("versions", &PatchParams::default(), &Patch::Merge(stale)).await;
    assert_eq!(code(merged), 409, "outdated");
    let other =
        Preconditions { uid: Some("00000000-0000-4000-8000-ffffffffffff".into()), resource_version: None };
    let refused = api.delete("versions", &DeleteParams::default().preconditions(other)).await;
    assert_eq!(code(refused), 409);
    assert_eq!(code(api.get("versions").await), 200);
}

/// The status is written apart from the spec, and only the spec has generations.
async fn statuses(client: &Client) {
    let api = things(client);
    let object = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "one"},
        "spec": {"text": "a"}, "status": {"said": "ignored"}});
    let made = api.patch("one", &by("tests"), &Patch::Apply(object)).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    assert_eq!(made.data["spec"], json!({"text": "a", "size": {"count": 1}}));
    assert_eq!(made.data.get("status"), None);
    let status = |version: Option<String>, status: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {"name": "one", "resourceVersion": version}, "status": status})
    };
    let told = json!({"said": "b", "conditions": [{"type": "X", "status": "True"}, {"type": "Y", "status": "True"}]});
    let told = status(made.resource_version(), told);
    let said = api.patch_status("one", &by("tests"), &Patch::Apply(&told)).await.unwrap();
    assert_eq!((said.metadata.generation, said.data["spec"]["text"].as_str()), (Some(1), Some("a")));
    assert_eq!(code(api.patch_status("one", &by("tests"), &Patch::Apply(&told)).await), 409, "outdated");
    let less = status(said.resource_version(), json!({"conditions": [{"type": "Y", "status": "False"}]}));
    let said = api.patch_status("one", &by("tests"), &Patch::Apply(&less)).await.unwrap();
    assert_eq!(said.data["status"], json!({"conditions": [{"type": "Y", "status": "False"}]}));
    let edit = Patch::Merge(json!({"spec": {"text": "c"}, "status": {"said": "ignored"}}));
    let edited = api.patch("one", &PatchParams::default(), &edit).await.unwrap();
    assert_eq!((edited.metadata.generation, edited.data["status"].get("said")), (Some(2), None));
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = api.patch("one", &PatchParams::default(), &Patch::Merge(labelled)).await.unwrap();
    assert_eq!(labelled.metadata.generation, Some(2));
    let nobody = status(None, json!({"said": "x"}));
    assert_eq!(code(api.patch_status("nobody", &by("tests"), &Patch::Apply(nobody)).await), 404);
}

async fn finalizers(client: &Client) {
    let api = maps(client);
    let object = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    // Whoever applies something else of the metadata leaves them alone, now and later.
    for annotations in [json!({}), json!({"a": "1"}), json!({})] {
        let mut object = map("held", &json!({}));
        if annotations != json!({}) {
            object["metadata"]["annotations"] = annotations;
        }
        let applied = api.patch("held", &by("one"), &Patch::Apply(object)).await.unwrap();
        assert_eq!(applied.finalizers(), ["example.com/hold"]);
    }
    api.delete("held", &DeleteParams::default()).await.unwrap();
    let going = api.get("held").await.unwrap();
    assert!(going.metadata.deletion_timestamp.is_some());
    let free = json!({"metadata": {"resourceVersion": going.resource_version(), "finalizers": []}});
    api.patch_metadata("held", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    assert_eq!(code(api.get("held").await), 404);
}

/// A watch shows what happens after a list, as far as the labels go.
async fn watches(client: &Client) {
    let api = maps(client);
    let start = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let seen = api.watch(&WatchParams::default().labels("shown=yes"), &start).await.unwrap();
    let mut seen = seen.boxed();
    let label = |value: &str| json!({"metadata": {"labels": {"shown": value}}});
    let make = map("watched", &json!({}));
    api.create(&PostParams::default(), &serde_json::from_value(make).unwrap()).await.unwrap();
    for change in [label("yes"), json!({"data": {"a": "1"}}), label("no"), label("yes")] {
        api.patch("watched", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }
    api.delete("watched", &DeleteParams::default()).await.unwrap();
    let mut story = Vec::new();
    while story.len() < 5 {
        let event = tokio::time::timeout(SOON, seen.try_next()).await.unwrap().unwrap().unwrap();
        story.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            _ => continue,
        });
    }
    assert_eq!(story, ["added", "modified", "deleted", "added", "deleted"]);
}

/// A watch from a version whose history is gone ends with 410.
async fn expiry(client: &Client) {
    let mut seen = things(client).watch(&WatchParams::default(), "1").await.unwrap().boxed();
    let event = tokio::time::timeout(SOON, seen.try_next()).await.unwrap().unwrap().unwrap();
    let WatchEvent::Error(status) = event else { panic!("{event:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"), "{status:?}");
    assert!(tokio::time::timeout(SOON, seen.try_next()).await.unwrap().unwrap().is_none());
}

async fn metadata(client: &Client) {
    let api: Api<Secret> = Api::namespaced(client.clone(), "default");
    let one = api.get_metadata("text").await.unwrap();
    assert_eq!(one.name_any(), "text");
    let all = api.list_metadata(&ListParams::default().fields("metadata.name=text")).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

fn deployment(image: &str, replicas: i32) -> Value {
    let labels = json!({"app": "rolled"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "rolled"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": image}]}}}})
}

async fn rollouts(client: &Client) {
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for (image, replicas) in [("a", 2), ("b", 2), ("b", 1), ("b", 0)] {
        let made =
            api.patch("rolled", &by("tests"), &Patch::Apply(deployment(image, replicas))).await.unwrap();
        let done = eventually(SOON, || async {
            let found = api.get("rolled").await.map_err(|error| error.to_string())?;
            let status = found.status.clone().unwrap_or_default();
            let counts =
                [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
            let complete = counts.iter().all(|count| count.unwrap_or_default() == replicas)
                && status.observed_generation == made.metadata.generation;
            let shown =
                pods.list(&ListParams::default().labels("app=rolled")).await.map_err(|e| e.to_string())?;
            let images: Vec<_> = shown
                .iter()
                .map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
                .collect();
            let fits =
                images.len() == usize::try_from(replicas).unwrap() && images.iter().all(|i| i == image);
            if complete && fits { Ok(()) } else { Err(format!("{image} {replicas}: {status:?} {images:?}")) }
        });
        done.await.unwrap();
    }
}

/// What belongs to nobody any more goes.
async fn garbage(client: &Client) {
    let (api, things) = (maps(client), things(client));
    let owner = things.get("one").await.unwrap();
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": [{"apiVersion": "example.com/v1", "kind": "Thing",
        "name": "one", "uid": owner.uid(), "controller": true}]}});
    api.create(&PostParams::default(), &serde_json::from_value(map("owned", &owned)).unwrap()).await.unwrap();
    things.delete("one", &DeleteParams::default()).await.unwrap();
    let gone = eventually(SOON, || async {
        if code(api.get("owned").await) == 404 { Ok(()) } else { Err("still there") }
    });
    gone.await.unwrap();
}
