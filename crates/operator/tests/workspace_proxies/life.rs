//! The whole life of a proxy as a person reads it: its row of `kubectl get`, and its events.

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::{Behaviour, Rule, codersim::Mode};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use serde_json::json;

use coder_k8s_scenes::{
    pool::PoolScene,
    proxy::{CHILD, ProxyScene, SECRET, is},
};

use crate::OPERATOR;

#[tokio::test(flavor = "multi_thread")]
async fn a_life_without_trouble_is_a_handful_of_events_and_no_warning() {
    let site = ProxyScene { coder: PoolScene::bare(&OPERATOR, "life", Mode::Licensed).await };
    let scene = site.scene();
    let rule = || Rule::namespace(&scene.namespace);
    // Applied together with its control plane, which takes its time.
    scene.node().behave(rule(), Behaviour::Unready);
    site.coder.make_plane(json!({})).await;
    scene.until_observed("coder").await;
    site.make(json!({})).await;
    let waiting = site.until_condition("Ready", "False", "AwaitingControlPlane").await;
    assert!(is(&waiting, "ControlPlaneReady", "False", Some("AwaitingControlPlane")), "{:?}", waiting.status);
    assert!(is(&waiting, "Entitled", "False", Some("AwaitingEntitlements")), "{:?}", waiting.status);
    scene.node().behave(rule(), Behaviour::Ready);
    site.until_settled().await;
    // It is registered, and nobody has heard from its pods, which are none.
    site.until_condition("Healthy", "False", "NotReported").await;
    scene.assert_table_fits("coderworkspaceproxies");
    site.sim().set_proxy_status("eu", "ok", "v2.36.1");
    site.until_condition("Healthy", "True", "Healthy").await;
    scene.assert_table_fits("coderworkspaceproxies");
    scene.assert_calm_life("CoderWorkspaceProxy", "eu", 3, &["Registering", "RolledOut"]).await;

    site.edit(json!({"registration": {"displayName": "Europe"}})).await;
    site.until(|proxy| is(proxy, "Registered", "True", None)).await;
    site.until_settled().await;
    // Another token, because this one is lost.
    let checksum = site.checksum().await;
    scene.delete::<Secret>(SECRET).await;
    scene
        .until(CHILD, |deployment: &Deployment| {
            let template = deployment.spec.as_ref().unwrap().template.metadata.as_ref();
            let annotations = template.and_then(|meta| meta.annotations.as_ref()).unwrap();
            annotations["checksum/proxy-token"] != checksum
        })
        .await;
    site.until_settled().await;
    println!("{}", scene.kubectl(&["describe", "coderworkspaceproxy", "eu"]));
    scene.delete::<CoderWorkspaceProxy>("eu").await;
    scene.until_gone::<CoderWorkspaceProxy>("eu").await;
    let told = ["Registering", "RolledOut", "Updating"];
    scene.assert_calm_life("CoderWorkspaceProxy", "eu", 10, &told).await;
    println!("{}", scene.log());
}
