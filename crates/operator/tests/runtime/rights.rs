//! Rights that are missing, and rights for some namespaces alone.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, condition::condition_type, crds};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use coder_k8s_scenes::{
    Operator, apply,
    audit::besides,
    bare_cluster, control_plane, grant,
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
    apply(&client, role("serviceaccounts", "create")).await;
    let mut operator = Operator::start(&cluster, &[]);
    operator.until_leading().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    let object = ready_is(&client, "default", "coder", "Forbidden").await;
    let (_, _, message) = condition(&object, condition_type::READY);
    assert!(message.contains(r#"cannot create resource "serviceaccounts""#), "{message}");
    assert_eq!(condition(&object, condition_type::RECONCILING).0, "True");
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

    // Being looked after is not yet consent.
    let spread = json!({"spec": {"rbac": {"workspaceNamespaces": [team_b, team_c]}}});
    planes(client, team_a).patch("coder", &PatchParams::default(), &Patch::Merge(&spread)).await.unwrap();
    let told = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let plane = planes(client, team_a).get("coder").await.unwrap();
        let (_, reason, message) = condition(&plane, condition_type::WORKSPACE_ACCESS);
        let command = format!("kubectl label namespace {team_b} workspaces.coder.com/{team_a}=allow");
        if message.contains(&format!("does not watch namespace {team_c}")) && message.contains(&command) {
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
    assert_eq!((granted(team_b).await, granted(&team_c).await), (0, 0));
    let all = requests(scene.cluster(), |user| user == operator.user);
    assert!(all.iter().all(|event| event.code != 403), "{:?}", all.iter().find(|event| event.code == 403));
    assert!(writes(&all).iter().all(|event| [team_a, team_b].contains(&&*event.namespace)));
}

/// Reading the Namespaces that specs name is all that such an install asks at rest.
#[tokio::test(flavor = "multi_thread")]
async fn in_an_install_for_some_namespaces_the_label_counts_and_is_read_at_an_interval() {
    const QUICK: [&str; 1] = ["--consent-interval=1s"];
    let scene = Scene::bare_with("named", &["guest", "unasked"]).await;
    let (client, guest) = (&scene.client, scene.beside()[0].as_str());
    let operator = scene.start(&QUICK);
    operator.until_leading().await;
    let plane = |name: &str| {
        json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": name, "namespace": scene.namespace}, "spec": {"rbac": {"workspaceNamespaces": [guest]}}})
    };
    apply(client, plane("coder")).await;
    scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;
    scene.label(guest, scene.consent()).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", Some("Granted")).await;
    let binding = coder_k8s_core::names::workspace_binding("coder", &scene.namespace, "coder");
    scene.until_in::<RoleBinding>(guest, &binding, |_| true).await;
    operator.until_idle("CoderControlPlane").await;

    let of_operator = |user: &str| requests(scene.cluster(), |found| found == user);
    let before = of_operator(&operator.user).len();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let at_rest = of_operator(&operator.user).split_off(before);
    let at_rest = besides(&at_rest);
    println!("{} requests in 5 s at rest, with --consent-interval=1s", at_rest.len());
    assert!((3..=6).contains(&at_rest.len()), "{at_rest:?}");
    assert!(at_rest.iter().all(|event| event.verb == "get" && event.resource == "namespaces"), "{at_rest:?}");

    let withdrawn = json!({format!("workspaces.coder.com/{}", scene.namespace): null});
    scene.label(guest, withdrawn.clone()).await;
    scene.until_gone_in::<RoleBinding>(guest, &binding).await;
    scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;

    // What the release before granted, which took the flag for consent, bears no mark. It is kept and reported.
    scene.label(guest, scene.consent()).await;
    scene.until_in::<RoleBinding>(guest, &binding, |_| true).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    assert!(of_operator(&operator.user).iter().all(|event| event.code != 403));
    drop(operator);
    let unmark = json!({"metadata": {"annotations": {"coder.com/workspace-rbac-consent": null}}});
    let bindings = scene.api_in::<RoleBinding>(guest);
    bindings.patch(&binding, &PatchParams::default(), &Patch::Merge(&unmark)).await.unwrap();
    scene.label(guest, withdrawn).await;
    let _next = scene.start(&QUICK);
    scene
        .until("coder", |plane: &CoderControlPlane| {
            let (_, _, message) = condition(plane, condition_type::WORKSPACE_ACCESS);
            message.contains("what an earlier operator granted there is kept")
        })
        .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(bindings.get_opt(&binding).await.unwrap().is_some());
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
