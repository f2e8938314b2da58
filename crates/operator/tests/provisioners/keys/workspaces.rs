//! What daemons may do in Kubernetes, here and elsewhere.

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::codersim::Mode;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;

use coder_k8s_scenes::pool::{PoolScene, is, message};

use crate::KEYS;

#[tokio::test]
async fn daemons_may_make_what_workspaces_need_and_nothing_else() {
    let pool = PoolScene::ready(&KEYS, "workspaces", json!({"rbac": {"enableDeployments": false}})).await;
    let role: Role = pool.scene.until_exists("provisioner-pool").await;
    let rules = role.rules.unwrap();
    let resources: Vec<_> = rules.iter().flat_map(|rule| rule.resources.clone().unwrap()).collect();
    assert_eq!(resources, ["pods", "persistentvolumeclaims"]);
    for rule in &rules {
        assert_eq!(rule.api_groups.as_deref().unwrap(), [""]);
        let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
        assert_eq!(rule.verbs, verbs);
    }
    pool.edit(json!({"rbac": {"enableDeployments": true}})).await;
    pool.scene
        .until("provisioner-pool", |role: &Role| {
            let rules = role.rules.iter().flatten();
            rules.flat_map(|rule| rule.resources.iter().flatten()).any(|resource| resource == "deployments")
        })
        .await;
    pool.edit(json!({"rbac": {"workspacePerms": false}})).await;
    pool.scene.until_gone::<RoleBinding>("provisioner-pool").await;
    pool.scene.until_gone::<Role>("provisioner-pool").await;
    pool.until_ready().await;
}

#[tokio::test]
async fn other_namespaces_take_part_with_their_consent_and_lose_it_all_with_the_pool() {
    let pool = PoolScene::plane(&KEYS, "workspaces", Mode::Licensed).await;
    let other = pool.scene.another("elsewhere", json!({})).await;
    pool.make(json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    let object = pool.until_condition("WorkspaceAccess", "False", "ConsentMissing").await;
    assert!(message(&object, "WorkspaceAccess").contains(&other));
    pool.until_ready().await;
    pool.scene.label(&other, pool.scene.consent()).await;
    let object = pool.until_condition("WorkspaceAccess", "True", "Granted").await;
    assert!(is(&object, "Ready", "True", None));
    let bindings = async || {
        let all = pool.scene.api_in::<RoleBinding>(&other).list(&ListParams::default()).await.unwrap();
        all.items.into_iter().filter(|binding| binding.labels().contains_key("coder.com/provisioner")).count()
    };
    assert_eq!(bindings().await, 1);
    pool.scene.delete::<CoderProvisioner>("pool").await;
    pool.scene.until_gone::<CoderProvisioner>("pool").await;
    assert_eq!(bindings().await, 0);
    pool.until_holds(&[]).await;
}

#[tokio::test]
async fn a_grant_elsewhere_of_a_pool_with_a_long_name_is_put_back() {
    let pool = PoolScene::plane(&KEYS, "workspaces", Mode::Licensed).await;
    let other = pool.scene.another("elsewhere", pool.scene.consent()).await;
    let name = "long-".repeat(15) + "name";
    pool.make_named(&name, json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    pool.until_condition_of(&name, "WorkspaceAccess", "True", Some("Granted")).await;
    let bindings = pool.scene.api_in::<RoleBinding>(&other);
    let found = async || {
        let all = bindings.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().find(|binding| binding.labels().contains_key("coder.com/provisioner"))
    };
    let before = found().await.unwrap();
    bindings.delete(&before.name_any(), &kube::api::DeleteParams::default()).await.unwrap();
    pool.scene.until_in::<RoleBinding>(&other, &before.name_any(), |now| now.uid() != before.uid()).await;
}
