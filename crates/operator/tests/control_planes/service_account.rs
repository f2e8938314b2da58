//! The identity of the pods.

use coder_k8s_core::names;
use coder_k8s_testbed::{Behaviour, Rule};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding},
};
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;

use coder_k8s_scenes::scene::{Scene, belongs};

use crate::OPERATOR;

const LABELS: [(&str, &str); 3] = [
    ("app.kubernetes.io/name", "coder-control-plane"),
    ("app.kubernetes.io/instance", "coder"),
    ("app.kubernetes.io/managed-by", "coder-k8s"),
];

#[tokio::test]
async fn the_account_bears_the_name_of_the_object_and_the_labels_of_the_operator() {
    let scene = Scene::new(&OPERATOR, "account").await;
    scene.plane("coder", json!({})).await;
    let plane = scene.until_observed("coder").await;
    let account: ServiceAccount = scene.until_exists("coder").await;
    assert!(belongs(&account, &plane));
    for (key, value) in LABELS {
        assert_eq!(account.labels()[key], value);
    }
    assert_eq!(scene.pod("coder").await.service_account_name.as_deref(), Some("coder"));
}

#[tokio::test]
async fn an_account_of_another_name_is_made_and_used() {
    let scene = Scene::new(&OPERATOR, "account").await;
    scene.plane("coder", json!({"serviceAccount": {"name": "identity"}})).await;
    let plane = scene.until_ready("coder").await;
    assert!(belongs(&scene.until_exists::<ServiceAccount>("identity").await, &plane));
    assert!(scene.absent::<ServiceAccount>("coder").await);
    assert_eq!(scene.pod("coder").await.service_account_name.as_deref(), Some("identity"));
}

#[tokio::test]
async fn labels_and_annotations_of_users_stand_beside_those_of_the_operator() {
    let scene = Scene::new(&OPERATOR, "account").await;
    let role = "eks.amazonaws.com/role-arn";
    let spec = json!({"serviceAccount": {"labels": {"team": "platform"}, "annotations": {role: "arn:x"}}});
    scene.plane("coder", spec).await;
    scene.until_observed("coder").await;
    let account: ServiceAccount = scene.until_exists("coder").await;
    assert_eq!((&*account.labels()["team"], &*account.annotations()[role]), ("platform", "arn:x"));
    for (key, value) in LABELS {
        assert_eq!(account.labels()[key], value);
    }

    scene.spec("coder", json!({"serviceAccount": {"labels": null, "annotations": {role: "arn:y"}}})).await;
    scene.until_observed("coder").await;
    let account: ServiceAccount = scene.until_exists("coder").await;
    assert_eq!((account.labels().get("team"), &*account.annotations()[role]), (None, "arn:y"));
}

#[tokio::test]
async fn with_creation_disabled_an_existing_account_is_used_and_left_alone() {
    let scene = Scene::new(&OPERATOR, "account").await;
    scene.create::<ServiceAccount>(json!({"metadata": {"name": "given"}})).await;
    scene.plane("coder", json!({"serviceAccount": {"disableCreate": true, "name": "given"}})).await;
    scene.until_ready("coder").await;
    let given: ServiceAccount = scene.until_exists("given").await;
    assert!(given.owner_references().is_empty() && given.labels().is_empty(), "{given:?}");
    assert!(given.annotations().is_empty(), "{given:?}");
    assert!(scene.absent::<ServiceAccount>("coder").await);
    assert_eq!(scene.pod("coder").await.service_account_name.as_deref(), Some("given"));
}

#[tokio::test]
async fn without_creation_and_without_an_account_there_is_none() {
    let scene = Scene::new(&OPERATOR, "account").await;
    scene.plane("coder", json!({"serviceAccount": {"disableCreate": true}})).await;
    scene.until_observed("coder").await;
    assert_eq!(scene.pod("coder").await.service_account_name.as_deref(), Some("coder"));
    assert!(scene.absent::<ServiceAccount>("coder").await);
}

#[tokio::test]
async fn disabling_creation_gives_the_account_up_whatever_its_labels_and_enabling_takes_it_back() {
    let scene = Scene::new(&OPERATOR, "account").await;
    let labels = json!({"app.kubernetes.io/instance": "somebody-else"});
    scene.plane("coder", json!({"serviceAccount": {"labels": labels}})).await;
    let plane = scene.until_ready("coder").await;
    let account: ServiceAccount = scene.until_exists("coder").await;
    assert_eq!(account.labels()["app.kubernetes.io/instance"], "somebody-else");
    assert!(belongs(&account, &plane));

    scene.spec("coder", json!({"serviceAccount": {"disableCreate": true}})).await;
    scene.until_ready("coder").await;
    let left = scene.until("coder", |a: &ServiceAccount| a.owner_references().is_empty()).await;
    assert_eq!(left.uid(), account.uid(), "it stays");
    scene.until_idle().await;
    scene.assert_no_writes(Duration::from_secs(1)).await;

    scene.spec("coder", json!({"serviceAccount": {"disableCreate": false}})).await;
    let plane = scene.until_ready("coder").await;
    let back = scene.until("coder", |a: &ServiceAccount| belongs(a, &plane)).await;
    assert_eq!(back.uid(), account.uid(), "it comes back");
}

#[tokio::test]
async fn the_account_of_an_earlier_name_goes_when_no_pod_uses_it_any_more() {
    let scene = Scene::new(&OPERATOR, "account").await;
    let other = scene.another("account-other", scene.consent()).await;
    scene
        .plane(
            "coder",
            json!({"image": "coder:v1", "serviceAccount": {"name": "first"}, "rbac": {"workspaceNamespaces": [other]}}),
        )
        .await;
    scene.until_ready("coder").await;
    let role = |account| names::workspace_role(account, &scene.namespace, "coder");
    let binding = |account| names::workspace_binding(account, &scene.namespace, "coder");
    scene.until_in::<RoleBinding>(&other, &binding("first"), |_| true).await;

    scene.node().behave(Rule::namespace(&scene.namespace).image("coder:v2"), Behaviour::Unready);
    scene.spec("coder", json!({"image": "coder:v2", "serviceAccount": {"name": "second"}})).await;
    scene.until_observed("coder").await;
    scene.until_exists::<ServiceAccount>("second").await;
    for namespace in [&scene.namespace, &other] {
        scene.until_in::<Role>(namespace, &role("second"), |_| true).await;
        scene.until_in::<RoleBinding>(namespace, &binding("second"), |_| true).await;
    }
    scene
        .until("coder", |d: &Deployment| {
            let updated = d.status.as_ref().and_then(|status| status.updated_replicas);
            updated == Some(1)
                && d.status.as_ref().and_then(|status| status.observed_generation) == d.metadata.generation
        })
        .await;
    scene.until_idle().await;
    scene.until_exists::<ServiceAccount>("first").await;
    for namespace in [&scene.namespace, &other] {
        assert!(scene.api_in::<Role>(namespace).get_opt(&role("first")).await.unwrap().is_some());
        assert!(scene.api_in::<RoleBinding>(namespace).get_opt(&binding("first")).await.unwrap().is_some());
    }

    scene.node().behave(Rule::namespace(&scene.namespace).image("coder:v2"), Behaviour::Ready);
    scene.until_ready("coder").await;
    scene.until_gone::<ServiceAccount>("first").await;
    for namespace in [&scene.namespace, &other] {
        scene.until_gone_in::<RoleBinding>(namespace, &binding("first")).await;
        scene.until_gone_in::<Role>(namespace, &role("first")).await;
        scene.until_in::<RoleBinding>(namespace, &binding("second"), |_| true).await;
    }
    scene.until_exists::<ServiceAccount>("second").await;
}
