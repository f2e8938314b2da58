//! Rights that are missing, and rights for some namespaces alone.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{condition::kind, crds};
use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::support::{
    Operator, apply, bare_cluster, condition, control_plane, grant, observed, planes, ready_is, readyz_says,
    requests, writes,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_a_condition_and_a_line_and_never_a_crash() {
    let (cluster, client) = bare_cluster(crds()).await;
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
    ready_is(&client, "coder", "Progressing").await;

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
async fn an_install_for_some_namespaces_works_there_and_nowhere_else() {
    let (cluster, client) = bare_cluster(crds()).await;
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

    // Being looked after is consent; nobody else's label counts here.
    let spread = json!({"spec": {"rbac": {"workspaceNamespaces": ["team-b", "team-c"]}}});
    planes(&client, "team-a").patch("coder", &PatchParams::default(), &Patch::Merge(&spread)).await.unwrap();
    let told = coder_k8s_testbed::eventually(crate::support::PATIENCE, || async {
        let plane = planes(&client, "team-a").get("coder").await.unwrap();
        let (_, reason, message) = condition(&plane, kind::WORKSPACE_ACCESS);
        if message.contains("team-c is not looked after") && !message.contains("team-b") {
            Ok(reason)
        } else {
            Err(format!("{reason}: {message}"))
        }
    });
    assert_eq!(told.await.unwrap(), "ConsentMissing");
    let granted = async |namespace: &str| {
        let api: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
        let ours = ListParams::default().labels("coder.com/control-plane-namespace=team-a");
        api.list(&ours).await.unwrap().items.len()
    };
    assert_eq!((granted("team-b").await, granted("team-c").await), (1, 0));
    let all = requests(&cluster, |user| user == operator.user);
    assert!(all.iter().all(|event| event.code != 403), "{:?}", all.iter().find(|event| event.code == 403));
    assert!(writes(&all).iter().all(|event| ["team-a", "team-b"].contains(&&*event.namespace)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_refused_stops_no_other() {
    let (cluster, client) = bare_cluster(crds()).await;
    // Rights for one of the two namespaces that it is to look after.
    let install = Install { watch_namespaces: vec!["default".into()], ..Install::default() };
    grant(&client, &install).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let operator = Operator::start(&cluster, &["--watch-namespaces=default,forgotten"]);
    readyz_says(&operator, 503, "[-] watch serviceaccounts in forgotten: serviceaccounts is forbidden").await;
    observed(&client, "default", "coder").await;
}
