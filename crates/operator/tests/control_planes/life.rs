//! The whole life of a control plane as a person reads it: its row of `kubectl get`, and its events.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::codersim::Mode;
use serde_json::json;

use coder_k8s_scenes::{
    coderd::{CoderdScene, license, uuid},
    scene::status,
};

use crate::OPERATOR;

#[tokio::test]
async fn a_life_without_trouble_is_a_handful_of_events_and_no_warning() {
    let coder = CoderdScene::new(&OPERATOR, "life", Mode::Unlicensed).await;
    let scene = &coder.scene;
    coder.secret("license", "license", &license(1)).await;
    coder
        .plane(json!({"image": "ghcr.io/coder/coder:v2.36.1", "licenseSecretRef": {"name": "license"}}))
        .await;
    scene.until_ready("coder").await;
    scene.assert_table_fits("codercontrolplanes");
    scene.assert_calm_life("CoderControlPlane", "coder", 1, &["RolledOut"]).await;

    scene.spec("coder", json!({"image": "ghcr.io/coder/coder:v2.36.2"})).await;
    scene.until_ready("coder").await;
    scene.spec("coder", json!({"replicas": 0})).await;
    scene.until_condition("coder", "Ready", "True", Some("ScaledToZero")).await;
    scene.spec("coder", json!({"replicas": 1})).await;
    scene.until_condition("coder", "Ready", "True", Some("RolledOut")).await;

    // Another license.
    coder.secret("license", "license", &license(2)).await;
    scene
        .until("coder", |plane: &CoderControlPlane| {
            let installed = status(plane).license.and_then(|license| license.uuid);
            let summary = status(plane).license_summary.unwrap_or_default();
            installed == Some(uuid(2)) && summary.ends_with('d')
        })
        .await;
    scene.until_ready("coder").await;
    println!("{}", scene.kubectl(&["describe", "codercontrolplane", "coder"]));
    scene.delete::<CoderControlPlane>("coder").await;
    scene.until_gone::<CoderControlPlane>("coder").await;
    let told = ["RolledOut", "Progressing", "ScaledToZero"];
    scene.assert_calm_life("CoderControlPlane", "coder", 12, &told).await;
    println!("{}", scene.log());
}
