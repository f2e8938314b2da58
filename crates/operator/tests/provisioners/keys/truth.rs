//! What a pool claims of its key is true of its present spec and Secrets. The monitor of each scene judges every version of
//! the pool besides (see `scenes::truth`).

use std::time::Duration;

use coder_k8s_api::CoderProvisioner;
use coder_k8s_scenes::pool::{PoolScene, SECRET, condition, is};
use serde_json::json;

use crate::KEYS;

#[tokio::test]
async fn edited_tags_are_not_called_ready_while_coderd_is_away() {
    let pool = PoolScene::ready(&KEYS, "truth", json!({"tags": {"region": "eu"}})).await;
    pool.sim.stop().await;
    let edited = pool.edit(json!({"tags": {"region": "us"}})).await;
    let seen = pool
        .until(|pool| {
            let condition = pool.status.as_ref().and_then(|status| {
                status.workload.conditions.iter().find(|c| c.type_ == "ProvisionerKeyReady").cloned()
            });
            condition.is_some_and(|c| c.observed_generation == edited.metadata.generation)
        })
        .await;
    assert!(!is(&seen, "ProvisionerKeyReady", "True", None) && !is(&seen, "Ready", "True", None), "{seen:?}");
    pool.sim.restart().await.unwrap();
    pool.assert_consistent(&[("region", "us")]).await;
}

#[tokio::test]
async fn an_edit_of_something_else_keeps_the_key_ready_while_coderd_is_away() {
    let pool = PoolScene::ready(&KEYS, "truth", json!({"tags": {"region": "eu"}})).await;
    pool.sim.stop().await;
    pool.edit(json!({"replicas": 2})).await;
    // Time for a verification that fails.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let is_observed = |pool: &CoderProvisioner| {
        pool.status.as_ref().unwrap().workload.observed_generation == pool.metadata.generation
    };
    let seen = pool.until(|pool| is_observed(pool) && is(pool, "Ready", "True", None)).await;
    let key = condition(&seen, "ProvisionerKeyReady").unwrap();
    assert_eq!(key.status, "True", "what was verified stays so");
}

#[tokio::test]
async fn a_spoilt_secret_is_not_called_ready_while_coderd_is_away() {
    let pool = PoolScene::ready(&KEYS, "truth", json!({})).await;
    pool.sim.stop().await;
    pool.secret_text(SECRET, "key", "spoilt").await;
    pool.until(|pool| {
        !is(pool, "ProvisionerKeySecretReady", "True", None) && !is(pool, "Ready", "True", None)
    })
    .await;
    pool.sim.restart().await.unwrap();
    pool.assert_consistent(&[]).await;
}
