//! Deployments through the real controllers and the testbed's node.

use coder_k8s_testbed::{Behaviour, Rule, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::{SOON, shared};

fn deployment(replicas: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "registry.example/web:1" }] },
            },
        },
    }))
    .unwrap()
}

async fn create(client: &Client, namespace: &str, replicas: i32) -> Api<Deployment> {
    let api = Api::<Deployment>::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &deployment(replicas)).await.unwrap();
    api
}

async fn until_available(api: &Api<Deployment>, wanted: i32) {
    eventually(SOON, || async {
        let status = api.get("web").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let available = status.available_replicas.unwrap_or(0);
        if available == wanted && status.replicas.is_some() { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
}

async fn until_pods(client: &Client, namespace: &str, what: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    eventually(SOON, || async {
        let pods = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        if what(&pods) { Ok(pods) } else { Err(format!("{pods:#?}")) }
    })
    .await
    .unwrap()
}

fn waiting_reason(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

#[tokio::test]
async fn a_deployment_becomes_available_and_its_pods_go_with_it() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("rollout").await);
    let api = create(&client, namespace.name(), 2).await;
    until_available(&api, 2).await;
    let pods = until_pods(&client, namespace.name(), |pods| pods.len() == 2).await;
    let mut addresses: Vec<_> = pods.iter().filter_map(|pod| pod.status.clone()?.pod_ip).collect();
    addresses.dedup();
    assert_eq!(addresses.len(), 2, "pods share an address: {addresses:?}");

    api.delete("web", &DeleteParams::background()).await.unwrap();
    until_pods(&client, namespace.name(), <[Pod]>::is_empty).await;
}

#[tokio::test]
async fn an_unready_deployment_recovers_when_told() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("unready").await);
    shared.node.behave(Rule::namespace(namespace.name()), Behaviour::Unready);
    let api = create(&client, namespace.name(), 2).await;
    until_pods(&client, namespace.name(), |pods| {
        pods.len() == 2
            && pods.iter().all(|pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()))
    })
    .await;
    until_available(&api, 0).await;

    shared.node.behave(Rule::namespace(namespace.name()), Behaviour::Ready);
    until_available(&api, 2).await;
    shared.node.behave(Rule::namespace(namespace.name()).image("web:1"), Behaviour::Unready);
    until_available(&api, 0).await;
}

#[tokio::test]
async fn a_pod_waits_with_the_reason_that_the_node_was_told() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("waiting").await);
    for (behaviour, reason) in
        [(Behaviour::ImagePullBackOff, "ImagePullBackOff"), (Behaviour::CrashLoop, "CrashLoopBackOff")]
    {
        shared.node.behave(Rule::namespace(namespace.name()), behaviour);
        let api = Api::<Deployment>::namespaced(client.clone(), namespace.name());
        if api.get_opt("web").await.unwrap().is_none() {
            create(&client, namespace.name(), 1).await;
        }
        until_pods(&client, namespace.name(), |pods| {
            pods.iter().any(|pod| waiting_reason(pod) == Some(reason))
        })
        .await;
    }
}

#[tokio::test]
async fn a_held_deletion_ends_when_it_is_released() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("held").await);
    let api = create(&client, namespace.name(), 1).await;
    until_available(&api, 1).await;
    shared.node.hold_deletions(namespace.name(), true);
    api.delete("web", &DeleteParams::background()).await.unwrap();
    until_pods(&client, namespace.name(), |pods| {
        pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    // A later change of the rules is a chance to get it wrong.
    shared.node.behave(Rule::namespace(namespace.name()), Behaviour::Unready);
    let pods = until_pods(&client, namespace.name(), |pods| !pods.is_empty()).await;
    assert_eq!(pods.len(), 1);
    shared.node.hold_deletions(namespace.name(), false);
    until_pods(&client, namespace.name(), <[Pod]>::is_empty).await;
}

#[tokio::test]
async fn ready_pods_become_endpoints_of_their_service() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("endpoints").await);
    let service = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
    }))
    .unwrap();
    let services = Api::<k8s_openapi::api::core::v1::Service>::namespaced(client.clone(), namespace.name());
    services.create(&PostParams::default(), &service).await.unwrap();
    create(&client, namespace.name(), 1).await;
    let slices = Api::<EndpointSlice>::namespaced(client, namespace.name());
    eventually(SOON, || async {
        let slices = slices.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let ready = |slice: &EndpointSlice| {
            let mut endpoints = slice.endpoints.iter().flatten();
            endpoints.any(|endpoint| endpoint.conditions.as_ref().and_then(|it| it.ready) == Some(true))
        };
        if slices.iter().any(ready) { Ok(()) } else { Err(format!("{slices:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_pod_at_rest_is_not_written_again() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("rest").await);
    let api = create(&client, namespace.name(), 1).await;
    until_available(&api, 1).await;
    let version = |pods: &[Pod]| pods[0].metadata.resource_version.clone();
    let before = version(&until_pods(&client, namespace.name(), |pods| pods.len() == 1).await);

    // Makes the node look at every pod; a pod that changes shows that it has done so.
    let other = shared.namespace("rest-other").await;
    let marker = create(&client, other.name(), 1).await;
    until_available(&marker, 1).await;
    shared.node.behave(Rule::namespace(other.name()), Behaviour::Unready);
    until_available(&marker, 0).await;
    let after = version(&until_pods(&client, namespace.name(), |pods| pods.len() == 1).await);
    assert_eq!(before, after);
}

#[tokio::test]
async fn the_node_is_ready_and_has_no_taints() {
    let shared = shared().await;
    let node = Api::<Node>::all(shared.cluster.client()).get(shared.node.name()).await.unwrap();
    assert_eq!(node.spec.unwrap_or_default().taints.unwrap_or_default(), []);
    let conditions = node.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"));
}
