//! The license: without one nothing is begun, and what runs is not taken away unless that is asked for.

use std::time::Duration;

use coder_k8s_testbed::codersim::{CoderSim, Mode, SimFault};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::ResourceExt;
use serde_json::json;

use coder_k8s_scenes::pool::{PoolScene, SECRET, condition, is, message, status};

use crate::KEYS;

fn license(sim: &CoderSim) -> i32 {
    sim.add_license(&CoderSim::license().build())
}

async fn nothing_made(pool: &PoolScene) {
    assert_eq!((pool.made(), pool.sim.keys().len()), (0, 0));
    assert!(pool.scene.absent::<Secret>(SECRET).await);
    assert!(pool.scene.absent::<Deployment>("provisioner-pool").await);
    assert!(pool.now().await.finalizers().is_empty());
}

#[tokio::test]
async fn without_a_license_nothing_is_made_until_there_is_one() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Unlicensed).await;
    pool.make(json!({})).await;
    let object = pool.until_condition("ExternalProvisionersEntitled", "False", "NotEntitled").await;
    assert!(message(&object, "ExternalProvisionersEntitled").contains("install a Premium license"));
    assert!(is(&object, "Ready", "False", Some("NotEntitled")), "{:?}", object.status);
    assert!(is(&object, "Stalled", "True", Some("NotEntitled")), "{:?}", object.status);
    tokio::time::sleep(Duration::from_secs(1)).await;
    nothing_made(&pool).await;
    license(&pool.sim);
    pool.until_ready().await;
    pool.assert_consistent(&[]).await;
}

#[tokio::test]
async fn unlicensed_pools_cost_no_call_and_no_write_of_their_own() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Unlicensed).await;
    let names: Vec<_> = (0..20).map(|n| format!("pool-{n}")).collect();
    for name in &names {
        pool.make_named(name, json!({})).await;
    }
    for name in &names {
        pool.until_condition_of(name, "Ready", "False", Some("NotEntitled")).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mark, before) = (pool.sim.mark(), pool.scene.requests_in(&pool.scene.namespace).len());
    tokio::time::sleep(Duration::from_secs(9)).await;
    let calls = pool.sim.since(mark);
    let asked = calls.iter().filter(|entry| entry.path.ends_with("/entitlements")).count();
    assert!((1..=9).contains(&asked), "the control plane's own: {asked}");
    assert!(calls.iter().all(|entry| !entry.path.contains("organizations")), "{calls:?}");
    let all = pool.scene.requests_in(&pool.scene.namespace);
    let written = coder_k8s_scenes::writes(&all[before..]);
    assert!(written.iter().all(|event| event.resource == "codercontrolplanes"), "{written:?}");
}

#[tokio::test]
async fn a_lost_license_stops_no_scaling_no_image_and_no_report() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Unlicensed).await;
    let number = license(&pool.sim);
    pool.make(json!({})).await;
    pool.assert_consistent(&[]).await;
    pool.sim.delete_license(number);
    let object = pool.until_condition("ExternalProvisionersEntitled", "False", "NotEntitled").await;
    assert!(is(&object, "Ready", "True", None), "what runs, runs: {:?}", object.status);
    pool.edit(json!({"replicas": 2, "image": "example.test/own:2"})).await;
    let object = pool.until(|pool| status(pool).workload.ready_replicas == Some(2)).await;
    assert_eq!(status(&object).workload.phase.as_deref(), Some("Ready"));
    pool.until(|pool| status(pool).workload.image.as_deref() == Some("example.test/own:2")).await;
    assert_eq!(pool.sim.keys().len(), 1);

    // What needs a new key waits for the license, and the old key stays.
    pool.edit(json!({"tags": {"a": "b"}})).await;
    pool.until(|pool| is(pool, "Ready", "False", None)).await;
    assert_eq!(pool.made(), 1);
    license(&pool.sim);
    pool.assert_consistent(&[("a", "b")]).await;
}

#[tokio::test]
async fn scaling_down_on_a_lost_license_is_a_choice() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Unlicensed).await;
    let number = license(&pool.sim);
    pool.make(json!({"onEntitlementLost": "ScaleDown", "replicas": 2})).await;
    pool.assert_consistent(&[]).await;
    let replicas = async |wanted: i32| {
        pool.scene
            .until("provisioner-pool", |d: &Deployment| d.spec.as_ref().unwrap().replicas == Some(wanted))
            .await;
    };
    // An answer that says nothing definite takes nothing away.
    let fault = pool.sim.fault("GET", "/api/v2/entitlements", SimFault::status(500, "no", ""), None);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(pool.deployment().await.spec.unwrap().replicas, Some(2));
    pool.sim.delete_license(number);
    pool.sim.clear(fault);
    replicas(0).await;
    let object = pool.until_condition("ExternalProvisionersEntitled", "False", "NotEntitled").await;
    assert_eq!(object.spec.replicas, 2, "the spec is the user's");
    assert_eq!(pool.sim.keys().len(), 1, "the key stays");
    license(&pool.sim);
    replicas(2).await;
    pool.until_ready().await;
    assert_eq!(pool.made(), 1);
}

#[tokio::test]
async fn a_grace_period_is_a_license() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Unlicensed).await;
    pool.sim.add_license(&CoderSim::license().in_grace().build());
    pool.make(json!({})).await;
    pool.until_condition("ExternalProvisionersEntitled", "True", "Entitled").await;
    pool.until_ready().await;
}

#[tokio::test]
async fn a_build_without_licenses_is_said_so() {
    let pool = PoolScene::bare(&KEYS, "gate", Mode::Agpl).await;
    pool.scene
        .plane("coder", json!({"image": coder_k8s_scenes::pool::IMAGE, "operatorAccess": {"disabled": true}}))
        .await;
    pool.secret("mine", "token", &pool.sim.owner_token()).await;
    pool.make(json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}})).await;
    let object = pool.until_condition("ExternalProvisionersEntitled", "False", "NotSupported").await;
    assert!(is(&object, "Ready", "False", Some("NotSupported")), "{:?}", object.status);
    nothing_made(&pool).await;
}

#[tokio::test]
async fn a_control_plane_tells_its_pools_of_a_build_without_licenses() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Agpl).await;
    pool.make(json!({})).await;
    let object = pool.until_condition("ExternalProvisionersEntitled", "False", "NotSupported").await;
    let advice = message(&object, "ExternalProvisionersEntitled");
    assert!(advice.contains("ghcr.io/coder/coder") && !advice.contains("install"), "{advice}");
    assert!(is(&object, "Stalled", "True", Some("NotSupported")), "{:?}", object.status);
    nothing_made(&pool).await;
}

#[tokio::test]
async fn a_control_plane_that_may_not_ask_costs_one_call_for_all_of_its_pools() {
    let pool = PoolScene::bare(&KEYS, "gate", Mode::Licensed).await;
    pool.sim.fault("GET", "/api/v2/entitlements", SimFault::status(403, "no", ""), None);
    pool.make_plane(json!({})).await;
    for name in ["pool", "second", "third"] {
        pool.make_named(name, json!({})).await;
    }
    for name in ["pool", "second", "third"] {
        let entitled = "ExternalProvisionersEntitled";
        pool.until_condition_of(name, entitled, "False", Some("Forbidden")).await;
    }
    let mark = pool.sim.mark();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let asked = pool.sim.since(mark).iter().filter(|e| e.path.ends_with("/entitlements")).count();
    assert!(asked <= 6, "the control plane's own: {asked}");
    nothing_made(&pool).await;
    pool.sim.clear_faults();
    pool.until_ready().await;
}

#[tokio::test]
async fn a_key_that_coderd_does_not_accept_is_made_again_ever_more_rarely() {
    let pool = PoolScene::plane(&KEYS, "gate", Mode::Licensed).await;
    let refusal = SimFault::status(401, "provisioner daemon key required", "");
    pool.sim.fault("GET", "/api/v2/provisionerkeys/details", refusal, None);
    pool.make(json!({})).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let made = pool.made();
    assert!((1..=6).contains(&made), "{made} in 10 s");
    pool.sim.clear_faults();
    // An edit is tried at once.
    pool.edit(json!({"replicas": 2})).await;
    pool.until_ready().await;
    pool.assert_consistent(&[]).await;
}

#[tokio::test]
async fn a_pool_that_asks_by_itself_tells_why_it_does_not_know() {
    let pool = PoolScene::bare(&KEYS, "gate", Mode::Licensed).await;
    pool.sim.fault("GET", "/api/v2/entitlements", SimFault::status(403, "no", ""), None);
    pool.scene
        .plane("coder", json!({"image": coder_k8s_scenes::pool::IMAGE, "operatorAccess": {"disabled": true}}))
        .await;
    pool.secret("mine", "token", &pool.sim.owner_token()).await;
    pool.make(json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}})).await;
    pool.until_condition("ExternalProvisionersEntitled", "False", "Forbidden").await;
    pool.sim.clear_faults();
    pool.sim.fault("GET", "/api/v2/entitlements", SimFault::status(503, "no", ""), None);
    // Something that makes it look.
    pool.edit(json!({"replicas": 2})).await;
    let object =
        pool.until_condition("ExternalProvisionersEntitled", "False", "EntitlementsQueryFailed").await;
    assert!(condition(&object, "Stalled").is_some_and(|said| said.status == "False"), "that may pass");
    nothing_made(&pool).await;
    pool.sim.clear_faults();
    pool.edit(json!({"replicas": 1})).await;
    pool.until_ready().await;
}
