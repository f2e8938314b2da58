//! Calls that fail: each has its condition, is tried again with patience, and is got over.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use coder_k8s_scenes::{
    control_plane,
    plane::{observed, ready_is},
    planes,
    scene::{Scene, condition},
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

/// The delay, in seconds, that a line of the log announces after the API server failed an object.
fn delay_of(line: &str, object: &str) -> Option<f64> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let about = line["reason"] == "APIServerError" && line.to_string().contains(object);
    let (_, delay) = line["message"].as_str().filter(|_| about)?.rsplit_once("the next attempt is in ")?;
    delay.strip_suffix(" s")?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_create_patch_or_status_write_is_told_retried_with_patience_and_got_over() {
    let scene = Scene::unmanaged("errors").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let operator = scene.start(&["--request-timeout=1s"]);
    operator.until_leading().await;
    let api = planes(client, namespace);
    for (n, (fault, reason, stalled)) in FAULTS.into_iter().enumerate() {
        // A child that cannot be made: the others are, and the condition names it.
        let name = format!("create-{n}");
        operator.faults(&[format!("before create deployments / {fault} 4")]);
        api.create(&PostParams::default(), &control_plane(&name)).await.unwrap();
        let said = ready_is(client, namespace, &name, reason).await;
        let ready = condition(&said, "Ready").unwrap();
        assert_eq!(ready.status, "False");
        assert!(ready.message.contains(&format!("cannot write Deployment {name}")), "{}", ready.message);
        assert_eq!(condition(&said, "Stalled").unwrap().status == "True", stalled, "{fault}");
        assert_eq!(condition(&said, "Reconciling").unwrap().status == "True", !stalled, "{fault}");
        scene.api::<Service>().get(&name).await.unwrap();
        ready_is(client, namespace, &name, "RolledOut").await;

        // An edit that is refused: what runs goes on, and nothing pretends that the edit is in force.
        let uid = scene.api::<Deployment>().get(&name).await.unwrap().uid();
        operator.faults(&[format!("before patch deployments /{name} {fault} 2")]);
        let edit = json!({"spec": {"image": format!("coder:v{n}")}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
        ready_is(client, namespace, &name, reason).await;
        ready_is(client, namespace, &name, "RolledOut").await;
        let after = observed(client, namespace, &name).await;
        assert_eq!(after.status.unwrap().workload.image, Some(format!("coder:v{n}")));
        let deployment = scene.api::<Deployment>().get(&name).await.unwrap();
        assert_eq!(deployment.uid(), uid);

        // A status that cannot be written: written later, and no child is touched for it.
        let name = format!("status-{n}");
        operator.faults(&[format!("before update codercontrolplanes/status /{name} {fault} 3")]);
        api.create(&PostParams::default(), &control_plane(&name)).await.unwrap();
        ready_is(client, namespace, &name, "RolledOut").await;
        operator.faults(&[]);
    }
    // Patience: the waits grow. The fault of 500 is the fifth. A try that something else started before a wait was over
    // waits as long again, up to a fifth shorter at random.
    let waits =
        operator.output().lines().filter_map(|line| delay_of(line, "create-4")).take(4).collect::<Vec<_>>();
    assert!(waits.len() == 4 && waits[3] > 1.5 * waits[0], "{waits:?}");
}

/// An answer that is lost: the server did it, the operator does not know, and does not do it twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_found_out() {
    let scene = Scene::unmanaged("errors").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let operator = scene.start(&["--request-timeout=1s"]);
    operator.until_leading().await;
    for resource in
        ["serviceaccounts", "services", "deployments", "roles", "rolebindings", "codercontrolplanes/status"]
    {
        let name = format!("lost-{}", resource.replace('/', "-"));
        operator.faults(&[
            format!("after create {resource} / error 1"),
            format!("after update {resource} / error 1"),
        ]);
        planes(client, namespace).create(&PostParams::default(), &control_plane(&name)).await.unwrap();
        ready_is(client, namespace, &name, "RolledOut").await;
        let deployment = scene.api::<Deployment>().get(&name).await.unwrap();
        assert_eq!(deployment.metadata.generation, Some(1), "{resource}: it rolled out once");
    }
}

/// The process ends before or after each write of a new object; the next one finishes the work.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_leaves_nothing_half_done() {
    let scene = Scene::unmanaged_with("errors", &["elsewhere"]).await;
    scene.label(&scene.beside()[0], scene.consent()).await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
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
    for (n, resource) in writes.into_iter().enumerate() {
        for when in ["before", "after"] {
            let name = format!("crash-{n}-{when}");
            let mut victim = scene.start(&quick);
            victim.until_leading().await;
            victim.faults(&[format!("{when} * {resource} / exit 1")]);
            let object: CoderControlPlane = serde_json::from_value(json!({
                "apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "metadata": {"name": name},
                "spec": {"replicas": 2, "expose": {"ingress": {"host": format!("{name}.example.com")}},
                    "rbac": {"workspaceNamespaces": scene.beside()}},
            }))
            .unwrap();
            planes(client, namespace).create(&PostParams::default(), &object).await.unwrap();
            assert_eq!(victim.exit_code().await, Some(coder_k8s_engine::client::EXIT_CODE), "{name}");
            let next = scene.start(&quick);
            ready_is(client, namespace, &name, "RolledOut").await;
            let deployment = scene.api::<Deployment>().get(&name).await.unwrap();
            assert_eq!(deployment.metadata.generation, Some(1), "{name}: it rolled out once");
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(next);
        }
    }
}
