//! The key in coderd and the Secret that holds it: lost, emptied, replaced, taken, and never given up without need.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::codersim::{Mode, SimFault};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use coder_k8s_scenes::pool::{PoolScene, SECRET, condition, is, message, names, status};

use crate::KEYS;

#[tokio::test]
async fn a_key_that_was_deleted_in_coderd_is_made_again() {
    let pool = PoolScene::ready(&KEYS, "material", json!({})).await;
    let old = pool.only_key();
    pool.sim.delete_key("pool");
    pool.until(|pool| status(pool).provisioner_key_id.as_ref().is_some_and(|id| *id != old.id)).await;
    let key = pool.assert_consistent(&[]).await;
    assert_eq!(names(&pool.sim), [key.name.as_str()]);
    assert_eq!(pool.made(), 2);
}

#[tokio::test]
async fn a_key_that_somebody_put_in_its_place_is_left_alone() {
    let pool = PoolScene::ready(&KEYS, "material", json!({})).await;
    let old = pool.only_key();
    pool.sim.delete_key("pool");
    pool.sim.add_key("pool", &coder_k8s_scenes::pool::tags(&[]));
    let theirs = pool.only_key();
    pool.until(|pool| status(pool).provisioner_key_id.as_ref().is_some_and(|id| *id != old.id)).await;
    let key = pool.assert_consistent(&[]).await;
    assert_eq!(names(&pool.sim), ["pool", key.name.as_str()]);
    assert_eq!(pool.key("pool").id, theirs.id);
    pool.scene.delete::<CoderProvisioner>("pool").await;
    pool.scene.until_gone::<CoderProvisioner>("pool").await;
    assert_eq!(pool.only_key().id, theirs.id);
}

#[tokio::test]
async fn a_secret_that_is_emptied_corrupted_or_deleted_gets_a_new_key() {
    let pool = PoolScene::ready(&KEYS, "material", json!({})).await;
    let mut last = pool.assert_consistent(&[]).await;
    let edits = [
        Some(json!({"data": {"key": ""}})),
        Some(json!({"stringData": {"key": "no key at all"}})),
        Some(json!({"stringData": {"key": "x".repeat(43)}})),
        Some(json!({"data": {"key": null}})),
        None,
    ];
    for (n, edit) in edits.into_iter().enumerate() {
        match &edit {
            Some(edit) => drop(pool.scene.edit::<Secret>(SECRET, edit.clone()).await),
            None => pool.scene.delete::<Secret>(SECRET).await,
        }
        pool.until(|pool| status(pool).provisioner_key_id.as_ref().is_some_and(|id| *id != last.id)).await;
        let key = pool.assert_consistent(&[]).await;
        assert_eq!(names(&pool.sim), [key.name.as_str()], "{edit:?}");
        assert_eq!(pool.made(), n + 2, "{edit:?}");
        last = key;
    }
}

#[tokio::test]
async fn a_lost_status_is_found_again_without_a_new_key() {
    let pool = PoolScene::ready(&KEYS, "material", json!({"tags": {"a": "b"}})).await;
    let key = pool.assert_consistent(&[("a", "b")]).await;
    let whole = serde_json::to_value(status(&pool.now().await)).unwrap();
    let fields = [
        "provisionerKeyID",
        "provisionerKeyName",
        "organizationID",
        "organizationName",
        "tagsHash",
        "controlPlaneRefName",
        "controlPlaneURL",
        "deploymentID",
        "secretRef",
        "credentialsSource",
    ];
    let api = pool.scene.api::<CoderProvisioner>();
    let lose = async |fields: &[&str]| {
        let lost: serde_json::Map<_, _> =
            fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect();
        let patch = json!({"status": lost});
        api.patch_status("pool", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    };
    let restored = async |what: &str| {
        pool.until(|pool| {
            let now = serde_json::to_value(status(pool)).unwrap();
            fields.iter().all(|field| now[field] == whole[field])
        })
        .await;
        pool.assert_consistent(&[("a", "b")]).await;
        assert_eq!(pool.made(), 1, "{what}");
        assert_eq!(pool.only_key().id, key.id, "{what}");
    };
    for field in fields {
        lose(&[field]).await;
        restored(field).await;
    }
    lose(&fields).await;
    restored("all of them").await;
    // Everything, and the annotations as well: what the Secret holds says enough.
    let names = pool.scene.until_exists::<Secret>(SECRET).await;
    let ours: serde_json::Map<_, _> = names
        .annotations()
        .keys()
        .filter(|name| name.starts_with("coder.com/provisioner-key"))
        .map(|name| (name.clone(), Value::Null))
        .collect();
    pool.scene.edit::<Secret>(SECRET, json!({"metadata": {"annotations": ours}})).await;
    lose(&fields).await;
    restored("status and annotations").await;
}

#[tokio::test]
async fn annotations_that_somebody_removed_come_back() {
    let pool = PoolScene::ready(&KEYS, "material", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    let patch = json!({"metadata": {"annotations": {
        "coder.com/provisioner-key-id": null, "coder.com/provisioner-key-name": null}}});
    pool.scene.edit::<Secret>(SECRET, patch).await;
    pool.scene
        .until(SECRET, |secret: &Secret| {
            secret.annotations().get("coder.com/provisioner-key-id") == Some(&key.id)
        })
        .await;
    assert_eq!(pool.assert_consistent(&[]).await.id, key.id);
    assert_eq!(pool.made(), 1);
}

#[tokio::test]
async fn a_secret_of_somebody_else_stops_everything_before_coderd_is_touched() {
    let pool = PoolScene::plane(&KEYS, "material", Mode::Licensed).await;
    pool.secret_text(SECRET, "key", "theirs").await;
    pool.make(json!({})).await;
    let object = pool.until_condition("ProvisionerKeySecretReady", "False", "ForeignObject").await;
    let said = message(&object, "ProvisionerKeySecretReady");
    assert!(said.contains(SECRET) && said.contains("coder.com/adopt-by=CoderProvisioner/pool"), "{said}");
    assert!(is(&object, "Stalled", "True", Some("ForeignObject")), "{:?}", object.status);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((pool.made(), pool.sim.keys().len()), (0, 0));
    let theirs: Secret = pool.scene.until_exists(SECRET).await;
    assert!(theirs.owner_references().is_empty() && theirs.data.unwrap()["key"].0 == b"theirs");

    let hand_over = json!({"metadata": {"annotations": {"coder.com/adopt-by": "CoderProvisioner/pool"}}});
    pool.scene.edit::<Secret>(SECRET, hand_over).await;
    pool.until_ready().await;
    pool.assert_consistent(&[]).await;
    assert_eq!(pool.scene.until_exists::<Secret>(SECRET).await.owner_references().len(), 1);
}

#[tokio::test]
async fn an_immutable_secret_is_said_so_and_never_costs_a_key() {
    let pool = PoolScene::ready(&KEYS, "material", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    pool.scene.edit::<Secret>(SECRET, json!({"immutable": true})).await;
    pool.edit(json!({"tags": {"a": "b"}})).await;
    let object = pool.until_condition("ProvisionerKeyReady", "False", "SecretImmutable").await;
    assert!(is(&object, "Stalled", "True", Some("SecretImmutable")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((pool.made(), pool.only_key().id), (1, key.id));
    pool.scene.delete::<Secret>(SECRET).await;
    pool.until(|pool| is(pool, "Ready", "True", None)).await;
    pool.assert_consistent(&[("a", "b")]).await;
    assert_eq!(names(&pool.sim).len(), 1);
}

#[tokio::test]
async fn answers_that_say_nothing_definite_never_cost_a_key() {
    let pool = PoolScene::ready(&KEYS, "material", json!({})).await;
    let key = pool.assert_consistent(&[]).await;
    // Something that makes it look: after many failures it would wait for long by itself.
    let looks = AtomicUsize::new(0);
    let look = async || {
        let look = looks.fetch_add(1, Ordering::SeqCst).to_string();
        pool.scene.edit::<Secret>(SECRET, json!({"metadata": {"labels": {"look": look}}})).await;
    };
    for fault in [
        SimFault::status(500, "no", ""),
        SimFault::status(403, "no", ""),
        SimFault::html(200),
        SimFault::html(502),
        SimFault::Reset,
        SimFault::rate_limited(Duration::from_secs(1)),
    ] {
        let id = pool.sim.fault("GET", "/api/v2/provisionerkeys/*", fault.clone(), None);
        pool.until_verified_by(&look).await;
        let object = pool.now().await;
        assert!(is(&object, "Ready", "True", None), "{fault:?}: {:?}", object.status);
        assert_eq!(pool.only_key().id, key.id, "{fault:?}");
        // Pods are scaled and reported whatever coderd says.
        pool.edit(json!({"replicas": 2})).await;
        pool.until(|pool| status(pool).workload.ready_replicas == Some(2)).await;
        pool.edit(json!({"replicas": 1})).await;
        pool.sim.clear(id);
        pool.until_settled().await;
    }
    // A server that lacks the endpoint: the list tells.
    let id = pool.sim.fault("GET", "/api/v2/provisionerkeys/*", SimFault::html(404), None);
    pool.until_verified_by(&look).await;
    assert!(is(&pool.now().await, "Ready", "True", None));
    pool.sim.clear(id);
    assert_eq!((pool.made(), pool.only_key().id), (1, key.id));
}

#[tokio::test]
async fn a_made_key_is_known_by_its_material_and_only_else_by_the_list() {
    for lacks_details in [false, true] {
        let pool = PoolScene::plane(&KEYS, "material", Mode::Licensed).await;
        if lacks_details {
            pool.sim.fault("GET", "/api/v2/provisionerkeys/*", SimFault::html(404), Some(1));
        }
        pool.make(json!({})).await;
        pool.until_ready().await;
        assert_eq!(pool.made(), 1, "lacks details: {lacks_details}");
        let mut calls = pool.sim.requests();
        calls.retain(|entry| entry.path.contains("/provisionerkeys"));
        let creation = calls.iter().position(|entry| entry.method == "POST").unwrap();
        let next: Vec<_> = calls[creation + 1..].iter().take(2).map(|entry| entry.path.as_str()).collect();
        assert!(next[0].starts_with("/api/v2/provisionerkeys/"), "{next:?}");
        assert_eq!(next[1].starts_with("/api/v2/organizations/"), lacks_details, "{next:?}");
    }
}

#[tokio::test]
async fn a_rate_limit_is_said_and_heeded() {
    let pool = PoolScene::plane(&KEYS, "material", Mode::Licensed).await;
    let path = "/api/v2/organizations/*/provisionerkeys";
    let limited = SimFault::rate_limited(Duration::from_secs(2));
    let id = pool.sim.fault("POST", path, limited, None);
    pool.make(json!({})).await;
    let object = pool.until_condition("ProvisionerKeyReady", "False", "RateLimited").await;
    assert_eq!(
        message(&object, "ProvisionerKeyReady"),
        "Coder API rate limited while reconciling provisioner key"
    );
    let (mark, made) = (pool.sim.mark(), pool.made());
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(pool.made() - made <= 4, "{} calls in 6 s", pool.made() - made);
    let calls = pool.sim.since(mark).iter().filter(|entry| entry.path.contains("organizations")).count();
    assert!(calls <= 20, "{calls}");
    pool.sim.clear(id);
    pool.until_ready().await;
    pool.assert_consistent(&[]).await;
}

#[tokio::test]
async fn what_coderd_says_against_a_key_is_told() {
    let pool = PoolScene::plane(&KEYS, "material", Mode::Licensed).await;
    let path = "/api/v2/organizations/*/provisionerkeys";
    for (code, reason) in [(500, "ServerError"), (403, "Forbidden")] {
        let id = pool.sim.fault("POST", path, SimFault::status(code, "something is wrong", ""), None);
        let name = format!("pool-{code}");
        pool.make_named(&name, json!({})).await;
        let object = pool.until_condition_of(&name, "ProvisionerKeyReady", "False", Some(reason)).await;
        assert!(message(&object, "ProvisionerKeyReady").contains("something is wrong"), "{object:?}");
        assert!(condition(&object, "Ready").is_some_and(|said| said.status == "False"));
        pool.sim.clear(id);
        pool.until_ready_named(&name).await;
    }
}
