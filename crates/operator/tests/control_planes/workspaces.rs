//! What coderd may do for workspaces, at home and in other namespaces.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::names;
use coder_k8s_testbed::{Behaviour, Rule, eventually};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::Namespace,
    events::v1::Event,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::time::Duration;

use coder_k8s_scenes::{
    PATIENCE, apply, requests,
    scene::{Scene, belongs, condition, message},
    writes,
};

use crate::OPERATOR;

const FINALIZER: &str = "coder.com/workspace-rbac-cleanup";

/// Name of the Role and of the RoleBinding for an account.
fn granted(scene: &Scene, account: &str) -> (String, String) {
    (
        names::workspace_role(account, &scene.namespace, "coder"),
        names::workspace_binding(account, &scene.namespace, "coder"),
    )
}

/// Resources of the rules of a Role, as `group/resource`.
fn resources(role: &Role) -> Vec<String> {
    let rules = role.rules.iter().flatten();
    let all = rules.map(|rule| {
        let first = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
        format!("{}/{}", first(&rule.api_groups), first(&rule.resources))
    });
    all.collect()
}

fn finalizes(plane: &CoderControlPlane) -> bool {
    plane.finalizers().iter().any(|name| name == FINALIZER)
}

/// Whether Role and RoleBinding of the account are in a namespace.
async fn is_granted(scene: &Scene, namespace: &str) {
    let (role, binding) = granted(scene, "coder");
    scene.until_in::<Role>(namespace, &role, |_| true).await;
    scene.until_in::<RoleBinding>(namespace, &binding, |_| true).await;
}

async fn is_withdrawn(scene: &Scene, namespace: &str) {
    let (role, binding) = granted(scene, "coder");
    scene.until_gone_in::<Role>(namespace, &role).await;
    scene.until_gone_in::<RoleBinding>(namespace, &binding).await;
}

#[tokio::test]
async fn workspaces_may_be_pods_with_claims_or_deployments() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    scene.plane("coder", json!({})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "True", Some("Granted")).await;
    let (role_name, binding_name) = granted(&scene, "coder");
    assert!(role_name.starts_with("coder-") && role_name.ends_with("-workspace-perms"));
    let role: Role = scene.until_exists(&role_name).await;
    assert!(belongs(&role, &plane));
    assert_eq!(resources(&role), ["/pods", "/persistentvolumeclaims", "apps/deployments"]);
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    assert!(role.rules.unwrap().iter().all(|rule| rule.verbs == verbs));
    let binding: RoleBinding = scene.until_exists(&binding_name).await;
    assert!(belongs(&binding, &plane));
    assert_eq!((&*binding.role_ref.kind, &*binding.role_ref.name), ("Role", &*role_name));
    assert_eq!(
        serde_json::to_value(binding.subjects).unwrap(),
        json!([{"kind": "ServiceAccount", "name": "coder", "namespace": scene.namespace}])
    );
    assert!(!finalizes(&plane), "nothing is outside");
}

#[tokio::test]
async fn the_longest_name_of_an_account_fits() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let account = "a".repeat(253);
    scene.plane("coder", json!({"serviceAccount": {"name": account}})).await;
    scene.until_ready("coder").await;
    let (role, binding) = granted(&scene, &account);
    assert!(role.len() <= 253 && role.ends_with("-workspace-perms"), "{role}");
    scene.until_exists::<Role>(&role).await;
    let binding: RoleBinding = scene.until_exists(&binding).await;
    assert_eq!(binding.subjects.unwrap()[0].name, account);
    assert_eq!(binding.role_ref.name, role);
}

#[tokio::test]
async fn the_rule_for_deployments_can_be_left_out() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    scene.plane("coder", json!({"rbac": {"enableDeployments": false}})).await;
    scene.until_observed("coder").await;
    let role = scene.until_exists::<Role>(&granted(&scene, "coder").0).await;
    assert_eq!(resources(&role), ["/pods", "/persistentvolumeclaims"]);
}

#[tokio::test]
async fn without_workspace_permissions_nothing_is_granted() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    scene.plane("coder", json!({"rbac": {"workspacePerms": false}})).await;
    let plane = scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "WorkspaceAccess").unwrap().reason, "Disabled");
    let (role, binding) = granted(&scene, "coder");
    assert!(scene.absent::<Role>(&role).await && scene.absent::<RoleBinding>(&binding).await);
}

#[tokio::test]
async fn taking_workspace_permissions_away_cleans_every_namespace() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", scene.consent()).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    is_granted(&scene, &scene.namespace).await;
    is_granted(&scene, &other).await;
    assert!(finalizes(&scene.until_exists("coder").await));

    scene.spec("coder", json!({"rbac": {"workspacePerms": false}})).await;
    is_withdrawn(&scene, &scene.namespace).await;
    is_withdrawn(&scene, &other).await;
    scene.until("coder", |plane: &CoderControlPlane| !finalizes(plane)).await;
    scene.until_ready("coder").await;
}

#[tokio::test]
async fn a_namespace_that_is_no_longer_named_is_cleaned_and_the_others_stay() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let one = scene.another("rbac-one", scene.consent()).await;
    let two = scene.another("rbac-two", scene.consent()).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [one, two, one]}})).await;
    is_granted(&scene, &one).await;
    is_granted(&scene, &two).await;
    scene.spec("coder", json!({"rbac": {"workspaceNamespaces": [two]}})).await;
    is_withdrawn(&scene, &one).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    is_granted(&scene, &two).await;
    is_granted(&scene, &scene.namespace).await;
}

#[tokio::test]
async fn deletion_removes_what_was_granted_elsewhere_and_nothing_else() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", scene.consent()).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    is_granted(&scene, &other).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    let (role, _) = granted(&scene, "coder");
    let foreign: Role = scene.api_in(&other).get(&role).await.unwrap();
    assert!(foreign.owner_references().is_empty(), "no reference reaches across namespaces");
    let bystander = bystander(&scene, &other, "bystander").await;

    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    assert!(scene.api_in::<Role>(&other).get_opt(&role).await.unwrap().is_none(), "gone before the object");
    is_withdrawn(&scene, &other).await;
    scene.until_gone::<Deployment>("coder").await;
    let left = scene.api_in::<Role>(&other).get("bystander").await.unwrap();
    assert_eq!(left.uid(), bystander.uid());
}

#[tokio::test]
async fn deletion_in_the_middle_of_a_renaming_removes_what_both_accounts_had() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", scene.consent()).await;
    scene.plane("coder", json!({"image": "coder:v1", "rbac": {"workspaceNamespaces": [other]}})).await;
    scene.until_ready("coder").await;
    is_granted(&scene, &other).await;
    scene.node().behave(Rule::namespace(&scene.namespace), Behaviour::Unready);
    scene.spec("coder", json!({"serviceAccount": {"name": "renamed"}, "image": "coder:v2"})).await;
    let (role, binding) = granted(&scene, "renamed");
    scene.until_in::<RoleBinding>(&other, &binding, |_| true).await;
    is_granted(&scene, &other).await;

    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    is_withdrawn(&scene, &other).await;
    scene.until_gone_in::<Role>(&other, &role).await;
    scene.until_gone_in::<RoleBinding>(&other, &binding).await;
}

/// A Role with the labels of those for workspaces that the operator did not make.
async fn bystander(scene: &Scene, namespace: &str, name: &str) -> Role {
    let labels = json!({
        "app.kubernetes.io/name": "coder-control-plane", "app.kubernetes.io/instance": "coder",
        "app.kubernetes.io/managed-by": "coder-k8s", "coder.com/control-plane": "coder",
        "coder.com/control-plane-namespace": scene.namespace,
    });
    let object = |kind: &str, rest: Value| {
        let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "labels": labels}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    apply(&scene.client, object("Role", json!({"rules": []}))).await;
    let to = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
    let who = json!([{"kind": "ServiceAccount", "name": "coder", "namespace": scene.namespace}]);
    apply(&scene.client, object("RoleBinding", json!({"roleRef": to, "subjects": who}))).await;
    scene.api_in(namespace).get(name).await.unwrap()
}

#[tokio::test]
async fn what_others_labelled_alike_is_preserved() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", scene.consent()).await;
    for namespace in [&scene.namespace, &other] {
        bystander(&scene, namespace, "by-hand").await;
    }
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    is_granted(&scene, &other).await;
    scene.spec("coder", json!({"rbac": {"workspacePerms": false}})).await;
    is_withdrawn(&scene, &other).await;
    is_withdrawn(&scene, &scene.namespace).await;
    scene.until_ready("coder").await;
    for namespace in [&scene.namespace, &other] {
        assert!(scene.api_in::<Role>(namespace).get_opt("by-hand").await.unwrap().is_some());
        assert!(scene.api_in::<RoleBinding>(namespace).get_opt("by-hand").await.unwrap().is_some());
    }
}

#[tokio::test]
async fn further_rules_come_after_the_usual_ones() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]});
    scene.plane("coder", json!({"rbac": {"extraRules": [rule]}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    let role: Role = scene.until_exists(&granted(&scene, "coder").0).await;
    assert_eq!(resources(&role), ["/pods", "/persistentvolumeclaims", "apps/deployments", "/configmaps"]);
    assert_eq!(role.rules.unwrap()[3].verbs, ["get", "list"]);
}

#[tokio::test]
async fn a_rule_for_secrets_is_refused_and_the_rest_is_granted() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    ]);
    scene.plane("coder", json!({"rbac": {"extraRules": rules}})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("RuleNotAllowed")).await;
    let said = message(&plane, "WorkspaceAccess");
    assert!(said.contains("secrets") && said.contains("--allow-privileged-workspace-rules"), "{said}");
    let role: Role = scene.until_exists(&granted(&scene, "coder").0).await;
    assert_eq!(resources(&role), ["/pods", "/persistentvolumeclaims", "apps/deployments", "/configmaps"]);
    scene.until_ready("coder").await;
}

#[tokio::test]
async fn a_rule_that_the_operator_cannot_grant_holds_up_nothing_else() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let rule = json!({"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]});
    scene.plane("coder", json!({"rbac": {"extraRules": [rule]}})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("Forbidden")).await;
    let said = message(&plane, "WorkspaceAccess");
    assert!(said.contains("jobs"), "names what is missing: {said}");
    scene.until_ready("coder").await;
    let told = eventually(PATIENCE, || async {
        let events = scene.events("coder").await;
        let told =
            events.iter().filter(|(type_, reason)| type_ == "Warning" && reason == "Forbidden").count();
        if told == 1 { Ok(()) } else { Err(format!("{events:?}")) }
    });
    told.await.unwrap();
    is_granted(&scene, &scene.namespace).await;
    let role: Role = scene.until_exists(&granted(&scene, "coder").0).await;
    assert_eq!(resources(&role), ["/pods", "/persistentvolumeclaims", "apps/deployments"]);

    scene.spec("coder", json!({"rbac": {"extraRules": null}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", Some("Granted")).await;
}

#[tokio::test]
async fn a_rule_that_cannot_be_granted_is_named_and_the_rules_beside_it_are_granted() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
    ]);
    scene.plane("coder", json!({"rbac": {"extraRules": rules}})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("Forbidden")).await;
    let said = message(&plane, "WorkspaceAccess");
    assert!(said.contains("the rule for \"jobs\" (create)"), "{said}");
    assert!(!said.contains("configmaps") && !said.contains("services"), "{said}");
    let role: Role = scene.until_exists(&granted(&scene, "coder").0).await;
    assert_eq!(
        resources(&role),
        ["/pods", "/persistentvolumeclaims", "apps/deployments", "/configmaps", "/services"]
    );
    scene.until_ready("coder").await;
}

#[tokio::test]
async fn what_the_spec_no_longer_gives_goes_even_when_something_else_cannot_be_granted() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let maps = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]});
    scene.plane("coder", json!({"rbac": {"extraRules": [maps]}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", Some("Granted")).await;
    let jobs = json!({"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]});
    scene.spec("coder", json!({"rbac": {"enableDeployments": false, "extraRules": [jobs]}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "False", Some("Forbidden")).await;
    let role: Role = scene.until_exists(&granted(&scene, "coder").0).await;
    assert_eq!(resources(&role), ["/pods", "/persistentvolumeclaims"]);
}

#[tokio::test]
async fn the_own_namespace_can_be_left_out() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", scene.consent()).await;
    scene.plane("coder", json!({"rbac": {"ownNamespace": false, "workspaceNamespaces": [other]}})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    is_granted(&scene, &other).await;
    let (role, binding) = granted(&scene, "coder");
    assert!(scene.absent::<Role>(&role).await && scene.absent::<RoleBinding>(&binding).await);
    assert!(!message(&plane, "WorkspaceAccess").contains(&scene.namespace));
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_reported_and_granted_once_it_does() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let later = format!("{}-later", scene.namespace);
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [later]}})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;
    let said = message(&plane, "WorkspaceAccess");
    assert!(said.contains(&format!("namespace {later} does not exist")), "{said}");
    assert!(!finalizes(&scene.until_ready("coder").await));

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": later, "labels": scene.consent()}});
    apply(&scene.client, namespace).await;
    is_granted(&scene, &later).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;

    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    namespaces.delete(&later, &DeleteParams::default()).await.unwrap();
    let missing = |plane: &CoderControlPlane| {
        message(plane, "WorkspaceAccess").contains("does not exist") && !finalizes(plane)
    };
    scene.until("coder", missing).await;
    scene.until_ready("coder").await;
}

#[tokio::test]
async fn without_consent_a_namespace_is_left_alone_and_the_rest_converges() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", json!({"workspaces.coder.com/elsewhere": "allow"})).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;
    let command = format!("kubectl label namespace {other} workspaces.coder.com/{}=allow", scene.namespace);
    assert!(message(&plane, "WorkspaceAccess").contains(&command));
    assert!(!finalizes(&scene.until_ready("coder").await));
    is_granted(&scene, &scene.namespace).await;
    let foreign = writes(&scene.requests_in(&other)).len();
    assert_eq!(foreign, 0, "nothing is even tried there");
}

#[tokio::test]
async fn consent_given_later_grants_and_consent_withdrawn_takes_back() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", json!({})).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;
    scene.label(&other, scene.consent()).await;
    is_granted(&scene, &other).await;
    assert!(finalizes(&scene.until_condition("coder", "WorkspaceAccess", "True", Some("Granted")).await));

    let key = format!("workspaces.coder.com/{}", scene.namespace);
    scene.label(&other, json!({key.clone(): null})).await;
    is_withdrawn(&scene, &other).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;
    assert!(message(&plane, "WorkspaceAccess").contains(&other));
    scene.until("coder", |plane: &CoderControlPlane| !finalizes(plane)).await;
    is_granted(&scene, &scene.namespace).await;

    scene.label(&other, json!({key: "deny"})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_withdrawn(&scene, &other).await;
    scene.label(&other, scene.consent()).await;
    is_granted(&scene, &other).await;
    scene.until_ready("coder").await;
}

fn pause() -> Value {
    json!({"metadata": {"annotations": {"coder.com/paused": "true"}}})
}

#[tokio::test]
async fn consent_withdrawn_from_a_paused_object_takes_its_grant_back_and_nothing_else() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let stays = scene.another("rbac-stays", scene.consent()).await;
    let other = scene.another("rbac-other", scene.consent()).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [stays, other]}})).await;
    is_granted(&scene, &other).await;
    is_granted(&scene, &stays).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    scene.edit::<CoderControlPlane>("coder", pause()).await;
    scene.until_condition("coder", "Paused", "True", None).await;

    scene.label(&other, json!({format!("workspaces.coder.com/{}", scene.namespace): null})).await;
    is_withdrawn(&scene, &other).await;
    let plane = scene.until_condition("coder", "WorkspaceAccess", "False", Some("ConsentMissing")).await;
    assert!(message(&plane, "WorkspaceAccess").contains(&other));
    is_granted(&scene, &stays).await;
    is_granted(&scene, &scene.namespace).await;
    let told = eventually(PATIENCE, || async {
        let told = scene.events("coder").await;
        if told.iter().any(|(_, reason)| reason == "ConsentMissing") {
            Ok(())
        } else {
            Err(format!("{told:?}"))
        }
    });
    told.await.unwrap();
    // A paused object gets nothing back.
    scene.label(&other, scene.consent()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_withdrawn(&scene, &other).await;
}

#[tokio::test]
async fn a_binding_is_never_left_on_a_role_of_somebody_else() {
    let scene = Scene::new(&OPERATOR, "rbac").await;
    let other = scene.another("rbac-other", scene.consent()).await;
    let (role, binding) = granted(&scene, "coder");
    let theirs = |namespace: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": role, "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]})
    };
    let places = [scene.namespace.clone(), other.clone()];
    for place in &places {
        apply(&scene.client, theirs(place)).await;
    }
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    scene.until_condition("coder", "Conflict", "True", Some("ForeignObject")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for place in &places {
        assert!(scene.api_in::<RoleBinding>(place).get_opt(&binding).await.unwrap().is_none(), "{place}");
        scene.api_in::<Role>(place).delete(&role, &DeleteParams::default()).await.unwrap();
    }
    for place in &places {
        is_granted(&scene, place).await;
    }

    // A Role that was ours and is somebody else's now takes the binding with it.
    let taken = json!({"metadata": {"labels": null, "annotations": null, "ownerReferences": null}});
    for place in &places {
        let roles = scene.api_in::<Role>(place);
        roles.patch(&role, &PatchParams::default(), &Patch::Merge(&taken)).await.unwrap();
        scene.until_gone_in::<RoleBinding>(place, &binding).await;
        assert!(roles.get(&role).await.unwrap().owner_references().is_empty(), "theirs is left alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_object_without_its_finalizer_leaves_elsewhere_is_swept() {
    let scene = Scene::unmanaged_with("sweep", &["sweep-other"]).await;
    let other = scene.beside()[0].clone();
    scene.label(&other, scene.consent()).await;
    let first = scene.start(&[]);
    for name in ["coder", "stays"] {
        scene.plane(name, json!({"rbac": {"workspaceNamespaces": [other]}})).await;
        scene.until_condition(name, "WorkspaceAccess", "True", None).await;
    }
    is_granted(&scene, &other).await;
    let binding_of_another = names::workspace_binding("stays", &scene.namespace, "stays");
    bystander(&scene, &other, "by-hand").await;
    // Of a namespace that this install does not watch.
    let labels = json!({"app.kubernetes.io/managed-by": "coder-k8s", "coder.com/control-plane": "coder",
        "coder.com/control-plane-namespace": "unwatched"});
    let stranger = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {
        "name": "stranger", "namespace": other, "labels": labels,
        "annotations": {"coder.com/workspace-rbac-owner-uid": "gone"}}});
    apply(&scene.client, stranger).await;

    // Paused, stripped of its finalizer and deleted, so that nobody cleans up.
    scene.edit::<CoderControlPlane>("coder", pause()).await;
    scene.until_condition("coder", "Paused", "True", None).await;
    scene.edit::<CoderControlPlane>("coder", json!({"metadata": {"finalizers": null}})).await;
    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    is_granted(&scene, &other).await;
    drop(first);

    let second = scene.start(&[]);
    is_withdrawn(&scene, &other).await;
    let (_, binding) = granted(&scene, "coder");
    let told = eventually(PATIENCE, || async {
        let events = scene.api_in::<Event>(&other).list(&ListParams::default()).await.unwrap();
        let about = |event: &&Event| {
            event.regarding.as_ref().is_some_and(|object| object.name.as_ref() == Some(&binding))
        };
        match events.iter().find(about) {
            Some(event) => Ok((event.reason.clone(), event.note.clone())),
            None => Err(format!("{:?}", events.items)),
        }
    });
    let (reason, note) = told.await.unwrap();
    assert_eq!(reason.as_deref(), Some("OwnerGone"));
    assert!(note.unwrap().contains(&scene.namespace));
    for role in ["stranger", "by-hand"] {
        assert!(scene.api_in::<Role>(&other).get_opt(role).await.unwrap().is_some(), "{role}");
    }
    assert!(scene.api_in::<RoleBinding>(&other).get_opt(&binding_of_another).await.unwrap().is_some());
    drop(second);

    let third = scene.start(&[]);
    third.until_leading().await;
    third.until_reconciled("CoderControlPlane", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = requests(scene.cluster(), |user| user == third.user);
    assert!(writes(&all).is_empty(), "{:?}", writes(&all));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_cannot_be_removed_ends_the_deletion_by_its_deadline_and_is_swept_later() {
    let scene = Scene::unmanaged_with("stuck", &["stuck-other"]).await;
    let other = scene.beside()[0].clone();
    scene.label(&other, scene.consent()).await;
    let first = scene.start(&["--cleanup-timeout=6s"]);
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await;
    scene.until_condition("coder", "WorkspaceAccess", "True", None).await;
    is_granted(&scene, &other).await;

    let roles = scene.api_in::<Role>(&other);
    let whole = roles.get("coder-k8s").await.unwrap();
    let mut less = whole.clone();
    less.metadata.managed_fields = None;
    for rule in less.rules.iter_mut().flatten() {
        if rule.resources.iter().flatten().any(|resource| resource == "rolebindings") {
            rule.verbs.retain(|verb| verb != "delete");
        }
    }
    let less = roles.replace("coder-k8s", &PostParams::default(), &less).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let since = std::time::Instant::now();
    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    println!("gone {:?} after its deletion, with --cleanup-timeout=6s", since.elapsed());
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(20)).contains(&since.elapsed()),
        "{:?}",
        since.elapsed()
    );
    let (_, binding) = granted(&scene, "coder");
    let events = scene.api::<Event>().list(&ListParams::default()).await.unwrap();
    let told = events.iter().find(|event| event.reason.as_deref() == Some("GrantAbandoned"));
    let note = told.and_then(|event| event.note.clone()).unwrap_or_else(|| panic!("{:?}", events.items));
    assert!(note.contains(&format!("RoleBinding {binding} in namespace {other}")), "{note}");
    is_granted(&scene, &other).await;
    drop(first);

    let allowed = Role { rules: whole.rules, ..less };
    roles.replace("coder-k8s", &PostParams::default(), &allowed).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let _second = scene.start(&[]);
    is_withdrawn(&scene, &other).await;
}
