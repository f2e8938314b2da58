//! What a tool that follows kstatus sees of a pool, at every moment.

use std::sync::Arc;

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::{Behaviour, Rule, codersim::Mode};
use futures::TryStreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use serde_json::json;

use coder_k8s_scenes::pool::{PoolScene, condition, is, status};

use crate::KEYS;

fn says(pool: &CoderProvisioner, type_: &str) -> bool {
    condition(pool, type_).is_some_and(|said| said.status == "True")
}

#[tokio::test]
async fn conditions_never_contradict_each_other_while_a_pool_comes_changes_and_goes() {
    let pool = PoolScene::plane(&KEYS, "kstatus", Mode::Licensed).await;
    let seen: Arc<Mutex<Vec<CoderProvisioner>>> = Arc::default();
    let watching = {
        let (seen, api) = (seen.clone(), pool.scene.api::<CoderProvisioner>());
        tokio::spawn(async move {
            let all = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
            all.try_for_each(|object| {
                seen.lock().push(object);
                std::future::ready(Ok(()))
            })
            .await
        })
    };
    pool.make(json!({"tags": {"a": "1"}})).await;
    pool.assert_consistent(&[("a", "1")]).await;
    pool.edit(json!({"tags": {"a": "2"}})).await;
    pool.assert_consistent(&[("a", "2")]).await;
    pool.scene.delete::<CoderProvisioner>("pool").await;
    pool.scene.until_gone::<CoderProvisioner>("pool").await;
    watching.abort();
    let seen = seen.lock();
    assert!(seen.len() > 5, "{}", seen.len());
    for object in &*seen {
        let said = format!("{:?}", object.status);
        assert!(!(says(object, "Stalled") && says(object, "Reconciling")), "{said}");
        assert!(!(says(object, "Ready") && says(object, "Reconciling")), "{said}");
        let observed = status(object).workload.observed_generation == object.metadata.generation;
        if observed && is(object, "Ready", "True", None) && object.metadata.deletion_timestamp.is_none() {
            let expected = coder_k8s_core::provisioner::keys::tags::hash(&object.spec.tags);
            assert_eq!(status(object).tags_hash, Some(expected), "ready with the key of another spec");
            assert!(status(object).pending_key.is_none());
        }
    }
}

#[tokio::test]
async fn a_bad_image_fails_after_its_deadline_and_recovers() {
    let pool = PoolScene::ready(&KEYS, "kstatus", json!({"progressDeadlineSeconds": 3})).await;
    let bad = "example.test/bad:1";
    pool.scene.node().behave(Rule::namespace(&pool.scene.namespace).image(bad), Behaviour::ImagePullBackOff);
    pool.edit(json!({"image": bad})).await;
    let object = pool.until_condition("Stalled", "True", "ProgressDeadlineExceeded").await;
    assert!(is(&object, "Ready", "False", Some("ProgressDeadlineExceeded")));
    assert!(is(&object, "ProvisionerKeyReady", "True", None));
    assert!(is(&object, "DeploymentReady", "True", None), "the old pod still serves");
    pool.edit(json!({"image": null})).await;
    pool.until_ready().await;
    assert_eq!(pool.made(), 1);
}
