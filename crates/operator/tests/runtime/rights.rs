//! Rights that are missing, and rights for some namespaces alone.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{condition::kind, crds};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use coder_k8s_scenes::{
    Operator, apply, bare_cluster, control_plane, grant,
    plane::{condition, observed, ready_is},
    planes, requests,
    scene::Scene,
    writes,
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
    operator.until_leading().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let object = ready_is(&client, "default", "coder", "Forbidden").await;
    let (_, _, message) = condition(&object, kind::READY);
    assert!(message.contains(r#"cannot patch resource "serviceaccounts""#), "{message}");
    assert_eq!(condition(&object, kind::RECONCILING).0, "True");
    assert!(operator.runs());

    apply(&client, role("none", "none")).await;
    ready_is(&client, "default", "coder", "Progressing").await;

    // An install that may not even look at CRDs goes on, and says what it cannot check.
    apply(&client, role("customresourcedefinitions", "list")).await;
    let blind = Operator::start(&cluster, &["--leader-elect=false"]);
    blind.until_readyz(503, r#"cannot list resource "customresourcedefinitions""#).await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("unseen")).await.unwrap();
    observed(&client, "default", "unseen").await;
    drop(blind);
    apply(&client, role("none", "none")).await;

    // A watch that is not allowed: readiness and log say so; the process stays.
    apply(&client, role("secrets", "list")).await;
    let second = Operator::start(&cluster, &[]);
    second.until_readyz(503, r#"cannot list resource "secrets""#).await;
    apply(&client, role("none", "none")).await;
    second.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_install_for_some_namespaces_works_there_and_nowhere_else() {
    let scene = Scene::bare_with("team-a", &["team-b"]).await;
    let (client, team_a, team_b) = (&scene.client, scene.namespace.as_str(), scene.beside()[0].as_str());
    let team_c = scene.another("team-c", json!({})).await;
    for name in [team_a, team_b, &team_c] {
        planes(client, name).create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    }
    let operator = scene.start(&[]);
    operator.until_ready().await;
    observed(client, team_a, "coder").await;
    observed(client, team_b, "coder").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(planes(client, &team_c).get("coder").await.unwrap().status, None);

    // Being looked after is consent; nobody else's label counts here.
    let spread = json!({"spec": {"rbac": {"workspaceNamespaces": [team_b, team_c]}}});
    planes(client, team_a).patch("coder", &PatchParams::default(), &Patch::Merge(&spread)).await.unwrap();
    let told = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let plane = planes(client, team_a).get("coder").await.unwrap();
        let (_, reason, message) = condition(&plane, kind::WORKSPACE_ACCESS);
        if message.contains(&format!("{team_c} is not looked after")) && !message.contains(team_b) {
            Ok(reason)
        } else {
            Err(format!("{reason}: {message}"))
        }
    });
    assert_eq!(told.await.unwrap(), "ConsentMissing");
    let granted = async |namespace: &str| {
        let api: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
        let ours = ListParams::default().labels(&format!("coder.com/control-plane-namespace={team_a}"));
        api.list(&ours).await.unwrap().items.len()
    };
    assert_eq!((granted(team_b).await, granted(&team_c).await), (1, 0));
    let all = requests(scene.cluster(), |user| user == operator.user);
    assert!(all.iter().all(|event| event.code != 403), "{:?}", all.iter().find(|event| event.code == 403));
    assert!(writes(&all).iter().all(|event| [team_a, team_b].contains(&&*event.namespace)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_refused_stops_no_other() {
    // Rights for one of the two namespaces that it is to watch.
    let scene = Scene::bare("granted").await;
    let forgotten = scene.another("forgotten", json!({})).await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    planes(client, namespace).create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let operator = scene.start_watching(&format!("--watch-namespaces={namespace},{forgotten}"), &[], &[]);
    let refused = format!("[-] watch serviceaccounts in {forgotten}: serviceaccounts is forbidden");
    operator.until_readyz(503, &refused).await;
    observed(client, namespace, "coder").await;
}
