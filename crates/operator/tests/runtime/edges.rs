//! At the edges: an API server that goes away, children that others change, objects that others left.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{condition::condition_type, crds};
use coder_k8s_testbed::{Memory, eventually, memory::Kinds};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, Service, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use coder_k8s_scenes::{
    Operator, PATIENCE, bare_cluster, control_plane, grant,
    plane::{condition, observed, ready_is},
    planes, requests,
    scene::Scene,
    writes,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_service_account_is_a_conflict_until_it_is_handed_over() {
    let scene = Scene::bare("edges").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let accounts: Api<ServiceAccount> = scene.api();
    let theirs = json!({"metadata": {"name": "coder", "labels": {"team": "x"}}});
    accounts.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
    let operator = scene.start(&[]);
    operator.until_leading().await;
    planes(client, namespace).create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let object = ready_is(client, namespace, "coder", "ForeignObject").await;
    assert_eq!(condition(&object, condition_type::CONFLICT).0, "True");
    assert_eq!(condition(&object, condition_type::STALLED).0, "True");
    let (_, _, message) = condition(&object, condition_type::READY);
    assert!(
        message.contains("ServiceAccount coder exists")
            && message.contains("coder.com/adopt-by=CoderControlPlane/coder"),
        "{message}"
    );
    assert_eq!(accounts.get("coder").await.unwrap().owner_references(), []);

    let hand_over = json!({"metadata": {"annotations": {"coder.com/adopt-by": "CoderControlPlane/coder"}}});
    accounts.patch("coder", &PatchParams::default(), &Patch::Merge(&hand_over)).await.unwrap();
    ready_is(client, namespace, "coder", "Progressing").await;
    assert_eq!(accounts.get("coder").await.unwrap().labels()["team"], "x");
    // An event follows the status that it tells of.
    eventually(PATIENCE, || async {
        let told: Vec<_> = scene.events("coder").await.into_iter().map(|(_, reason)| reason).collect();
        if told == ["ForeignObject", "Progressing"] {
            Ok(())
        } else {
            Err(format!("one event a transition, not {told:?}"))
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_or_changed_child_comes_back() {
    let scene = Scene::bare("edges").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let operator = scene.start(&[]);
    operator.until_leading().await;
    planes(client, namespace).create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    observed(client, namespace, "coder").await;
    let accounts: Api<ServiceAccount> = scene.api();
    let first = accounts.get("coder").await.unwrap();
    accounts.delete("coder", &DeleteParams::default()).await.unwrap();
    eventually(PATIENCE, || async { accounts.get("coder").await.map(|_| ()) }).await.unwrap();
    assert_ne!(accounts.get("coder").await.unwrap().uid(), first.uid());

    // Somebody takes our label away: the child leaves the cache and still is found and mended.
    let unlabel = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    accounts.patch("coder", &PatchParams::default(), &Patch::Merge(&unlabel)).await.unwrap();
    eventually(PATIENCE, || async {
        let labels = accounts.get("coder").await.unwrap().labels().clone();
        labels.get("app.kubernetes.io/managed-by").cloned().ok_or(format!("{labels:?}"))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_any_log_level_the_operator_works_until_it_is_told_to_stop() {
    let scene = Scene::bare("levels").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    for level in ["off", "error", "warn", "trace"] {
        let mut operator = scene.start(&[&format!("--log-level={level}")]);
        planes(client, namespace).create(&PostParams::default(), &control_plane(level)).await.unwrap();
        observed(client, namespace, level).await;
        assert!(operator.runs(), "{level}: {}", operator.tail());
        operator.signal(rustix::process::Signal::TERM);
        assert_eq!(operator.exit_code().await, Some(0), "{level}: {}", operator.tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_after_the_api_server_was_away() {
    let (cluster, client) = bare_cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let mut operator =
        Operator::start(&cluster, &["--lease-duration=60s", "--renew-deadline=50s", "--request-timeout=3s"]);
    operator.until_leading().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("before")).await.unwrap();
    observed(&client, "default", "before").await;
    for _ in 0..2 {
        cluster.restart_api_server().await.unwrap();
    }
    let client = cluster.client();
    planes(&client, "default").create(&PostParams::default(), &control_plane("after")).await.unwrap();
    observed(&client, "default", "after").await;
    let edit = json!({"spec": {"serviceAccount": {"annotations": {"a": "1"}}}});
    planes(&client, "default").patch("before", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
    observed(&client, "default", "before").await;
    assert!(operator.runs());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_before_the_api_server_answers_catches_up() {
    let (cluster, client) = bare_cluster(crds()).await;
    grant(&client, &Install::default()).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    cluster.pause_api_server().unwrap();
    let mut operator = Operator::start(&cluster, &["--request-timeout=1s"]);
    operator
        .until_readyz(503, "[-] watch customresourcedefinitions: no complete response from the API server")
        .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(operator.runs(), "{}", operator.output());
    cluster.resume_api_server().unwrap();
    operator.until_ready().await;
    observed(&client, "default", "coder").await;
}

/// A status as the Go operator leaves it: its conditions belong to a plain update and cannot be taken away.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_the_go_operator_is_taken_over_and_then_costs_nothing() {
    let scene = Scene::bare("edges").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let api = planes(client, namespace);
    let mut old = api.create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let status = json!({
        "observedGeneration": 1, "phase": "Ready", "readyReplicas": 1, "url": "http://coder.default.svc.cluster.local:80",
        "conditions": [{"type": "LicenseApplied", "status": "Unknown", "reason": "Pending", "message": "licenseSecretRef is not set",
            "observedGeneration": 1, "lastTransitionTime": "2026-11-01T00:00:00Z"}],
    });
    old.status = Some(serde_json::from_value(status).unwrap());
    let by_them = PostParams { field_manager: Some("coder-k8s".into()), ..PostParams::default() };
    api.replace_status("coder", &by_them, &old).await.unwrap();

    let mut first = scene.start(&[]);
    first.until_leading().await;
    let taken = ready_is(client, namespace, "coder", "Progressing").await;
    assert_eq!(condition(&taken, condition_type::LICENSE_APPLIED).1, "Pending");
    assert_eq!(taken.status.unwrap().workload.phase.as_deref(), Some("Pending"), "its Deployment is new");
    first.signal(rustix::process::Signal::TERM);
    first.exit_code().await;
    let second = scene.start(&[]);
    second.until_leading().await;
    second.until_reconciled("CoderControlPlane", 1).await;
    let all = requests(scene.cluster(), |user| user == second.user);
    assert!(writes(&all).is_empty(), "{:?}", writes(&all));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_wakes_those_who_refer_to_it_and_nobody_else() {
    let scene = Scene::bare("edges").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let mut licensed = control_plane("licensed");
    licensed.spec.license_secret_ref = Some(serde_json::from_value(json!({"name": "license"})).unwrap());
    planes(client, namespace).create(&PostParams::default(), &licensed).await.unwrap();
    planes(client, namespace).create(&PostParams::default(), &control_plane("plain")).await.unwrap();
    let operator = scene.start(&[]);
    observed(client, namespace, "licensed").await;
    observed(client, namespace, "plain").await;
    operator.until_ready().await;
    let before = operator.until_idle("CoderControlPlane").await;
    let secrets: Api<Secret> = scene.api();
    for name in ["license", "other"] {
        let secret = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }
    operator.until_reconciled("CoderControlPlane", before + 1).await;
    assert_eq!(operator.until_idle("CoderControlPlane").await, before + 1);
    secrets
        .patch("other", &PatchParams::default(), &Patch::Merge(&json!({"stringData": {"a": "b"}})))
        .await
        .unwrap();
    secrets
        .patch("license", &PatchParams::default(), &Patch::Merge(&json!({"stringData": {"a": "b"}})))
        .await
        .unwrap();
    operator.until_reconciled("CoderControlPlane", before + 2).await;
    assert_eq!(operator.until_idle("CoderControlPlane").await, before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_expired_before_a_watch_showed_them_are_not_lost() {
    let memory = Memory::start(&Kinds::new(&crds()).unwrap()).await.unwrap();
    let client = memory.client().unwrap();
    let folder = std::env::temp_dir().join(format!("coder-k8s-expired-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, memory.kubeconfig("expired")).unwrap();
    let args = ["--leader-elect=false", "--watch-namespaces=default"];
    let operator = Operator::start_with("expired".to_owned(), &kubeconfig, folder.join("output"), &args);
    operator.until_leading().await;
    let planes = planes(&client, "default");
    for name in ["changed", "deleted"] {
        planes.create(&PostParams::default(), &control_plane(name)).await.unwrap();
        observed(&client, "default", name).await;
    }
    operator.until_idle("CoderControlPlane").await;

    memory.withhold_watches(true);
    let edit = json!({"spec": {"image": "coder:another"}});
    planes.patch("changed", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    services.delete("changed", &DeleteParams::default()).await.unwrap();
    planes.delete("deleted", &DeleteParams::default()).await.unwrap();
    planes.create(&PostParams::default(), &control_plane("added")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    assert!(deployments.get_opt("added").await.unwrap().is_none(), "the operator could not know");
    memory.compact();
    memory.withhold_watches(false);

    observed(&client, "default", "added").await;
    observed(&client, "default", "changed").await;
    eventually(PATIENCE, || async {
        let changed = deployments.get("changed").await.map_err(|error| error.to_string())?;
        let pod = changed.spec.unwrap().template.spec.unwrap();
        if pod.containers[0].image.as_deref() == Some("coder:another") {
            Ok(())
        } else {
            Err(format!("{pod:?}"))
        }
    })
    .await
    .unwrap();
    for name in ["added", "changed"] {
        eventually(PATIENCE, || async { services.get(name).await.map(|_| ()) }).await.unwrap();
    }
    operator.until_idle("CoderControlPlane").await;
    assert!(deployments.get_opt("deleted").await.unwrap().is_none(), "and nothing is made for what is gone");
    let (_, metrics) = operator.get("--metrics-addr", "/metrics").await;
    let restarted = |resource: &str| {
        let label = format!("resource=\"{resource}\"");
        let ours = |line: &&str| line.starts_with("coder_k8s_watch_restarts_total") && line.contains(&label);
        metrics.lines().find(ours).is_some_and(|line| !line.ends_with(" 0"))
    };
    assert!(restarted("codercontrolplanes") && restarted("services"), "nothing expired:\n{metrics}");
    drop(operator);
    std::fs::remove_dir_all(&folder).unwrap();
}
