//! A pool that goes takes its keys along, or names what it must leave behind.

use std::time::{Duration, Instant};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner};
use coder_k8s_testbed::{
    codersim::{Mode, SimFault},
    eventually,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, api::DeleteParams};
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    pool::{PoolScene, SECRET, condition, names, status},
};

use crate::KEYS;

async fn delete(pool: &PoolScene) {
    pool.scene.delete::<CoderProvisioner>("pool").await;
}

async fn gone(pool: &PoolScene) {
    pool.scene.until_gone::<CoderProvisioner>("pool").await;
}

#[tokio::test]
async fn every_key_of_a_pool_goes_with_it_and_nobody_elses() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({"key": {"name": "cleanup-key"}})).await;
    pool.until_settled().await;
    pool.sim.add_key("theirs", &coder_k8s_scenes::pool::tags(&[]));
    // In the middle of a rotation: an old pod is still there, and so is the old key.
    pool.scene.node().hold_deletions(&pool.scene.namespace, true);
    pool.edit(json!({"tags": {"a": "b"}})).await;
    pool.until(|pool| status(pool).stale_keys.len() == 1).await;
    assert_eq!(pool.sim.keys().len(), 3);
    delete(&pool).await;
    // Daemons that finish their builds need their keys until they have left.
    pool.until(|pool| {
        condition(pool, "Reconciling")
            .is_some_and(|said| said.message.contains("daemons of the pool to stop"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(pool.sim.keys().len(), 3);
    pool.scene.node().hold_deletions(&pool.scene.namespace, false);
    gone(&pool).await;
    pool.until_holds(&["theirs"]).await;
    pool.scene.until_gone::<Secret>(SECRET).await;
    assert_eq!(pool.events("KeyAbandoned").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_pool_that_never_had_a_key_goes_at_once() {
    let pool = PoolScene::bare(&KEYS, "deletion", Mode::Licensed).await;
    pool.make(json!({})).await;
    pool.until_condition("ControlPlaneReady", "False", "ControlPlaneUnavailable").await;
    delete(&pool).await;
    gone(&pool).await;
}

#[tokio::test]
async fn without_its_control_plane_credentials_of_its_own_still_delete_the_key() {
    let pool = PoolScene::plane(&KEYS, "deletion", Mode::Licensed).await;
    pool.secret("mine", "token", &pool.sim.owner_token()).await;
    pool.make(json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}})).await;
    pool.assert_consistent(&[]).await;
    pool.scene.delete::<CoderControlPlane>("coder").await;
    pool.scene.until_gone::<CoderControlPlane>("coder").await;
    pool.until(|pool| condition(pool, "ControlPlaneReady").is_some_and(|said| said.status == "False")).await;
    delete(&pool).await;
    gone(&pool).await;
    pool.until_holds(&[]).await;
    assert_eq!(pool.events("KeyAbandoned").await, Vec::<String>::new());
}

#[tokio::test]
async fn without_anything_to_ask_with_the_key_is_named_and_left() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    pool.scene.delete::<CoderControlPlane>("coder").await;
    pool.scene.until_gone::<CoderControlPlane>("coder").await;
    pool.scene.delete::<Secret>("token").await;
    delete(&pool).await;
    gone(&pool).await;
    let told = pool.events("KeyAbandoned").await;
    assert!(
        told.iter().any(|note| note.contains(&key.id) && note.contains("provisioner key pool")),
        "{told:?}"
    );
    assert_eq!(names(&pool.sim), ["pool"]);
}

#[tokio::test]
async fn without_the_operator_token_a_deletion_ends_in_time_and_names_the_key() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    pool.scene.delete::<Secret>("token").await;
    delete(&pool).await;
    let deleted = Instant::now();
    // Somebody may put the token back: the deletion waits for it until `--cleanup-timeout`, 12 s here.
    let object = pool.now().await;
    assert!(object.metadata.deletion_timestamp.is_some());
    gone(&pool).await;
    let took = deleted.elapsed();
    assert!((4..30).contains(&took.as_secs()), "{took:?}");
    let told = pool.events("KeyAbandoned").await;
    assert!(
        told.iter().any(|note| note.contains(&key.id) && note.contains("provisioner key pool")),
        "{told:?}"
    );
    assert_eq!(names(&pool.sim), ["pool"]);
    assert!(!pool.scene.absent::<CoderControlPlane>("coder").await);
}

#[tokio::test]
async fn a_dead_coderd_holds_a_deletion_up_for_a_while_only() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    pool.sim.stop().await;
    delete(&pool).await;
    let tried = |pool: &CoderProvisioner| {
        condition(pool, "Reconciling").is_some_and(|said| said.status == "True" && said.reason == "Deleting")
    };
    pool.until(tried).await;
    gone(&pool).await;
    let told = pool.events("KeyAbandoned").await;
    assert!(told.iter().any(|note| note.contains(&key.id)), "{told:?}");
}

#[tokio::test]
async fn a_failure_that_passes_leaves_nothing_behind() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    pool.until_settled().await;
    let path = "/api/v2/organizations/*/provisionerkeys/*";
    pool.sim.fault("DELETE", path, SimFault::status(500, "no", ""), Some(2));
    delete(&pool).await;
    gone(&pool).await;
    pool.until_holds(&[]).await;
    assert_eq!(pool.events("KeyAbandoned").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_key_that_somebody_put_in_its_place_stays() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    pool.until_settled().await;
    pool.sim.delete_key("pool");
    pool.sim.add_key("pool", &coder_k8s_scenes::pool::tags(&[]));
    let theirs = pool.only_key();
    delete(&pool).await;
    gone(&pool).await;
    assert_eq!(pool.only_key().id, theirs.id);
}

#[tokio::test]
async fn a_control_plane_and_its_pool_go_together() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    pool.until_settled().await;
    // The control plane first, as `kubectl delete -f` does with one file.
    pool.scene.delete::<CoderControlPlane>("coder").await;
    delete(&pool).await;
    gone(&pool).await;
    pool.scene.until_gone::<CoderControlPlane>("coder").await;
    pool.until_holds(&[]).await;
}

#[tokio::test]
async fn a_namespace_that_goes_does_not_hang() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    pool.until_settled().await;
    let api: Api<Namespace> = Api::all(pool.scene.client.clone());
    api.delete(&pool.scene.namespace, &DeleteParams::default()).await.unwrap();
    let ended = eventually(PATIENCE, || async {
        match pool.scene.api::<CoderProvisioner>().get_opt("pool").await {
            Ok(None) => Ok(()),
            Ok(Some(object)) => Err(serde_json::to_string(&object.status).unwrap()),
            Err(error) => Err(error.to_string()),
        }
    });
    ended.await.unwrap();
}

#[tokio::test]
async fn a_pool_whose_status_was_lost_still_takes_its_key_along() {
    let pool = PoolScene::ready(&KEYS, "deletion", json!({})).await;
    pool.until_settled().await;
    let pause = json!({"metadata": {"annotations": {"coder.com/paused": "true"}}});
    pool.scene.edit::<CoderProvisioner>("pool", pause).await;
    pool.until(|pool| condition(pool, "Paused").is_some()).await;
    let lost = json!({"status": {"provisionerKeyID": null, "provisionerKeyName": null, "organizationID": null,
        "organizationName": null, "deploymentID": null, "controlPlaneRefName": null, "controlPlaneURL": null}});
    pool.scene
        .api::<CoderProvisioner>()
        .patch_status("pool", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&lost))
        .await
        .unwrap();
    delete(&pool).await;
    let resume = json!({"metadata": {"annotations": {"coder.com/paused": null}}});
    pool.scene.edit::<CoderProvisioner>("pool", resume).await;
    gone(&pool).await;
    pool.until_holds(&[]).await;
}

#[tokio::test]
async fn the_token_of_a_control_plane_is_revoked_after_its_pools_have_used_it() {
    let pool = PoolScene::bare(&KEYS, "deletion", Mode::Licensed).await;
    let admin = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "admin", "namespace": pool.scene.namespace},
        "stringData": {"username": "admin", "email": "admin@example.com",
            "password": "correct-Horse-42-battery"}});
    coder_k8s_scenes::apply(&pool.scene.client, admin).await;
    let access = json!({"method": "FirstUser", "firstUserSecretRef": {"name": "admin"}});
    pool.scene
        .plane("coder", json!({"image": coder_k8s_scenes::pool::IMAGE, "operatorAccess": access}))
        .await;
    pool.until_answered().await;
    pool.make(json!({})).await;
    pool.assert_consistent(&[]).await;
    assert_eq!(pool.sim.token_names().len(), 1);
    // The pool needs another try; the token is still there for it.
    let path = "/api/v2/organizations/*/provisionerkeys/*";
    pool.sim.fault("DELETE", path, SimFault::status(500, "no", ""), Some(1));
    pool.scene.delete::<CoderControlPlane>("coder").await;
    delete(&pool).await;
    gone(&pool).await;
    pool.scene.until_gone::<CoderControlPlane>("coder").await;
    pool.until_holds(&[]).await;
    assert_eq!(pool.sim.token_names(), Vec::<String>::new(), "and then it is revoked");
    assert_eq!(pool.events("KeyAbandoned").await, Vec::<String>::new());
}

/// One row for each place in which a clean-up can fail; the others are above, and every way to fail on virtual time in
/// `core::cleanup`.
#[tokio::test]
async fn whatever_coderd_answers_a_pool_goes_by_its_deadline() {
    let (keys, key) =
        ("/api/v2/organizations/*/provisionerkeys", "/api/v2/organizations/*/provisionerkeys/*");
    let rows = [
        ("GET", keys, SimFault::rate_limited(Duration::from_secs(1_000_000_000))),
        ("GET", keys, SimFault::html(200)),
        ("DELETE", key, SimFault::status(403, "no", "")),
        ("DELETE", key, SimFault::status(500, "no", "")),
        ("DELETE", key, SimFault::rate_limited(Duration::from_secs(u64::MAX))),
        ("*", "/api/v2/buildinfo", SimFault::Latency(Duration::from_mins(1))),
        ("*", "/**", SimFault::Reset),
    ];
    let all = rows.into_iter().map(|(method, path, fault)| async move {
        let row = format!("{method} {path} {fault:?}");
        let pool = PoolScene::ready(&KEYS, "deadline", json!({})).await;
        let key = pool.assert_consistent(&[]).await;
        let mark = pool.sim.mark();
        pool.sim.fault(method, path, fault, None);
        delete(&pool).await;
        let deleted = Instant::now();
        gone(&pool).await;
        // `--cleanup-timeout` of 12 s, the daemons that leave first, and a busy machine.
        assert!(deleted.elapsed() < Duration::from_secs(35), "{row}: {:?}", deleted.elapsed());
        let told = pool.events("KeyAbandoned").await;
        assert!(told.iter().any(|note| note.contains(&key.id)), "{row}: {told:?}");
        let asked = pool.sim.since(mark).iter().filter(|entry| entry.is(method, "/")).count();
        // Three on virtual time; a busy machine may lose one of them within 12 s.
        assert!((2..150).contains(&asked), "{row}: {asked} attempts");
    });
    // A few at a time: the deadlines of other tests on the same operator are as short.
    stream::iter(all).buffer_unordered(3).collect::<Vec<_>>().await;
}

#[tokio::test]
async fn a_pool_that_goes_before_coderd_was_asked_for_its_key_waits_for_nobody() {
    let pool = PoolScene::plane(&KEYS, "deletion", Mode::Licensed).await;
    // The first listing shows that the name is free, for the announcement; the second fails, so that nothing is asked for.
    let path = "/api/v2/organizations/*/provisionerkeys";
    pool.sim.fault("GET", path, SimFault::Latency(Duration::ZERO), Some(1));
    let fault = pool.sim.fault("GET", path, SimFault::status(500, "no", ""), None);
    pool.make(json!({})).await;
    pool.until(|pool| status(pool).pending_key.is_some()).await;
    delete(&pool).await;
    pool.sim.clear(fault);
    gone(&pool).await;
    // A key that may still appear is waited for longer than `--cleanup-timeout`, and then named.
    assert_eq!(pool.events("KeyAbandoned").await, Vec::<String>::new());
    assert_eq!(pool.made(), 0);
}
