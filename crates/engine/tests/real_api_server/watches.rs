//! Watches on the real API server, and on one whose history is too short.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use coder_k8s_api::crds;
use coder_k8s_engine::{
    cache::Cache,
    client::{self, ClientSettings},
    crds::{Crds, Served},
    health::Readiness,
    metadata_watch::{MetadataEvent, MetadataWatch},
    metrics::Metrics,
    object_watch::{ObjectEvent, ObjectWatch},
    outage::Outage,
};
use coder_k8s_testbed::{Memory, Shared, eventually, memory::Kinds, shared_with};
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::{
    api::core::v1::Secret, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::Body,
    runtime::watcher,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(20);
const ROUTES: &str = "httproutes.gateway.networking.k8s.io";

fn client_of(shared: &Shared, agent: &str) -> Client {
    let settings = ClientSettings { user_agent: agent.to_owned(), ..ClientSettings::new(Metrics::new()) };
    client::build(shared.cluster.config(), settings).unwrap()
}

#[tokio::test]
async fn an_optional_api_that_comes_and_goes_is_noticed_without_polling() {
    let shared = shared_with(crds).await;
    let readiness = Readiness::default();
    let client = client_of(shared, "crd-watch");
    let optional = [(ROUTES, "v1")];
    let (mut found, tracking) = Crds::watch(
        client,
        coder_k8s_api::fields(),
        &optional,
        "install",
        &readiness,
        Metrics::new(),
        Outage::default(),
    );
    let tracking = tokio::spawn(tracking);
    found.ready("codercontrolplanes.coder.com").await;
    eventually(TIMEOUT, || async { if readiness.is_ready() { Ok(()) } else { Err("not ready") } })
        .await
        .unwrap();
    absent(&found).await;

    let admin: Api<CustomResourceDefinition> = Api::all(shared.cluster.client());
    let routes = json!({
        "metadata": {"name": ROUTES, "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"}},
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    admin.create(&PostParams::default(), &serde_json::from_value(routes).unwrap()).await.unwrap();
    tokio::time::timeout(TIMEOUT, found.ready(ROUTES)).await.unwrap();
    let asked = || {
        shared
            .cluster
            .audit()
            .unwrap()
            .into_iter()
            .filter(|e| e.user_agent == "crd-watch" && e.verb != "watch")
            .count()
    };
    // The API server adds conditions to a new definition, on a busy machine seconds later.
    let rest = || async {
        let before = asked();
        tokio::time::sleep(Duration::from_secs(3)).await;
        if asked() == before { Ok(()) } else { Err("calls are made although nothing changes") }
    };
    eventually(TIMEOUT, rest).await.unwrap();
    admin.delete(ROUTES, &DeleteParams::default()).await.unwrap();
    tokio::time::timeout(TIMEOUT, found.unready(ROUTES)).await.unwrap();
    absent(&found).await;
    tracking.abort();
}

async fn absent(found: &Crds) {
    let state = || async {
        match found.state(ROUTES) {
            Served::Absent => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(TIMEOUT, state).await.unwrap();
}

#[tokio::test]
async fn a_metadata_watch_reports_every_change_and_lists_no_object() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("metadata-watch").await;
    let admin: Api<Secret> = Api::namespaced(shared.cluster.client(), namespace.name());
    let secret = |n: usize| serde_json::from_value(json!({"metadata": {"name": format!("s-{n}")}})).unwrap();
    for n in 0..5 {
        admin.create(&PostParams::default(), &secret(n)).await.unwrap();
    }
    let readiness = Readiness::default();
    let synced = readiness.ready_check("watch secrets");
    let api = Api::namespaced(client_of(shared, "metadata-watch"), namespace.name());
    let metadata_watch: MetadataWatch<Secret> =
        MetadataWatch { api, synced: synced.clone(), metrics: Metrics::new(), outage: Outage::default() };
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorded = events.clone();
    let running = tokio::spawn(async move {
        metadata_watch
            .run(|event| match event {
                MetadataEvent::Changed { name, .. } => recorded.lock().push(name.to_owned()),
                MetadataEvent::Gap { .. } => recorded.lock().push("gap".to_owned()),
            })
            .await;
    });
    eventually(TIMEOUT, || async { if synced.passed() { Ok(()) } else { Err("not synced") } }).await.unwrap();
    admin.create(&PostParams::default(), &secret(7)).await.unwrap();
    admin
        .patch("s-0", &PatchParams::default(), &Patch::Merge(&json!({"stringData": {"a": "b"}})))
        .await
        .unwrap();
    admin.delete("s-1", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, || async {
        let events = events.lock().clone();
        if events == ["gap", "s-7", "s-0", "s-1"] { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await
    .unwrap();
    running.abort();
    let lists: Vec<_> = shared
        .cluster
        .audit()
        .unwrap()
        .into_iter()
        .filter(|e| e.user_agent == "metadata-watch" && e.verb == "list")
        .collect();
    assert!(lists.len() == 1 && lists[0].uri.contains("fieldSelector=metadata.name"), "{lists:?}");
}

#[tokio::test]
async fn an_object_watch_begins_with_what_exists_and_lists_nothing() {
    let shared = shared_with(crds).await;
    let namespace = shared.namespace("object-watch").await;
    let admin: Api<Secret> = Api::namespaced(shared.cluster.client(), namespace.name());
    let create = async |name: &str| {
        let secret = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        admin.create(&PostParams::default(), &secret).await.unwrap();
    };
    for n in 0..250 {
        create(&format!("s-{n}")).await;
    }
    let (readiness, cache) = (Readiness::default(), Cache::new("Secret"));
    let synced = readiness.ready_check("watch secrets");
    let watch: ObjectWatch<Secret> = ObjectWatch {
        api: Api::namespaced(client_of(shared, "object-watch"), namespace.name()),
        config: watcher::Config::default(),
        namespace: Some(namespace.name().to_owned()),
        cache: cache.clone(),
        synced: synced.clone(),
        metrics: Metrics::new(),
        outage: Outage::default(),
    };
    let running = tokio::spawn(async move { watch.run(|_| {}).await });
    eventually(TIMEOUT, || async { if synced.passed() { Ok(()) } else { Err("not synced") } }).await.unwrap();
    assert_eq!(cache.filter(|_| true).len(), 250, "everything is there when the check passes");
    create("later").await;
    admin.delete("s-0", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, || async {
        let found =
            (cache.get(namespace.name(), "later").is_some(), cache.get(namespace.name(), "s-0").is_some());
        if found == (true, false) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
    running.abort();
    let asked: Vec<_> = shared
        .cluster
        .audit()
        .unwrap()
        .into_iter()
        .filter(|event| event.user_agent == "object-watch")
        .collect();
    assert!(asked.iter().all(|event| event.verb == "watch") && asked.len() <= 2, "{asked:?}");
}

/// A server whose history is too short: the first watch ends with 410, the second stays open.
#[tokio::test(start_paused = true)]
async fn a_watch_that_expired_starts_over_and_reports_a_gap() {
    let watches = Arc::new(AtomicUsize::new(0));
    let counted = watches.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let counted = counted.clone();
        async move {
            let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let answer = if !watching {
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "5"}, "items": []});
                Full::from(list.to_string()).boxed_unsync()
            } else if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "too old resource version", "reason": "Expired", "code": 410}});
                Full::from(format!("{gone}\n")).boxed_unsync()
            } else {
                let silence = stream::pending::<Result<Frame<Bytes>, std::convert::Infallible>>();
                StreamBody::new(silence).boxed_unsync()
            };
            Ok::<_, std::convert::Infallible>(Response::new(answer))
        }
    });
    let readiness = Readiness::default();
    let api = Api::all(Client::new(service, "default"));
    let metadata_watch: MetadataWatch<Secret> = MetadataWatch {
        api,
        synced: readiness.ready_check("watch secrets"),
        metrics: Metrics::new(),
        outage: Outage::default(),
    };
    let gaps = Arc::new(AtomicUsize::new(0));
    let counted = gaps.clone();
    let running = tokio::spawn(async move {
        metadata_watch
            .run(|event| {
                if matches!(event, MetadataEvent::Gap { .. }) {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            })
            .await;
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        (gaps.load(Ordering::SeqCst), watches.load(Ordering::SeqCst)),
        (2, 2),
        "once at the start, once after it expired"
    );
    assert!(readiness.is_ready());
    running.abort();
}

/// Watches all Secrets by this client.
fn watched(client: Client) -> (Readiness, JoinHandle<()>) {
    let readiness = Readiness::default();
    let watch: ObjectWatch<Secret> = ObjectWatch {
        api: Api::all(client),
        config: watcher::Config::default(),
        namespace: None,
        cache: Cache::new("Secret"),
        synced: readiness.ready_check("watch secrets"),
        metrics: Metrics::new(),
        outage: Outage::default(),
    };
    (readiness, tokio::spawn(async move { watch.run(|_| {}).await }))
}

/// A server that accepts the first watch and sends nothing, as behind a connection that died.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_before_it_has_shown_what_exists_begins_again() {
    let watches = Arc::new(AtomicUsize::new(0));
    let counted = watches.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        let asked = request.uri().query().unwrap_or_default().to_owned();
        async move {
            assert!(
                asked.contains("sendInitialEvents=true") && asked.contains("resourceVersion=0"),
                "{asked}"
            );
            let end = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Secret", "metadata":
                {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}});
            let sent =
                if first { Vec::new() } else { vec![Ok(Frame::data(Bytes::from(format!("{end}\n"))))] };
            let silence = stream::pending::<Result<Frame<Bytes>, std::convert::Infallible>>();
            Ok::<_, std::convert::Infallible>(Response::new(StreamBody::new(
                stream::iter(sent).chain(silence),
            )))
        }
    });
    let (readiness, running) = watched(Client::new(service, "default"));
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!((watches.load(Ordering::SeqCst), readiness.is_ready()), (1, false));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((watches.load(Ordering::SeqCst), readiness.is_ready()), (2, true));
    // What exists is known: from now on there may be any time between two events.
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(watches.load(Ordering::SeqCst), 2);
    running.abort();
}

/// A server that refuses to stream the objects that exist once, as while it is busy, and whose watches end without history.
#[tokio::test(start_paused = true)]
async fn a_refused_stream_is_asked_for_again_after_a_while() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let recorded = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let kind = if query.contains("sendInitialEvents=true") {
            "stream"
        } else if query.contains("watch=true") {
            "watch"
        } else {
            "list"
        };
        let mut asked = recorded.lock();
        let number = asked.iter().filter(|other| **other == kind).count();
        asked.push(kind);
        let expired = json!({"type": "ERROR", "object": {"apiVersion": "v1", "kind": "Status", "metadata": {},
            "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"}});
        // Shorter than a watch may be silent.
        let lived = Duration::from_mins(4);
        let (code, sent) = match (kind, number) {
            ("stream", 0) => (
                429,
                json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": 429,
                    "reason": "TooManyRequests", "message": "storage is (re)initializing"}),
            ),
            ("stream", _) => (
                200,
                json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Secret", "metadata":
                    {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}}),
            ),
            ("list", _) => (
                200,
                json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": "5"}, "items": []}),
            ),
            _ => (200, expired),
        };
        async move {
            let later = async move {
                if kind == "watch" {
                    tokio::time::sleep(lived).await;
                }
                Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(format!("{sent}\n"))))
            };
            let stays_open = kind == "stream" && code == 200;
            let silence = stream::pending().take(usize::from(stays_open));
            let body = StreamBody::new(stream::once(later).chain(silence));
            Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    let (readiness, running) = watched(Client::new(service, "default"));
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(*asked.lock(), ["stream", "list", "watch", "list", "watch", "list", "watch"]);
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!(*asked.lock(), ["stream", "list", "watch", "list", "watch", "list", "watch", "stream"]);
    assert!(readiness.is_ready());
    running.abort();
}

#[tokio::test]
async fn an_object_watch_whose_history_expired_lists_again_and_loses_nothing() {
    let memory = Memory::start(&Kinds::new(&crds()).unwrap()).await.unwrap();
    let admin: Api<Secret> = Api::namespaced(memory.client().unwrap(), "default");
    let create = async |name: &str| {
        let secret = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        admin.create(&PostParams::default(), &secret).await.unwrap();
    };
    let delete = async |name: &str| drop(admin.delete(name, &DeleteParams::default()).await.unwrap());
    for name in ["kept", "changed", "replaced", "deleted"] {
        create(name).await;
    }
    let (readiness, cache, metrics) = (Readiness::default(), Cache::new("Secret"), Metrics::new());
    let watch: ObjectWatch<Secret> = ObjectWatch {
        api: Api::namespaced(memory.client().unwrap(), "default"),
        config: watcher::Config::default(),
        namespace: Some("default".to_owned()),
        cache: cache.clone(),
        synced: readiness.ready_check("watch secrets"),
        metrics: metrics.clone(),
        outage: Outage::default(),
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorded = events.clone();
    let running = tokio::spawn(async move {
        watch
            .run(|event| {
                recorded.lock().push(match event {
                    ObjectEvent::Updated { now, is_listed, .. } => {
                        format!("{} {}", if is_listed { "listed" } else { "updated" }, now.name_any())
                    }
                    ObjectEvent::Deleted(last) => format!("deleted {}", last.name_any()),
                });
            })
            .await;
    });
    let reported = async |expected: &[&str]| {
        let found = eventually(TIMEOUT, || async {
            let mut all = events.lock().clone();
            all.sort();
            if all == expected { Ok(()) } else { Err(format!("{all:?}")) }
        });
        found.await.unwrap();
        events.lock().clear();
    };
    reported(&["listed changed", "listed deleted", "listed kept", "listed replaced"]).await;
    eventually(TIMEOUT, || async { if readiness.is_ready() { Ok(()) } else { Err("not ready") } })
        .await
        .unwrap();

    memory.withhold_watches(true);
    let edit = json!({"metadata": {"labels": {"a": "b"}}});
    admin.patch("changed", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
    create("added").await;
    delete("deleted").await;
    delete("replaced").await;
    create("replaced").await;
    memory.compact();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(events.lock().is_empty(), "the watch could see nothing of it: {:?}", events.lock());
    memory.withhold_watches(false);
    reported(&["deleted deleted", "listed added", "listed changed", "listed replaced"]).await;
    let mut cached: Vec<_> = cache.filter(|_| true).iter().map(|secret| secret.name_any()).collect();
    cached.sort();
    assert_eq!(cached, ["added", "changed", "kept", "replaced"]);
    let now = admin.get("replaced").await.unwrap().uid();
    assert_eq!(cache.get("default", "replaced").unwrap().uid(), now, "the new one of that name");
    assert!(readiness.is_ready());

    create("later").await;
    reported(&["updated later"]).await;
    running.abort();
}
