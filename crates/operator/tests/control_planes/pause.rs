//! An annotation stops all writes for one object.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use serde_json::json;

use coder_k8s_scenes::scene::{Scene, condition};

use crate::OPERATOR;

#[tokio::test]
async fn a_paused_object_is_left_alone_and_says_so() {
    let scene = Scene::new(&OPERATOR, "pause").await;
    scene.plane("coder", json!({"image": "coder:v1"})).await;
    scene.until_ready("coder").await;
    let pause = |value: serde_json::Value| json!({"metadata": {"annotations": {"coder.com/paused": value}}});
    scene.edit::<CoderControlPlane>("coder", pause(json!("true"))).await;
    let plane = scene
        .until("coder", |plane: &CoderControlPlane| {
            condition(plane, "Paused").is_some_and(|c| c.status == "True")
        })
        .await;
    assert!(condition(&plane, "Paused").unwrap().message.contains("coder.com/paused"));
    assert_eq!(condition(&plane, "Ready").unwrap().status, "True", "what was true stays said");

    scene.spec("coder", json!({"image": "coder:v2"})).await;
    scene.delete::<Service>("coder").await;
    scene.until_gone::<Service>("coder").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(scene.absent::<Service>("coder").await);
    let image = scene.container_image("coder").await;
    assert_eq!(image, "coder:v1");
    let plane = scene.until_exists::<CoderControlPlane>("coder").await;
    let observed = plane.status.as_ref().unwrap().workload.observed_generation;
    assert_ne!(
        observed, plane.metadata.generation,
        "the new generation was not worked on, and nobody claims so"
    );

    scene.edit::<CoderControlPlane>("coder", pause(json!(null))).await;
    let plane = scene.until_ready("coder").await;
    assert!(condition(&plane, "Paused").is_none());
    scene.until_exists::<Service>("coder").await;
    assert_eq!(scene.container_image("coder").await, "coder:v2");
}

#[tokio::test]
async fn a_paused_object_can_be_deleted() {
    let scene = Scene::new(&OPERATOR, "pause").await;
    let elsewhere = scene.another("pause-ws", scene.consent()).await;
    scene.plane("coder", json!({"rbac": {"workspaceNamespaces": [elsewhere]}})).await;
    scene.until_ready("coder").await;
    let pause = json!({"metadata": {"annotations": {"coder.com/paused": "true"}}});
    scene.edit::<CoderControlPlane>("coder", pause).await;
    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    scene.until_gone::<Deployment>("coder").await;
}
