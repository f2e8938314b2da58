//! The whole life of a pool as a person reads it: its row of `kubectl get`, and its events.

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::{Behaviour, Rule, codersim::Mode};
use serde_json::json;

use coder_k8s_scenes::pool::{PoolScene, is, status};

use crate::KEYS;

#[tokio::test]
async fn a_life_without_trouble_is_a_handful_of_events_and_no_warning() {
    let pool = PoolScene::bare(&KEYS, "life", Mode::Licensed).await;
    let scene = &pool.scene;
    let rule = || Rule::namespace(&scene.namespace);
    // Applied together with its control plane, which takes its time.
    scene.node().behave(rule(), Behaviour::Unready);
    pool.make_plane(json!({})).await;
    scene.until_observed("coder").await;
    pool.make(json!({"tags": {"region": "eu"}})).await;
    let waiting = pool.until_condition("Ready", "False", "AwaitingControlPlane").await;
    assert!(is(&waiting, "ControlPlaneReady", "False", Some("AwaitingControlPlane")), "{:?}", waiting.status);
    assert!(
        is(&waiting, "ExternalProvisionersEntitled", "False", Some("AwaitingEntitlements")),
        "{:?}",
        waiting.status
    );
    assert!(is(&waiting, "Stalled", "False", None) && is(&waiting, "Reconciling", "True", None));
    assert_eq!(status(&waiting).tags, None, "no key has any yet");
    scene.node().behave(rule(), Behaviour::Ready);
    let ready = pool.until_settled().await;
    assert_eq!(status(&ready).tags.as_deref(), Some("region=eu"));
    scene.assert_calm_life("CoderProvisioner", "pool", 3, &["Creating", "RolledOut"]).await;

    // Another key, for other tags.
    pool.edit(json!({"tags": {"region": "us", "gpu": "yes"}})).await;
    pool.until(|pool| status(pool).tags.as_deref() == Some("gpu=yes,region=us")).await;
    pool.until_settled().await;
    scene.assert_table_fits("coderprovisioners");
    pool.edit(json!({"replicas": 2})).await;
    pool.until(|pool| status(pool).workload.ready_replicas == Some(2)).await;
    pool.until_settled().await;
    println!("{}", scene.kubectl(&["describe", "coderprovisioner", "pool"]));
    scene.delete::<CoderProvisioner>("pool").await;
    scene.until_gone::<CoderProvisioner>("pool").await;
    let told = ["Creating", "RolledOut", "Rotating", "Deleting"];
    scene.assert_calm_life("CoderProvisioner", "pool", 10, &told).await;
    println!("{}", scene.log());
}
