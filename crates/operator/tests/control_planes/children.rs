//! Children come back, follow, and go with their owner.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};

use coder_k8s_scenes::scene::{Kind, Scene, condition, message};

use crate::OPERATOR;

async fn comes_back<K: Kind>(scene: &Scene, name: &str) {
    let before = scene.until_exists::<K>(name).await.uid();
    scene.delete::<K>(name).await;
    scene
        .until(name, |object: &K| object.uid() != before && object.meta().deletion_timestamp.is_none())
        .await;
}

async fn named<K: Kind>(scene: &Scene) -> String {
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=coder-k8s");
    scene.api::<K>().list(&ours).await.unwrap().items.remove(0).name_any()
}

#[tokio::test]
async fn every_child_comes_back_when_it_is_deleted() {
    let scene = Scene::new(&OPERATOR, "children").await;
    let spec = json!({"replicas": 2, "expose": {"ingress": {"host": "coder.example.com"}}});
    scene.plane("coder", spec).await;
    scene.until_ready("coder").await;
    comes_back::<ServiceAccount>(&scene, "coder").await;
    comes_back::<Service>(&scene, "coder").await;
    comes_back::<Deployment>(&scene, "coder").await;
    comes_back::<Ingress>(&scene, "coder").await;
    comes_back::<PodDisruptionBudget>(&scene, "coder").await;
    let role = named::<Role>(&scene).await;
    comes_back::<Role>(&scene, &role).await;
    let binding = named::<RoleBinding>(&scene).await;
    comes_back::<RoleBinding>(&scene, &binding).await;
    scene.until_ready("coder").await;
}

#[tokio::test]
async fn deleting_the_object_removes_all_it_made_here_and_elsewhere_and_nothing_else() {
    let scene = Scene::new(&OPERATOR, "children").await;
    let elsewhere = scene.another("children-ws", scene.consent()).await;
    let manual = json!({"metadata": {"name": "by-hand", "labels": {
        "app.kubernetes.io/managed-by": "coder-k8s", "app.kubernetes.io/name": "coder-control-plane",
        "app.kubernetes.io/instance": "coder",
        "coder.com/control-plane": "coder", "coder.com/control-plane-namespace": scene.namespace}}});
    let manual: Role = serde_json::from_value(manual).unwrap();
    scene.api_in::<Role>(&elsewhere).create(&kube::api::PostParams::default(), &manual).await.unwrap();
    scene.create::<Service>(json!({"metadata": {"name": "theirs"}, "spec": {"ports": [{"port": 1}]}})).await;
    let spec = json!({"replicas": 2, "rbac": {"workspaceNamespaces": [elsewhere]},
        "expose": {"ingress": {"host": "coder.example.com"}}});
    scene.plane("coder", spec).await;
    let plane = scene.until_ready("coder").await;
    assert_eq!(plane.finalizers(), ["coder.com/workspace-rbac-cleanup"]);
    assert_eq!(
        scene.api_in::<RoleBinding>(&elsewhere).list(&ListParams::default()).await.unwrap().items.len(),
        1
    );

    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    let left = scene.api_in::<RoleBinding>(&elsewhere).list(&ListParams::default()).await.unwrap().items;
    assert!(left.is_empty(), "gone before the object is: {left:?}");
    let roles = scene.api_in::<Role>(&elsewhere).list(&ListParams::default()).await.unwrap().items;
    assert_eq!(roles.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["by-hand"]);
    for name in ["coder"] {
        scene.until_gone::<Deployment>(name).await;
        scene.until_gone::<Service>(name).await;
        scene.until_gone::<ServiceAccount>(name).await;
        scene.until_gone::<Ingress>(name).await;
        scene.until_gone::<PodDisruptionBudget>(name).await;
    }
    assert!(!scene.absent::<Service>("theirs").await);
    let status = scene.requests_in(&scene.namespace);
    assert!(status.iter().all(|event| event.code != 403), "{status:?}");
}

#[tokio::test]
async fn an_object_with_nothing_outside_has_no_finalizer() {
    let scene = Scene::new(&OPERATOR, "children").await;
    scene.plane("coder", json!({})).await;
    assert!(scene.until_ready("coder").await.finalizers().is_empty());
}

#[tokio::test]
async fn foreign_objects_are_named_and_untouched_until_they_are_handed_over() {
    let scene = Scene::new(&OPERATOR, "children").await;
    let theirs = json!({"metadata": {"name": "coder", "labels": {"team": "x"}}, "spec": {"ports": [{"name": "nine", "port": 9}]}});
    let service = scene.create::<Service>(theirs).await;
    let theirs = json!({"metadata": {"name": "coder"}, "spec": {"defaultBackend": {"service": {"name": "x", "port": {"number": 1}}}}});
    let ingress = scene.create::<Ingress>(theirs).await;
    scene.plane("coder", json!({"expose": {"ingress": {"host": "coder.example.com"}}})).await;
    let plane = scene.until_condition("coder", "Conflict", "True", Some("ForeignObject")).await;
    assert_eq!(condition(&plane, "Ready").unwrap().reason, "ForeignObject");
    assert_eq!(condition(&plane, "Stalled").unwrap().status, "True");
    let said = message(&plane, "Conflict");
    assert!(said.contains("Service coder exists") && said.contains("Ingress coder exists"), "{said}");
    assert_eq!(scene.until_exists::<Service>("coder").await.resource_version(), service.resource_version());
    assert_eq!(scene.until_exists::<Ingress>("coder").await.resource_version(), ingress.resource_version());
    // Nothing else is held up.
    scene.until_condition("coder", "DeploymentReady", "True", None).await;

    scene.delete::<Ingress>("coder").await;
    let hand_over = json!({"metadata": {"annotations": {"coder.com/adopt-by": "CoderControlPlane/coder"}}});
    scene.edit::<Service>("coder", hand_over).await;
    let plane = scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "Conflict").unwrap().status, "False");
    let service: Service = scene.until_exists("coder").await;
    assert_eq!(service.labels()["team"], "x");
    let ports: Vec<_> = service.spec.unwrap().ports.unwrap().iter().map(|port| port.port).collect();
    assert!(ports.contains(&80), "{ports:?}");
}

#[tokio::test]
async fn a_downgrade_below_the_version_that_ran_is_warned_about() {
    let scene = Scene::new(&OPERATOR, "children").await;
    scene.plane("coder", json!({"image": "ghcr.io/coder/coder:v2.31.0"})).await;
    scene.until_ready("coder").await;
    let ran = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "status": {"version": "v2.31.0+abc"}});
    let by_coderd = kube::api::PatchParams::apply("coderd").force();
    let api = scene.api::<CoderControlPlane>();
    api.patch_status("coder", &by_coderd, &kube::api::Patch::Apply(&ran)).await.unwrap();
    scene.spec("coder", json!({"image": "ghcr.io/coder/coder:v2.30.0"})).await;
    let plane = scene.until_condition("coder", "Downgrade", "True", Some("OlderThanDatabase")).await;
    assert!(message(&plane, "Downgrade").contains("restore a backup"));
    scene.spec("coder", json!({"image": "ghcr.io/coder/coder:v2.31.1"})).await;
    scene.until("coder", |plane: &CoderControlPlane| condition(plane, "Downgrade").is_none()).await;
    scene.until_ready("coder").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let told = scene.events("coder").await;
    assert!(told.contains(&("Warning".into(), "OlderThanDatabase".into())), "{told:?}");
}

#[tokio::test]
async fn a_newer_image_that_somebody_set_and_that_has_run_is_kept_until_the_spec_is_edited() {
    let scene = Scene::new(&OPERATOR, "children").await;
    let (old, new) = ("ghcr.io/coder/coder:v2.34.1", "ghcr.io/coder/coder:v2.35.0");
    scene.plane("coder", json!({"image": old})).await;
    scene.until_ready("coder").await;
    let pause = |value: Value| json!({"metadata": {"annotations": {"coder.com/paused": value}}});
    scene.edit::<CoderControlPlane>("coder", pause(json!("true"))).await;
    scene.until_condition("coder", "Paused", "True", None).await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "coder", "image": new}]}}}});
    let by_somebody = kube::api::PatchParams::default();
    let api = scene.api::<Deployment>();
    api.patch("coder", &by_somebody, &kube::api::Patch::Strategic(&image)).await.unwrap();
    scene
        .until("coder", |d: &Deployment| {
            let status = d.status.clone().unwrap_or_default();
            status.observed_generation == d.metadata.generation
                && (status.updated_replicas, status.replicas, status.available_replicas)
                    == (Some(1), Some(1), Some(1))
        })
        .await;
    scene.edit::<CoderControlPlane>("coder", pause(Value::Null)).await;
    let plane = scene.until_condition("coder", "Downgrade", "True", Some("OlderThanDatabase")).await;
    let said = message(&plane, "Downgrade");
    assert!(said.contains("set spec.image") && said.contains(new), "{said}");
    // Once the rollout that the written Deployment starts is complete.
    let plane = scene.until_condition("coder", "Stalled", "True", Some("OlderThanDatabase")).await;
    assert_eq!(condition(&plane, "Ready").unwrap().status, "False");
    let image_of = |d: &Deployment| {
        d.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
    };
    assert_eq!(image_of(&scene.until_exists("coder").await), new);

    // An edit is followed, also to an older release.
    let older = "ghcr.io/coder/coder:v2.33.0";
    scene.spec("coder", json!({"image": older})).await;
    scene.until("coder", |d: &Deployment| image_of(d) == older).await;
    scene.until_ready("coder").await;
}

#[tokio::test]
async fn events_tell_of_transitions_and_not_of_passes() {
    let scene = Scene::new(&OPERATOR, "children").await;
    scene.plane("coder", json!({})).await;
    scene.until_ready("coder").await;
    // A pass without a transition.
    scene.edit::<CoderControlPlane>("coder", json!({"metadata": {"labels": {"a": "b"}}})).await;
    scene
        .edit::<CoderControlPlane>("coder", json!({"spec": {"serviceAccount": {"labels": {"a": "b"}}}}))
        .await;
    scene.until_ready("coder").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(scene.events("coder").await, [("Normal".to_owned(), "RolledOut".to_owned())]);
}
