//! Small at rest: what the operator asks of the API server when nothing changes, and what it serves meanwhile.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_scenes::{
    Operator, PATIENCE, audit::besides, control_plane, grant, request, requests, scene::Scene, writes,
};
use coder_k8s_testbed::{Cluster, eventually};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use rustix::process::Signal;
use serde::{Serialize, de::DeserializeOwned};

const OBJECTS: usize = 200;
/// Children of an object with nothing but its name: ServiceAccount, Service, Deployment, Role, RoleBinding.
const CHILDREN: usize = 5;

async fn create(api: &Api<CoderControlPlane>, count: usize) {
    stream::iter(0..count)
        .map(|n| {
            let api = api.clone();
            async move { api.create(&PostParams::default(), &control_plane(&format!("coder-{n}"))).await }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
}

/// Waits until `settled` holds of every object.
async fn until_all(
    api: &Api<CoderControlPlane>,
    operator: &Operator,
    settled: impl Fn(&CoderControlPlane) -> bool,
) {
    let all = || async {
        let all = api.list(&ListParams::default()).await.unwrap();
        match all.iter().filter(|object| !settled(object)).count() {
            0 => Ok(()),
            open => Err(format!("{open} are not settled")),
        }
    };
    eventually(3 * PATIENCE, all).await.unwrap_or_else(|error| panic!("{error}\n{}", operator.output()));
}

fn observed(object: &CoderControlPlane) -> bool {
    let observed = object.status.as_ref().and_then(|status| status.workload.observed_generation);
    observed.is_some() && observed == object.metadata.generation
}

fn is_ready(object: &CoderControlPlane) -> bool {
    let all = object.status.iter().flat_map(|status| &status.workload.conditions);
    all.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Asserts that a restart of the operator writes nothing.
async fn restart_writes_nothing(
    cluster: &Cluster,
    mut first: Operator,
    start: impl Fn() -> Operator,
    count: usize,
) -> Operator {
    first.signal(Signal::TERM);
    assert_eq!(first.exit_code().await, Some(0), "{}", first.output());
    let started = Instant::now();
    let second = start();
    second.until_ready().await;
    println!("ready {:?} after the start, with {count} objects", started.elapsed());
    second.until_leading().await;
    second.until_reconciled("CoderControlPlane", count as u64).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = requests(cluster, |user| user == second.user);
    assert!(writes(&again).is_empty(), "after a restart: {:?}", writes(&again));
    second
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_object_costs_eight_requests_from_nothing_to_ready() {
    let scene = Scene::unmanaged("rest").await;
    let (cluster, api) = (scene.cluster(), scene.api::<CoderControlPlane>());
    let operator = scene.start(&[]);
    operator.until_leading().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = requests(cluster, |user| user == operator.user).len();
    create(&api, 1).await;
    until_all(&api, &operator, is_ready).await;
    operator.until_idle("CoderControlPlane").await;
    let all = requests(cluster, |user| user == operator.user);
    let all = besides(&all[before..]);
    let count = |resource: &str, subresource: &str| {
        all.iter().filter(|e| e.resource == resource && e.subresource == subresource).count()
    };
    for child in ["serviceaccounts", "services", "deployments", "roles", "rolebindings"] {
        assert_eq!(count(child, ""), 1, "{child}: {all:?}");
    }
    println!(
        "{} requests: {CHILDREN} children, {} status, {} events",
        all.len(),
        count("codercontrolplanes", "status"),
        count("events", "")
    );
    assert!(count("codercontrolplanes", "status") <= 2 && count("events", "") <= 1, "{all:?}");
    assert!(all.len() <= 8 && all.iter().all(|event| event.code < 300), "{all:?}");
    assert!(all.iter().all(|event| event.verb != "get" && event.verb != "list"), "no reads: {all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_ready_objects_cost_nothing_for_a_minute_and_no_write_after_a_restart() {
    const COUNT: usize = 50;
    let scene = Scene::unmanaged("rest").await;
    let (cluster, api) = (scene.cluster(), scene.api::<CoderControlPlane>());
    let operator = scene.start(&[]);
    operator.until_leading().await;
    create(&api, COUNT - 1).await;
    let everything: CoderControlPlane =
        serde_json::from_str(include_str!("../fixtures/everything.json")).unwrap();
    api.create(&PostParams::default(), &everything).await.unwrap();
    until_all(&api, &operator, is_ready).await;
    operator.until_idle("CoderControlPlane").await;
    let before = requests(cluster, |user| user == operator.user).len();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let all = requests(cluster, |user| user == operator.user);
    let extra = besides(&all[before..]);
    assert!(extra.is_empty(), "at rest: {extra:?}");
    restart_writes_nothing(cluster, operator, || scene.start(&[]), COUNT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_objects_at_once_are_made_at_the_pace_of_the_api_server() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let api: Api<CoderControlPlane> = Api::namespaced(client.clone(), "default");
    let operator = Operator::start(&cluster, &[]);
    operator.until_leading().await;
    let started = Instant::now();
    create(&api, OBJECTS).await;
    let posted = started.elapsed();
    until_all(&api, &operator, observed).await;
    let made = started.elapsed();

    operator.until_idle("CoderControlPlane").await;
    let all = requests(&cluster, |user| user == operator.user);
    let (accepted, refused): (Vec<_>, Vec<_>) = writes(&all).into_iter().partition(|event| event.code < 300);
    println!("{} writes for {OBJECTS} new objects, {} refused", accepted.len(), refused.len());
    // No pods run here: children and one status for each, and nothing is ready yet to tell of.
    assert_eq!(accepted.len(), (CHILDREN + 1) * OBJECTS);
    assert!(refused.len() <= OBJECTS / 20, "writes onto an old view are rare: {refused:?}");
    assert!(all.iter().all(|event| event.code != 403), "the declared rights are enough");

    let second = restart_writes_nothing(&cluster, operator, || Operator::start(&cluster, &[]), OBJECTS).await;
    let (code, text) = second.get("--metrics-addr", "/metrics").await;
    assert_eq!(code, 200);
    let text = unchunked(&text);
    assert_eq!(coder_k8s_testbed::metrics_lint::lint(&text), Vec::<String>::new(), "{text}");
    for line in [
        "coder_k8s_leading 1",
        r#"coder_k8s_objects{kind="CoderControlPlane",ready="false"} 200"#,
        r#"coder_k8s_reconciles_total{kind="CoderControlPlane",outcome="settled",reason="Reconciled"} 200"#,
        "coder_k8s_queue_depth 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
    }
    drop(second);

    // What the same API server can do: the same writes, sixteen objects at a time.
    let raw = raw_writes(&client, OBJECTS).await;
    let ratio = (raw + posted).as_secs_f64() / made.as_secs_f64();
    println!(
        "{OBJECTS} objects in {made:?}, against {posted:?} to post them and {raw:?} for the same writes: {ratio:.2}"
    );
}

/// The time for the same writes by a client that only sends: every child of one object, and its status, again and again
/// under other names.
async fn raw_writes(client: &Client, objects: usize) -> Duration {
    async fn model<K>(client: &Client) -> (ApiResource, serde_json::Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(client.clone(), "default");
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=coder-k8s").limit(1);
        let mut object = serde_json::to_value(api.list(&ours).await.unwrap().items.remove(0)).unwrap();
        object["metadata"] = serde_json::json!({"labels": {"raw": "1"}});
        for assigned in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            object["spec"].as_object_mut().map(|spec| spec.remove(assigned));
        }
        object.as_object_mut().unwrap().retain(|field, value| field != "status" && !value.is_null());
        let resource = ApiResource::erase::<K>(&());
        object["apiVersion"] = resource.api_version.clone().into();
        object["kind"] = resource.kind.clone().into();
        (resource, object)
    }
    let models = [
        model::<ServiceAccount>(client).await,
        model::<Service>(client).await,
        model::<Deployment>(client).await,
        model::<Role>(client).await,
        model::<RoleBinding>(client).await,
    ];
    let planes: Api<CoderControlPlane> = Api::namespaced(client.clone(), "default");
    let status = serde_json::to_value(planes.get("coder-0").await.unwrap().status).unwrap();
    let started = Instant::now();
    stream::iter(0..objects)
        .map(|n| {
            let (models, planes, status) = (&models, &planes, &status);
            async move {
                let name = format!("raw-{n}");
                for (resource, object) in models {
                    let mut object = object.clone();
                    object["metadata"]["name"] = name.clone().into();
                    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", resource);
                    let params = PatchParams::apply("raw").force();
                    api.patch(&name, &params, &Patch::Apply(&object)).await?;
                }
                let body = serde_json::json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "status": status});
                let params = PatchParams::apply("raw").force();
                planes.patch_status(&format!("coder-{n}"), &params, &Patch::Apply(&body)).await.map(|_| ())
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_changes_while_it_runs() {
    let scene = Scene::bare("log").await;
    let mut operator = scene.start(&["--log-level=warn"]);
    // At `warn` the addresses are not logged: a second instance tells its own.
    let loud = scene.start(&[]);
    let admin = loud.address("--admin-addr").await;
    assert!(!operator.output().contains(r#""level":"INFO""#));
    let put = |level: &str| {
        let length = level.len();
        format!(
            "PUT /log-level HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{level}"
        )
    };
    assert_eq!(request(&admin, &put("debug")).await.0, 200);
    loud.until(|lines| lines.iter().any(|line| line["level"] == "DEBUG").then_some(())).await;
    let (code, why) = request(&admin, &put("no=such=level")).await;
    assert_eq!(code, 400, "{why}");
    assert!(operator.runs(), "{}", operator.tail());
}

/// The body of an answer, whether it was sent in chunks or not.
fn unchunked(body: &str) -> String {
    if body.starts_with('#') {
        return body.to_owned();
    }
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        text.push_str(&after[..size]);
        rest = after.get(size + 2..).unwrap_or("");
    }
    text
}
