//! What the spec asks for changes: a new key where coderd needs one, and never one where it does not.

use std::time::Duration;

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::codersim::{DaemonSeed, Mode, SimFault};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use coder_k8s_scenes::pool::{PoolScene, SECRET, holds, is, names, status};

use crate::KEYS;

#[tokio::test]
async fn other_tags_make_a_new_key_and_the_old_one_goes_when_no_pod_uses_it() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({"tags": {"region": "eu"}})).await;
    let (old, before) = (pool.only_key(), pool.checksum().await);
    // An old pod that finishes its build.
    pool.scene.node().hold_deletions(&pool.scene.namespace, true);
    pool.edit(json!({"tags": {"region": "us"}})).await;
    let object = pool.until(|pool| status(pool).stale_keys.len() == 1).await;
    let stale = &status(&object).stale_keys[0];
    assert_eq!((stale.id.as_ref(), stale.name.as_str()), (Some(&old.id), "pool"));
    pool.until(|pool| is(pool, "ProvisionerKeyReady", "True", None)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pool.sim.keys().len(), 2, "its daemon still needs the old one");
    pool.scene.node().hold_deletions(&pool.scene.namespace, false);
    let key = pool.assert_consistent(&[("region", "us")]).await;
    assert_eq!(names(&pool.sim), [key.name.as_str()]);
    assert!(key.name.starts_with("pool-") && key.id != old.id, "{}", key.name);
    assert_ne!(pool.checksum().await, before, "pods are rolled");
    assert_eq!(pool.made(), 2);

    // And back: the best name is free again.
    pool.edit(json!({"tags": {"region": "eu"}})).await;
    pool.until(|pool| status(pool).provisioner_key_name.as_deref() == Some("pool")).await;
    assert_eq!(pool.assert_consistent(&[("region", "eu")]).await.name, "pool");
    pool.until_holds(&["pool"]).await;
}

#[tokio::test]
async fn a_daemon_that_coderd_still_sees_keeps_its_key() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let old = pool.only_key();
    // Its clock is ahead, so that the daemon was seen after the last pod had gone.
    pool.sim.advance(Duration::from_hours(1));
    let daemon =
        DaemonSeed { name: "d".into(), key_id: Some(old.id.clone()), seen_ago: Duration::ZERO, busy: true };
    pool.sim.set_daemons(&[daemon]);
    pool.edit(json!({"key": {"name": "other"}})).await;
    pool.until(|pool| status(pool).stale_keys.first().is_some_and(|key| key.unused_since.is_some())).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(names(&pool.sim), ["other", "pool"]);
    assert!(is(&pool.now().await, "Ready", "True", None), "that is no reason not to be ready");
    pool.sim.set_daemons(&[]);
    pool.until_holds(&["other"]).await;
    pool.assert_consistent(&[]).await;
}

#[tokio::test]
async fn another_name_or_organization_makes_a_new_key() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({"key": {"name": "key-v1"}})).await;
    pool.edit(json!({"key": {"name": "key-v2"}})).await;
    pool.until(|pool| status(pool).provisioner_key_name.as_deref() == Some("key-v2")).await;
    pool.assert_consistent(&[]).await;
    pool.until_holds(&["key-v2"]).await;

    let acme = pool.sim.add_organization("acme");
    pool.edit(json!({"organizationName": "acme"})).await;
    pool.until(|pool| status(pool).organization_id.as_ref() == Some(&acme)).await;
    let key = pool.assert_consistent(&[]).await;
    assert_eq!((key.organization, key.name.as_str()), (acme, "key-v2"));
    pool.until_holds(&["key-v2"]).await;
    assert_eq!(status(&pool.now().await).organization_name.as_deref(), Some("acme"));
    assert_eq!(pool.made(), 3);
}

#[tokio::test]
async fn other_words_for_the_same_make_no_new_key() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let (key, id) = (pool.only_key(), pool.sim.default_organization());
    for word in ["coder", &id, "default"] {
        pool.edit(json!({"organizationName": word})).await;
        pool.until(|pool| status(pool).organization_name.as_deref() == Some(word)).await;
    }
    // Tags that coderd makes nothing of, the name that it is, in capital letters.
    pool.edit(json!({"tags": {"scope": "organization", "owner": ""}, "key": {"name": "POOL"}})).await;
    let object = pool.until_settled().await;
    assert_eq!(status(&object).provisioner_key_id, Some(key.id));
    assert_eq!(pool.made(), 1);
}

#[tokio::test]
async fn another_address_of_the_same_coderd_rolls_pods_and_keeps_the_key() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    pool.scene.spec("coder", json!({"service": {"port": 8080}})).await;
    let url = format!("http://coder.{}.svc.cluster.local:8080", pool.scene.namespace);
    pool.until(|pool| status(pool).control_plane_url.as_ref() == Some(&url)).await;
    assert_eq!(pool.assert_consistent(&[]).await.id, key.id);
    let env = pool.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
    assert_eq!(env[0].value.as_ref(), Some(&url));
    assert_eq!(pool.made(), 1);
}

#[tokio::test]
async fn another_control_plane_gets_a_key_and_the_old_one_loses_it() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let other = pool.another_plane("other").await;
    pool.edit(json!({"controlPlaneRef": {"name": "other"}})).await;
    pool.until(|pool| status(pool).control_plane_ref_name.as_deref() == Some("other")).await;
    let object = pool.until_settled().await;
    holds(&other, &["pool"]).await;
    pool.until_holds(&[]).await;
    assert_eq!(status(&object).deployment_id, Some(other.deployment_id()));
    assert_eq!(status(&object).provisioner_key_id, Some(other.keys()[0].id.clone()));
    // A credential is sent to no other deployment than its own.
    let sent = |sim: &coder_k8s_testbed::codersim::CoderSim| -> std::collections::BTreeSet<_> {
        sim.requests().into_iter().filter_map(|entry| entry.credential).collect()
    };
    let (one, two) = (sent(&pool.sim), sent(&other));
    assert!(!one.is_empty() && !two.is_empty() && one.is_disjoint(&two), "{one:?} {two:?}");
}

#[tokio::test]
async fn a_token_that_one_deployment_accepted_does_not_follow_the_pool_to_another() {
    let pool = PoolScene::plane(&KEYS, "drift", Mode::Licensed).await;
    pool.secret("mine", "token", &pool.sim.owner_token()).await;
    pool.make(json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}})).await;
    let settled = pool.until_settled().await;
    assert_eq!(status(&settled).workload.credential_bindings[0].deployment_id, pool.sim.deployment_id());
    let other = pool.another_plane("other").await;
    pool.edit(json!({"controlPlaneRef": {"name": "other"}})).await;
    let refused =
        pool.until(|pool| is(pool, "ProvisionerKeyReady", "False", Some("DeploymentChanged"))).await;
    assert!(is(&refused, "Stalled", "True", None), "only a person can help");
    assert_eq!(other.count("*", "/api/v2/organizations"), 0, "no call with the token");
    pool.secret("mine", "token", &other.owner_token()).await;
    pool.until(|pool| status(pool).deployment_id == Some(other.deployment_id())).await;
    holds(&other, &["pool"]).await;
}

#[tokio::test]
async fn another_deployment_behind_the_same_control_plane_gets_a_new_key() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let lost = pool.only_key();
    pool.sim.reset_backend();
    pool.sim.add_license(&coder_k8s_testbed::codersim::CoderSim::license().build());
    pool.secret("token", "token", &pool.sim.owner_token()).await;
    let identity = pool.sim.deployment_id();
    pool.until(|pool| status(pool).deployment_id.as_ref() == Some(&identity)).await;
    pool.until_ready().await;
    let key = pool.only_key();
    assert_ne!(key.id, lost.id);
    pool.assert_stores(SECRET, "key", &key).await;
    let material =
        pool.sim.requests().into_iter().filter(|entry| entry.path.contains("provisionerkeys/details"));
    assert!(material.count() > 0);
}

#[tokio::test]
async fn a_renamed_secret_is_copied_and_the_old_one_goes() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    pool.edit(json!({"key": {"secretName": "renamed"}})).await;
    pool.scene.until_gone::<Secret>(SECRET).await;
    assert_eq!(pool.assert_consistent(&[]).await.id, key.id);
    pool.assert_stores("renamed", "key", &key).await;

    // Another data key of the same Secret; what others put there stays.
    let patch = json!({"stringData": {"theirs": "1"}});
    pool.scene.edit::<Secret>("renamed", patch).await;
    pool.edit(json!({"key": {"secretKey": "other"}})).await;
    let secret = pool
        .scene
        .until("renamed", |secret: &Secret| {
            let keys: Vec<_> = secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect();
            keys == ["other", "theirs"]
        })
        .await;
    assert_eq!(secret.annotations()["coder.com/provisioner-key-id"], key.id);
    assert_eq!(pool.assert_consistent(&[]).await.id, key.id);
    assert_eq!(pool.made(), 1, "copied, not made again");
}

#[tokio::test]
async fn an_edit_that_is_taken_back_half_way_leaves_what_was_there() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({"tags": {"a": "1"}})).await;
    let old = pool.assert_consistent(&[("a", "1")]).await;
    let path = "/api/v2/organizations/*/provisionerkeys";
    for fault in [SimFault::status(500, "no", ""), SimFault::Reset, SimFault::ResetAfter] {
        let id = pool.sim.fault("POST", path, fault.clone(), None);
        pool.edit(json!({"tags": {"a": "2"}})).await;
        pool.until(|pool| status(pool).pending_key.is_some()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        pool.edit(json!({"tags": {"a": "1"}})).await;
        pool.until(|pool| is(pool, "Ready", "True", None) && status(pool).pending_key.is_none()).await;
        pool.sim.clear(id);
        let object = pool.until_ready().await;
        assert_eq!(status(&object).provisioner_key_id.as_ref(), Some(&old.id), "{fault:?}");
        pool.until_holds(&["pool"]).await;
        pool.assert_stores(SECRET, "key", &old).await;
        assert!(status(&object).pending_key.is_none());
    }
}

#[tokio::test]
async fn overlapping_edits_end_with_exactly_one_key() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    for n in 0..6 {
        pool.edit(json!({"tags": {"n": n.to_string()}, "key": {"name": format!("key-{}", n % 2)}})).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    pool.until(|pool| {
        status(pool).provisioner_key_name.is_some_and(|name| name.starts_with("key-1"))
            && is(pool, "Ready", "True", None)
    })
    .await;
    let found = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        match pool.sim.keys().len() {
            1 => Ok(()),
            _ => Err(format!("{:?}", names(&pool.sim))),
        }
    });
    found.await.unwrap();
    let key = pool.only_key();
    assert_eq!(key.tags["n"], "5");
    pool.assert_stores(SECRET, "key", &key).await;
}

#[tokio::test]
async fn two_keys_at_most_while_each_edit_waits_for_the_last() {
    let pool = PoolScene::ready(&KEYS, "drift", json!({})).await;
    for n in 0..3 {
        let hash = status(&pool.now().await).tags_hash;
        pool.edit(json!({"tags": {"n": n.to_string()}})).await;
        pool.until(|pool| {
            assert!(status(pool).stale_keys.len() <= 1);
            status(pool).tags_hash != hash
        })
        .await;
        assert!(pool.sim.keys().len() <= 2, "{:?}", names(&pool.sim));
        pool.assert_consistent(&[("n", &n.to_string())]).await;
        assert_eq!(pool.sim.keys().len(), 1);
    }
    assert_eq!(pool.made(), 4);
}

#[tokio::test]
async fn a_name_that_somebody_else_has_is_evaded_unless_the_user_chose_it() {
    let pool = PoolScene::plane(&KEYS, "drift", Mode::Licensed).await;
    pool.sim.add_key("pool", &coder_k8s_scenes::pool::tags(&[("theirs", "1")]));
    let theirs = pool.only_key();
    pool.make(json!({})).await;
    let object = pool.until_ready().await;
    let name = status(&object).provisioner_key_name.unwrap();
    assert!(name.starts_with("pool-") && name.len() == "pool-".len() + 8, "{name}");
    assert_eq!(pool.key("pool").id, theirs.id);
    assert!(pool.events("KeyLeftAlone").await.iter().any(|note| note.contains(&theirs.id)));

    pool.make_named("chosen", json!({"key": {"name": "pool"}})).await;
    let object = pool.until_condition_of("chosen", "ProvisionerKeyReady", "False", Some("KeyConflict")).await;
    assert!(is(&object, "Stalled", "True", Some("KeyConflict")), "{:?}", object.status);
    assert!(coder_k8s_scenes::pool::message(&object, "ProvisionerKeyReady").contains("spec.key.name"));
    assert_eq!(pool.sim.keys().len(), 2);
    pool.scene.delete::<CoderProvisioner>("pool").await;
    pool.scene.until_gone::<CoderProvisioner>("pool").await;
    pool.sim.delete_key("pool");
    pool.until_ready_named("chosen").await;
    assert_ne!(pool.only_key().id, theirs.id);
}

#[tokio::test]
async fn of_two_pools_that_choose_one_name_the_older_has_it() {
    let pool = PoolScene::plane(&KEYS, "drift", Mode::Licensed).await;
    pool.make_named("first", json!({"key": {"name": "shared"}})).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    pool.make_named("second", json!({"key": {"name": "shared"}})).await;
    let first = pool.until_ready_named("first").await;
    let second = pool.until_condition_of("second", "ProvisionerKeyReady", "False", Some("KeyConflict")).await;
    assert!(coder_k8s_scenes::pool::message(&second, "ProvisionerKeyReady").contains("first"));
    assert_eq!(status(&first).provisioner_key_id, Some(pool.only_key().id));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pool.made(), 1, "nobody takes it from anybody");
    // When the older goes, the younger gets it.
    pool.scene.delete::<CoderProvisioner>("first").await;
    pool.scene.until_gone::<CoderProvisioner>("first").await;
    let second = pool.until_ready_named("second").await;
    assert_eq!(status(&second).provisioner_key_id, Some(pool.only_key().id));
}

#[tokio::test]
async fn pools_of_one_name_in_two_namespaces_share_a_coderd() {
    let one = PoolScene::ready(&KEYS, "drift", json!({})).await;
    let two = PoolScene::bare(&KEYS, "drift", Mode::Licensed).await;
    two.scene.service("coder", one.sim.address());
    two.secret("token", "token", &one.sim.owner_token()).await;
    two.scene.plane("coder", coder_k8s_scenes::pool::plane_spec(json!({}))).await;
    two.make(json!({})).await;
    let object = two.until_ready().await;
    let name = status(&object).provisioner_key_name.unwrap();
    assert!(name.starts_with("pool-"), "{name}");
    holds(&one.sim, &["pool", &name]).await;
    two.scene.delete::<CoderProvisioner>("pool").await;
    two.scene.until_gone::<CoderProvisioner>("pool").await;
    holds(&one.sim, &["pool"]).await;
    one.assert_consistent(&[]).await;
}

/// A server can repeat the deployment ID of another. Whether a name is taken is for the pool's own coderd to say.
#[tokio::test]
async fn a_pool_of_another_namespace_blocks_no_name_and_is_not_told() {
    let hostile = PoolScene::plane(&KEYS, "hostile", Mode::Licensed).await;
    hostile.make_named("squatter", json!({"key": {"name": "shared"}})).await;
    hostile.until_ready_named("squatter").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let pool = PoolScene::bare(&KEYS, "drift", Mode::Licensed).await;
    pool.sim.set_deployment_id(&hostile.sim.deployment_id());
    pool.make_plane(json!({})).await;
    pool.until_answered().await;
    pool.make(json!({"key": {"name": "shared"}})).await;
    let object = pool.until_ready().await;
    assert_eq!(status(&object).provisioner_key_name.as_deref(), Some("shared"));
    let told = serde_json::to_string(&object.status).unwrap();
    assert!(!told.contains(&hostile.scene.namespace) && !told.contains("squatter"), "{told}");
}
