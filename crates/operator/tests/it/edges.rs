//! At the edges: missing and old CRDs, objects that cannot be read, rights that are missing, an API server that goes away.

use std::time::Duration;

use crate::support::{
    Operator, PATIENCE, apply, condition, control_plane, grant, observed, requests, writes,
};
use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, condition::kind, crds};
use coder_k8s_testbed::{Cluster, eventually};
use k8s_openapi::{
    api::core::v1::{Namespace, Secret, ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

async fn cluster(crds: Vec<CustomResourceDefinition>) -> (Cluster, Client) {
    let cluster = Cluster::builder().controller_manager(false).crds(crds).start().await.unwrap();
    let client = cluster.client();
    (cluster, client)
}

fn planes(client: &Client, namespace: &str) -> Api<CoderControlPlane> {
    Api::namespaced(client.clone(), namespace)
}

/// Waits until `/readyz` says something.
async fn readyz_says(operator: &Operator, code: u16, text: &str) {
    let said = eventually(PATIENCE, || async {
        match operator.get("--health-addr", "/readyz").await {
            (found, body) if found == code && body.contains(text) => Ok(()),
            (found, body) => Err(format!("{found}: {body}")),
        }
    });
    said.await.unwrap_or_else(|error| panic!("{error}\n{}", operator.output()));
}

async fn ready_is(client: &Client, name: &str, reason: &str) -> CoderControlPlane {
    let api = planes(client, "default");
    let found = eventually(PATIENCE, || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let all = object.status.as_ref().map_or(&[][..], |status| &status.workload.conditions);
        if all.iter().any(|c| c.type_ == kind::READY && c.reason == reason) {
            Ok(object)
        } else {
            Err(format!("{all:?}"))
        }
    });
    found.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_crds_are_waited_for_and_readiness_names_the_command() {
    let (cluster, client) = cluster(Vec::new()).await;
    grant(&client, &Install::default()).await;
    let mut operator = Operator::start(&cluster, &[]);
    readyz_says(&operator, 503, "[-] crd codercontrolplanes.coder.com: not installed; run `coder-k8s crds | kubectl apply --server-side -f -`").await;
    readyz_says(&operator, 503, "[-] watch codercontrolplanes: waits for its CRD").await;
    assert_eq!(operator.get("--health-addr", "/livez").await.0, 200);

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds() {
        definitions.create(&PostParams::default(), &crd).await.unwrap();
    }
    operator.ready().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    observed(&client, "default", "coder").await;

    // And away again, at run time: it is said, the process stays, and all is well when they are back.
    definitions.delete("codercontrolplanes.coder.com", &DeleteParams::default()).await.unwrap();
    readyz_says(&operator, 503, "[-] crd codercontrolplanes.coder.com: not installed").await;
    assert!(operator.runs());
    definitions.create(&PostParams::default(), &crds()[0]).await.unwrap();
    operator.ready().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("again")).await.unwrap();
    observed(&client, "default", "again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_crd_holds_up_its_own_kind_alone_and_nothing_is_half_written() {
    let mut old = crds();
    let root = old[0].spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let properties = root.properties.as_mut().unwrap();
    properties.get_mut("spec").unwrap().properties.as_mut().unwrap().remove("scaling");
    properties.get_mut("spec").unwrap().default = None;
    let (cluster, client) = cluster(old).await;
    grant(&client, &Install::default()).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let pool = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
        "metadata": {"name": "pool", "namespace": "default"}, "spec": {"controlPlaneRef": {"name": "coder"}}});
    apply(&client, pool).await;
    let operator = Operator::start(&cluster, &[]);
    readyz_says(
        &operator,
        503,
        "[-] crd codercontrolplanes.coder.com: older than this operator: it lacks spec.scaling;",
    )
    .await;
    let pools: Api<coder_k8s_api::CoderProvisioner> = Api::namespaced(client.clone(), "default");
    eventually(PATIENCE, || async {
        let status = pools.get("pool").await.unwrap().status;
        status.and_then(|status| status.workload.observed_generation).ok_or("the other kinds go on")
    })
    .await
    .unwrap();
    assert_eq!(planes(&client, "default").get("coder").await.unwrap().status, None);

    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let update = PatchParams::apply("tests").force();
    definitions.patch("codercontrolplanes.coder.com", &update, &Patch::Apply(&crds()[0])).await.unwrap();
    operator.ready().await;
    observed(&client, "default", "coder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_does_not_parse_is_named_and_blinds_nobody() {
    let mut lax = crds();
    let root = lax[0].spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let spec = root.properties.as_mut().unwrap().get_mut("spec").unwrap();
    let anything = json!({"x-kubernetes-preserve-unknown-fields": true});
    spec.properties.as_mut().unwrap().insert("replicas".into(), serde_json::from_value(anything).unwrap());
    lax[0].spec.versions[0].subresources.as_mut().unwrap().scale = None;
    let (cluster, client) = cluster(lax).await;
    grant(&client, &Install::default()).await;
    let bad = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": "bad", "namespace": "default"}, "spec": {"replicas": {"many": true}}});
    apply(&client, bad).await;
    let operator = Operator::start(&cluster, &[]);
    operator.ready().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("good")).await.unwrap();
    observed(&client, "default", "good").await;
    operator
        .until(|lines| {
            let named = |line: &&serde_json::Value| {
                line["object"] == "CoderControlPlane default/bad" && line["level"] == "ERROR"
            };
            lines.iter().find(named).map(|_| ())
        })
        .await;
    let (_, metrics) = operator.get("--metrics-addr", "/metrics").await;
    assert!(metrics.contains(r#"coder_k8s_unparsable_objects{kind="CoderControlPlane"} 1"#), "{metrics}");

    let mended = json!({"spec": {"replicas": 1}});
    let resource = kube::api::ApiResource::erase::<CoderControlPlane>(&());
    let raw: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    raw.patch("bad", &PatchParams::default(), &Patch::Merge(&mended)).await.unwrap();
    observed(&client, "default", "bad").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_a_condition_and_a_line_and_never_a_crash() {
    let (cluster, client) = cluster(crds()).await;
    let install = Install::default();
    grant(&client, &install).await;
    let role = |take_away: &str, verb: &str| {
        let mut role =
            coder_k8s::manifests::access(&install).into_iter().find(|o| o["kind"] == "ClusterRole").unwrap();
        for rule in role["rules"].as_array_mut().unwrap() {
            if rule["resources"].as_array().unwrap().contains(&json!(take_away)) {
                rule["verbs"].as_array_mut().unwrap().retain(|granted| granted != verb);
            }
        }
        role
    };
    apply(&client, role("serviceaccounts", "patch")).await;
    let mut operator = Operator::start(&cluster, &[]);
    operator.leads().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let object = ready_is(&client, "coder", "Forbidden").await;
    let (_, _, message) = condition(&object, kind::READY);
    assert!(message.contains(r#"cannot patch resource "serviceaccounts""#), "{message}");
    assert_eq!(condition(&object, kind::RECONCILING).0, "True");
    assert!(operator.runs());

    apply(&client, role("none", "none")).await;
    ready_is(&client, "coder", "NotDeployed").await;

    // An install that may not even look at CRDs goes on, and says what it cannot check.
    apply(&client, role("customresourcedefinitions", "list")).await;
    let blind = Operator::start(&cluster, &["--leader-elect=false"]);
    readyz_says(&blind, 503, r#"cannot list resource "customresourcedefinitions""#).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("unseen")).await.unwrap();
    observed(&client, "default", "unseen").await;
    drop(blind);
    apply(&client, role("none", "none")).await;

    // A watch that is not allowed: readiness and log say so; the process stays.
    apply(&client, role("secrets", "list")).await;
    let second = Operator::start(&cluster, &[]);
    readyz_says(&second, 503, r#"cannot list resource "secrets""#).await;
    apply(&client, role("none", "none")).await;
    second.ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_service_account_is_a_conflict_until_it_is_handed_over() {
    let (cluster, client) = cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let theirs = json!({"metadata": {"name": "coder", "labels": {"team": "x"}}});
    accounts.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
    let operator = Operator::start(&cluster, &[]);
    operator.leads().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let object = ready_is(&client, "coder", "ForeignObject").await;
    assert_eq!(condition(&object, kind::CONFLICT).0, "True");
    assert_eq!(condition(&object, kind::STALLED).0, "True");
    let (_, _, message) = condition(&object, kind::READY);
    assert!(
        message.contains("ServiceAccount coder exists")
            && message.contains("coder.com/adopt-by=CoderControlPlane/coder"),
        "{message}"
    );
    assert_eq!(accounts.get("coder").await.unwrap().owner_references(), []);

    let hand_over = json!({"metadata": {"annotations": {"coder.com/adopt-by": "CoderControlPlane/coder"}}});
    accounts.patch("coder", &PatchParams::default(), &Patch::Merge(&hand_over)).await.unwrap();
    ready_is(&client, "coder", "NotDeployed").await;
    assert_eq!(accounts.get("coder").await.unwrap().labels()["team"], "x");
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client, "default");
    // An event follows the status that it tells of.
    eventually(PATIENCE, || async {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let told: Vec<_> = all.into_iter().filter_map(|event| event.reason).collect();
        if told == ["ForeignObject", "NotDeployed"] {
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
    let (cluster, client) = cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let operator = Operator::start(&cluster, &[]);
    operator.leads().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    observed(&client, "default", "coder").await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
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
async fn work_goes_on_after_the_api_server_was_away() {
    let (cluster, client) = cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let mut operator =
        Operator::start(&cluster, &["--lease-duration=60s", "--renew-deadline=50s", "--request-timeout=3s"]);
    operator.leads().await;
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
async fn an_install_for_some_namespaces_works_there_and_nowhere_else() {
    let (cluster, client) = cluster(crds()).await;
    let install = Install { watch_namespaces: vec!["team-a".into(), "team-b".into()], ..Install::default() };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in ["team-a", "team-b", "team-c"] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }
    grant(&client, &install).await;
    for name in ["team-a", "team-b", "team-c"] {
        planes(&client, name).create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    }
    let operator = Operator::start(&cluster, &["--watch-namespaces=team-a,team-b"]);
    operator.ready().await;
    observed(&client, "team-a", "coder").await;
    observed(&client, "team-b", "coder").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(planes(&client, "team-c").get("coder").await.unwrap().status, None);
    let all = requests(&cluster, |user| user == operator.user);
    assert!(all.iter().all(|event| event.code != 403), "{:?}", all.iter().find(|event| event.code == 403));
    assert!(writes(&all).iter().all(|event| ["team-a", "team-b"].contains(&&*event.namespace)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_before_the_api_server_answers_catches_up() {
    let (cluster, client) = cluster(crds()).await;
    grant(&client, &Install::default()).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    cluster.pause_api_server().unwrap();
    let mut operator = Operator::start(&cluster, &["--request-timeout=1s"]);
    readyz_says(
        &operator,
        503,
        "[-] watch customresourcedefinitions: no complete answer from the API server",
    )
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(operator.runs(), "{}", operator.output());
    cluster.resume_api_server().unwrap();
    operator.ready().await;
    observed(&client, "default", "coder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_refused_stops_no_other() {
    let (cluster, client) = cluster(crds()).await;
    // Rights for one of the two namespaces that it is to look after.
    let install = Install { watch_namespaces: vec!["default".into()], ..Install::default() };
    grant(&client, &install).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let operator = Operator::start(&cluster, &["--watch-namespaces=default,forgotten"]);
    readyz_says(&operator, 503, "[-] watch serviceaccounts in forgotten: serviceaccounts is forbidden").await;
    observed(&client, "default", "coder").await;
}

/// A status as the existing operator leaves it: its conditions belong to a plain update and cannot be taken away.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_the_existing_operator_is_taken_over_and_then_costs_nothing() {
    let (cluster, client) = cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let api = planes(&client, "default");
    let mut old = api.create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let status = json!({
        "observedGeneration": 1, "phase": "Ready", "readyReplicas": 1, "url": "http://coder.default.svc.cluster.local:80",
        "conditions": [{"type": "LicenseApplied", "status": "Unknown", "reason": "Pending", "message": "licenseSecretRef is not set",
            "observedGeneration": 1, "lastTransitionTime": "2026-11-01T00:00:00Z"}],
    });
    old.status = Some(serde_json::from_value(status).unwrap());
    let by_them = PostParams { field_manager: Some("coder-k8s".into()), ..PostParams::default() };
    api.replace_status("coder", &by_them, &old).await.unwrap();

    let mut first = Operator::start(&cluster, &[]);
    first.leads().await;
    let taken = ready_is(&client, "coder", "NotDeployed").await;
    assert_eq!(condition(&taken, kind::LICENSE_APPLIED).1, "Pending");
    assert_eq!(taken.status.unwrap().workload.phase.as_deref(), Some("Ready"), "a replica is ready");
    first.signal(rustix::process::Signal::TERM);
    first.exit_code().await;
    let second = Operator::start(&cluster, &[]);
    second.leads().await;
    second.reconciled("CoderControlPlane", 1).await;
    let all = requests(&cluster, |user| user == second.user);
    assert!(writes(&all).is_empty(), "{:?}", writes(&all));
}

/// With the real garbage collector: what is deleted with its kind is not made again.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_kind_deletes_its_children_for_good() {
    let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let operator = Operator::start(&cluster, &[]);
    operator.leads().await;
    for n in 0..5 {
        planes(&client, "default")
            .create(&PostParams::default(), &control_plane(&format!("coder-{n}")))
            .await
            .unwrap();
    }
    for n in 0..5 {
        observed(&client, "default", &format!("coder-{n}")).await;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete("codercontrolplanes.coder.com", &DeleteParams::default()).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=coder-k8s");
    eventually(PATIENCE, || async {
        let left = accounts.list(&ours).await.unwrap().items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(accounts.list(&ours).await.unwrap().items.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_wakes_those_who_refer_to_it_and_nobody_else() {
    let (cluster, client) = cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let mut licensed = control_plane("licensed");
    licensed.spec.license_secret_ref = Some(serde_json::from_value(json!({"name": "license"})).unwrap());
    planes(&client, "default").create(&PostParams::default(), &licensed).await.unwrap();
    planes(&client, "default").create(&PostParams::default(), &control_plane("plain")).await.unwrap();
    let operator = Operator::start(&cluster, &[]);
    observed(&client, "default", "licensed").await;
    observed(&client, "default", "plain").await;
    operator.ready().await;
    let before = operator.passes("CoderControlPlane").await;
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    for name in ["license", "other"] {
        let secret = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }
    operator.reconciled("CoderControlPlane", before + 1).await;
    secrets
        .patch("other", &PatchParams::default(), &Patch::Merge(&json!({"stringData": {"a": "b"}})))
        .await
        .unwrap();
    secrets
        .patch("license", &PatchParams::default(), &Patch::Merge(&json!({"stringData": {"a": "b"}})))
        .await
        .unwrap();
    operator.reconciled("CoderControlPlane", before + 2).await;
    assert_eq!(operator.passes("CoderControlPlane").await, before + 2);
}
