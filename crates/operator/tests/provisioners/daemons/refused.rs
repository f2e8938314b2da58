//! Daemons that coderd does not let in: what is said, and what is done about it.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode, SimFault},
    eventually,
};
use kube::ResourceExt;
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    daemons::DaemonScene,
    pool::{PoolScene, is},
    scene::status,
};

use crate::DAEMONS;

#[tokio::test]
async fn a_dead_key_is_found_out_by_its_daemons_and_replaced() {
    let mut crew = DaemonScene::new(&DAEMONS, "refused", json!({})).await;
    let old = crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    let (checksum, key) = (crew.pool.checksum().await, crew.pool.only_key());
    let refusal = SimFault::status(400, "Not now.", "");
    let fault = crew.pool.sim.fault("POST", "/api/v2/organizations/*/provisionerkeys", refusal, None);
    crew.pool.sim.delete_key(&key.name);
    let message = crew.until_condition("False", "KeyNotAccepted").await;
    assert!(message.contains("does not accept the key"), "{message}");
    crew.pool.sim.clear(fault);
    crew.pool.assert_consistent(&[]).await;
    assert_ne!(crew.pool.checksum().await, checksum, "the pods are rolled");
    assert_ne!(crew.pool.only_key().id, key.id);
    let new = crew.until_pods(1).await;
    assert_ne!(new, old);
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
}

#[tokio::test]
async fn daemons_that_gave_up_without_a_license_are_started_anew_once_it_is_back() {
    let pool = PoolScene::plane(&DAEMONS, "refused", Mode::Unlicensed).await;
    let number = pool.sim.add_license(&CoderSim::license().build());
    pool.scene
        .until("coder", |plane: &CoderControlPlane| {
            status(plane).external_provisioner_daemons_entitlement.as_deref() == Some("entitled")
        })
        .await;
    let mut crew = DaemonScene::of(pool, json!({"replicas": 2})).await;
    let old = crew.connect_all().await;
    crew.until_condition("True", "Connected").await;

    crew.pool.sim.delete_license(number);
    crew.pool.until_condition("ExternalProvisionersEntitled", "False", "NotEntitled").await;
    crew.until_condition("True", "Connected").await;
    crew.all_leave();
    let message = crew.until_condition("False", "NotEntitled").await;
    assert!(message.contains("install a Premium license"), "{message}");
    assert!(is(&crew.pool.now().await, "Ready", "True", None), "what runs, runs");
    assert_eq!(crew.until_pods(2).await, old, "nobody is restarted for nothing");

    crew.pool.sim.add_license(&CoderSim::license().build());
    let replaced = eventually(PATIENCE, || async {
        let pods: Vec<_> = crew.pods().await.iter().map(ResourceExt::name_any).collect();
        if pods.len() == 2 && pods.iter().all(|pod| !old.contains(pod)) {
            Ok(pods)
        } else {
            Err(format!("{pods:?}"))
        }
    });
    let new = replaced.await.unwrap();
    // Nobody connects now either, which is another matter: once is enough.
    crew.until_condition("False", "NoneConnected").await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    let told = crew.pool.events("DaemonsRestarted").await;
    assert!(told.len() == 1 && old.iter().all(|pod| told[0].contains(pod)), "{told:?}");
    assert_eq!(crew.until_pods(2).await, new);
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
}

#[tokio::test]
async fn a_version_that_coderd_refuses_is_named() {
    let mut crew =
        DaemonScene::new(&DAEMONS, "refused", json!({"image": "example.test/coder:v2.40.0"})).await;
    let message = crew.until_condition("False", "VersionRefused").await;
    assert!(message.contains("example.test/coder:v2.40.0 is newer than coderd v2.36.1"), "{message}");
    crew.pool.edit(json!({"image": null})).await;
    crew.pool.until_ready().await;
    crew.until_pods(1).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
}

#[tokio::test]
async fn one_name_for_all_daemons_is_told() {
    let env = json!([{"name": "CODER_PROVISIONER_DAEMON_NAME", "value": "mine"}]);
    let mut crew = DaemonScene::new(&DAEMONS, "refused", json!({"replicas": 2, "extraEnv": env})).await;
    crew.connect("mine").await;
    let message = crew.until_condition("False", "DuplicateName").await;
    assert!(message.contains("all call their daemon mine"), "{message}");
    crew.pool.edit(json!({"extraEnv": null})).await;
    crew.pool.until_ready().await;
    crew.until_pods(2).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
}
