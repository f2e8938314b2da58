//! Calls that fail: each has its condition, is tried again with patience, and is got over.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_testbed::{Cluster, Node};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    scene::condition,
    support::{Operator, control_plane, grant, observed, planes, ready_is},
};

/// A fault, the reason that `Ready` shows for it, and whether only a person is said to help.
const FAULTS: [(&str, &str, bool); 6] = [
    ("status=403", "Forbidden", false),
    ("status=409", "Outdated", false),
    ("status=422", "Invalid", true),
    ("status=429", "RateLimited", false),
    ("status=500", "APIServerError", false),
    ("delay=5000", "Timeout", false),
];

/// A cluster of the test's own, because its operator is to fail.
async fn own_cluster() -> (Cluster, Client, Node) {
    let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
    let client = cluster.client();
    let node = cluster.node("testbed").await.unwrap();
    grant(&client, &Install::default()).await;
    (cluster, client, node)
}

/// The delay, in seconds, that a line of the log announces after the API server failed an object.
fn delay_of(line: &str, object: &str) -> Option<f64> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let about = line["reason"] == "APIServerError" && line.to_string().contains(object);
    let delay = line["delay"].as_str().filter(|_| about)?;
    match delay.strip_suffix("ms") {
        Some(ms) => ms.parse::<f64>().ok().map(|ms| ms / 1000.0),
        None => delay.strip_suffix('s')?.parse().ok(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_create_patch_or_status_write_is_told_retried_with_patience_and_got_over() {
    let (cluster, client, _node) = own_cluster().await;
    let operator = Operator::start(&cluster, &["--request-timeout=1s"]);
    operator.leads().await;
    let api = planes(&client, "default");
    for (n, (fault, reason, stalled)) in FAULTS.into_iter().enumerate() {
        // A child that cannot be made: the others are, and the condition names it.
        let name = format!("create-{n}");
        operator.faults(&[format!("before apply deployments /{name} {fault} 3")]);
        api.create(&PostParams::default(), &control_plane(&name)).await.unwrap();
        let said = ready_is(&client, &name, reason).await;
        let ready = condition(&said, "Ready").unwrap();
        assert_eq!(ready.status, "False");
        assert!(ready.message.contains(&format!("cannot write Deployment {name}")), "{}", ready.message);
        assert_eq!(condition(&said, "Stalled").unwrap().status == "True", stalled, "{fault}");
        assert_eq!(condition(&said, "Reconciling").unwrap().status == "True", !stalled, "{fault}");
        Api::<Service>::namespaced(client.clone(), "default").get(&name).await.unwrap();
        ready_is(&client, &name, "RolledOut").await;

        // An edit that is refused: what runs goes on, and nothing pretends that the edit is in force.
        let uid = Api::<Deployment>::namespaced(client.clone(), "default").get(&name).await.unwrap().uid();
        operator.faults(&[format!("before apply deployments /{name} {fault} 2")]);
        let edit = json!({"spec": {"image": format!("coder:v{n}")}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
        ready_is(&client, &name, reason).await;
        ready_is(&client, &name, "RolledOut").await;
        let after = observed(&client, "default", &name).await;
        assert_eq!(after.status.unwrap().workload.image, Some(format!("coder:v{n}")));
        let deployment = Api::<Deployment>::namespaced(client.clone(), "default").get(&name).await.unwrap();
        assert_eq!(deployment.uid(), uid);

        // A status that cannot be written: written later, and no child is touched for it.
        let name = format!("status-{n}");
        operator.faults(&[format!("before apply codercontrolplanes/status /{name} {fault} 3")]);
        api.create(&PostParams::default(), &control_plane(&name)).await.unwrap();
        ready_is(&client, &name, "RolledOut").await;
        operator.faults(&[]);
    }
    // Patience: the waits grow. The fault of 500 is the fifth.
    let first =
        operator.output().lines().filter_map(|line| delay_of(line, "create-4")).take(3).collect::<Vec<_>>();
    assert!(first.len() == 3 && first.is_sorted() && first[2] > first[0], "{first:?}");
}

/// An answer that is lost: the server did it, the operator does not know, and does not do it twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_found_out() {
    let (cluster, client, _node) = own_cluster().await;
    let operator = Operator::start(&cluster, &["--request-timeout=1s"]);
    operator.leads().await;
    for resource in
        ["serviceaccounts", "services", "deployments", "roles", "rolebindings", "codercontrolplanes/status"]
    {
        let name = format!("lost-{}", resource.replace('/', "-"));
        operator.faults(&[
            format!("after apply {resource} /default/{resource} error 1"),
            format!("after apply {resource} / error 1"),
        ]);
        planes(&client, "default").create(&PostParams::default(), &control_plane(&name)).await.unwrap();
        ready_is(&client, &name, "RolledOut").await;
        let deployment = Api::<Deployment>::namespaced(client.clone(), "default").get(&name).await.unwrap();
        assert_eq!(deployment.metadata.generation, Some(1), "{resource}: it rolled out once");
    }
}

/// The process ends before or after each write of a new object; the next one finishes the work.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_leaves_nothing_half_done() {
    let (cluster, client, _node) = own_cluster().await;
    let quick = ["--leader-elect=false"];
    let writes = [
        "codercontrolplanes",
        "serviceaccounts",
        "services",
        "deployments",
        "ingresses",
        "poddisruptionbudgets",
        "roles",
        "rolebindings",
        "codercontrolplanes/status",
        "events",
    ];
    let consent = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "elsewhere", "labels": {"workspaces.coder.com/default": "allow"}}});
    crate::support::apply(&client, consent).await;
    for (n, resource) in writes.into_iter().enumerate() {
        for when in ["before", "after"] {
            let name = format!("crash-{n}-{when}");
            let mut victim = Operator::start(&cluster, &quick);
            victim.leads().await;
            victim.faults(&[format!("{when} * {resource} / exit 1")]);
            let object: CoderControlPlane = serde_json::from_value(json!({
                "apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "metadata": {"name": name},
                "spec": {"replicas": 2, "expose": {"ingress": {"host": format!("{name}.example.com")}},
                    "rbac": {"workspaceNamespaces": ["elsewhere"]}},
            }))
            .unwrap();
            planes(&client, "default").create(&PostParams::default(), &object).await.unwrap();
            assert_eq!(victim.exit_code().await, Some(coder_k8s_engine::client::EXIT_CODE), "{name}");
            let next = Operator::start(&cluster, &quick);
            ready_is(&client, &name, "RolledOut").await;
            let deployment =
                Api::<Deployment>::namespaced(client.clone(), "default").get(&name).await.unwrap();
            assert_eq!(deployment.metadata.generation, Some(1), "{name}: it rolled out once");
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(next);
        }
    }
}
