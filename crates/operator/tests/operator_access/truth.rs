//! A condition is True only for inputs that were verified. The monitor of each scene judges every version of the object
//! besides (see `scenes::truth`), so that a claim that lasted for a moment fails these tests too.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_scenes::{
    coderd::{CoderdScene, license, uuid},
    scene::{condition, message, status},
};
use coder_k8s_testbed::codersim::{CoderSim, Mode};
use serde_json::json;

use crate::OPERATOR;

fn is(plane: &CoderControlPlane, type_: &str) -> (String, String) {
    let found = condition(plane, type_).unwrap_or_else(|| panic!("no {type_}"));
    (found.status, found.reason)
}

async fn licensed(prefix: &str) -> CoderdScene {
    let coder = CoderdScene::new(&OPERATOR, prefix, Mode::Unlicensed).await;
    coder.licensed_plane(&license(1)).await;
    coder.scene.until_ready("coder").await;
    coder
}

#[tokio::test]
async fn a_license_reference_to_nothing_is_never_called_applied() {
    let coder = licensed("truth").await;
    for round in 0..4 {
        coder.scene.spec("coder", json!({"licenseSecretRef": {"name": format!("none-{round}")}})).await;
        coder.until_condition("LicenseApplied", "False", "SecretMissing").await;
        coder.scene.spec("coder", json!({"licenseSecretRef": {"name": "license"}})).await;
        coder.scene.until_ready("coder").await;
    }
    assert_eq!(coder.sent(), 1);
}

#[tokio::test]
async fn a_new_license_is_not_called_applied_while_coderd_is_away() {
    let coder = licensed("truth").await;
    coder.sim.stop().await;
    coder.secret("license", "license", &license(2)).await;
    let plane = coder
        .scene
        .until("coder", |plane: &CoderControlPlane| {
            condition(plane, "LicenseApplied").is_some_and(|found| found.status != "True")
        })
        .await;
    assert_ne!(is(&plane, "Ready").0, "True");
    // Another field says nothing about the license, and the old value is as true as before.
    coder.scene.spec("coder", json!({"replicas": 2})).await;
    coder.secret("license", "license", &license(1)).await;
    coder.until_condition("LicenseApplied", "True", "Applied").await;
    coder.secret("license", "license", &license(2)).await;
    coder.sim.restart().await.unwrap();
    coder.until_condition("LicenseApplied", "True", "Applied").await;
    coder.scene.until("coder", |_: &CoderControlPlane| coder.installed().contains(&uuid(2))).await;
}

#[tokio::test]
async fn an_edit_of_something_else_changes_nothing_while_coderd_is_away() {
    let coder = licensed("truth").await;
    let before = coder.scene.until_ready("coder").await;
    coder.sim.stop().await;
    coder.scene.spec("coder", json!({"replicas": 2})).await;
    let after = coder.scene.until_observed("coder").await;
    for type_ in ["LicenseApplied", "OperatorAccessReady"] {
        let (before, after) = (condition(&before, type_).unwrap(), condition(&after, type_).unwrap());
        // A server that was asked meanwhile and is away is worth a condition. That is no doubt about the token.
        if type_ == "OperatorAccessReady" && after.reason == "Unreachable" {
            continue;
        }
        assert_eq!(
            (&*after.status, &after.last_transition_time),
            ("True", &before.last_transition_time),
            "{after:?}, before: {before:?}"
        );
    }
    assert_eq!(status(&after).operator_access_ready, Some(true), "what was verified stays so");
}

#[tokio::test]
async fn a_license_that_changes_while_access_is_disabled_is_not_called_applied() {
    let coder = licensed("truth").await;
    coder.scene.spec("coder", json!({"operatorAccess": {"disabled": true}})).await;
    coder.scene.until_condition("coder", "OperatorAccessReady", "False", None).await;
    coder.secret("license", "license", &license(2)).await;
    let plane = coder
        .scene
        .until("coder", |plane: &CoderControlPlane| {
            condition(plane, "LicenseApplied").is_some_and(|found| found.status != "True")
        })
        .await;
    assert!(message(&plane, "LicenseApplied").contains("operatorAccess.disabled"), "{plane:?}");
}

#[tokio::test]
async fn a_token_that_changes_while_coderd_is_away_is_not_called_accepted() {
    let coder = licensed("truth").await;
    coder.sim.stop().await;
    coder.secret_text("token", "token", "wrong-token1234567890123456789012").await;
    coder
        .scene
        .until("coder", |plane: &CoderControlPlane| {
            condition(plane, "OperatorAccessReady").is_some_and(|found| found.status != "True")
        })
        .await;
    coder.sim.restart().await.unwrap();
    coder.until_condition("OperatorAccessReady", "False", "Unauthenticated").await;
}

#[tokio::test]
async fn a_token_reference_to_nothing_is_never_called_accepted() {
    let coder = licensed("truth").await;
    coder.scene.spec("coder", json!({"operatorAccess": {"tokenSecretRef": {"name": "none"}}})).await;
    coder.until_condition("OperatorAccessReady", "False", "SecretMissing").await;
    coder.scene.spec("coder", json!({"operatorAccess": {"tokenSecretRef": {"name": "token"}}})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
}

#[tokio::test]
async fn token_and_license_never_follow_an_edited_address_to_another_deployment() {
    let coder = licensed("truth").await;
    let elsewhere = CoderSim::start(Mode::Unlicensed).await.unwrap();
    coder.scene.host("edited.test", elsewhere.address());
    coder.scene.spec("coder", json!({"operatorAccess": {"apiURL": "http://edited.test"}})).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "DeploymentChanged").await;
    assert!(message(&plane, "OperatorAccessReady").contains("token"), "{plane:?}");
    // Whatever else is edited or touched: the token belongs to the other deployment.
    coder.scene.spec("coder", json!({"replicas": 2})).await;
    coder.secret("license", "license", &license(2)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sent = |sim: &CoderSim| sim.requests().iter().filter(|entry| entry.credential.is_some()).count();
    assert_eq!((sent(&elsewhere), elsewhere.licenses().len()), (0, 0));
    // A token of that deployment is the way out, and the license follows it.
    coder.secret("token", "token", &elsewhere.owner_token()).await;
    coder.scene.until_ready("coder").await;
    assert_eq!(elsewhere.licenses()[0].uuid, uuid(2));
    let plane = coder.scene.until_ready("coder").await;
    assert_eq!(status(&plane).deployment_id, Some(elsewhere.deployment_id()));
}

#[tokio::test]
async fn a_database_that_was_replaced_gets_neither_token_nor_license() {
    let coder = licensed("truth").await;
    coder.sim.reset_backend();
    coder.until_condition("OperatorAccessReady", "False", "DeploymentChanged").await;
    coder.scene.spec("coder", json!({"replicas": 2})).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(coder.sim.licenses().is_empty());
    coder.secret("token", "token", &coder.sim.owner_token()).await;
    coder.scene.until_ready("coder").await;
}
