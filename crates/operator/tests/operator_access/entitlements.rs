//! Tier and entitlements on status, refreshed without churn.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::codersim::{CoderSim, Mode};
use kube::ResourceExt;
use serde_json::json;

use coder_k8s_scenes::{
    coderd::{CoderdScene, uuid},
    scene::{condition, message, status},
};

use crate::OPERATOR;

#[tokio::test]
async fn the_tier_follows_the_licenses_that_coderd_holds_whoever_put_them_there() {
    let coder = CoderdScene::new(&OPERATOR, "tiers", Mode::Unlicensed).await;
    coder.plane(json!({})).await;
    let tier = async |tier: &str, provisioners: &str| {
        let plane = coder
            .scene
            .until("coder", |plane: &CoderControlPlane| status(plane).license_tier.as_deref() == Some(tier))
            .await;
        let said = status(&plane);
        assert_eq!(said.external_provisioner_daemons_entitlement.as_deref(), Some(provisioners), "{tier}");
        assert!(said.entitlements_last_checked.is_some());
        assert_eq!(said.entitlements.unwrap().has_license, tier != "none");
    };
    tier("none", "not_entitled").await;
    let only = |license: &secrecy::SecretString| {
        for old in coder.sim.licenses() {
            coder.sim.delete_license(old.id);
        }
        coder.sim.add_license(license);
    };
    let with = |set: &str| CoderSim::license().id(&uuid(1)).feature_set(set);
    only(&with("enterprise").build());
    tier("enterprise", "entitled").await;
    only(&with("premium").build());
    tier("premium", "entitled").await;
    only(&with("premium").trial().build());
    tier("trial", "entitled").await;
    only(&with("enterprise").in_grace().build());
    tier("enterprise", "grace_period").await;
}

#[tokio::test]
async fn one_call_and_at_most_one_write_a_refresh() {
    let coder = CoderdScene::new(&OPERATOR, "tiers", Mode::Licensed).await;
    coder.plane(json!({})).await;
    coder.scene.until_ready("coder").await;
    coder.until_condition("EntitlementsHealthy", "True", "Healthy").await;
    coder.until_refreshed(1).await;
    let before = coder.scene.requests_in(&coder.scene.namespace).len();
    let mark = coder.sim.mark();
    coder.until_refreshed(4).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let calls = coder.sim.since(mark).iter().filter(|entry| entry.is("GET", "/api/v2/entitlements")).count();
    let all = coder.scene.requests_in(&coder.scene.namespace);
    let later = &all[before..];
    let written = coder_k8s_scenes::writes(later);
    assert!(written.iter().all(|event| event.subresource == "status"), "{written:?}");
    assert!(written.len() <= calls + 1, "{} writes for {calls} calls", written.len());
    assert!(later.iter().all(|event| event.verb != "get"), "nothing is read at rest: {later:?}");
}

#[tokio::test]
async fn what_coderd_warns_about_and_replicas_without_a_license_for_them_are_shown() {
    let coder = CoderdScene::new(&OPERATOR, "tiers", Mode::Unlicensed).await;
    coder.plane(json!({"replicas": 2})).await;
    let plane = coder.until_condition("EntitlementsHealthy", "False", "HighAvailabilityNotEntitled").await;
    assert!(message(&plane, "EntitlementsHealthy").contains("high availability"));
    assert_eq!(coder.scene.until_ready("coder").await.name_any(), "coder", "it is a warning, not a gate");
    coder.sim.add_license(&CoderSim::license().id(&uuid(1)).feature_set("premium").build());
    coder.until_condition("EntitlementsHealthy", "True", "Healthy").await;
}

#[tokio::test]
async fn version_and_identity_of_the_server_are_shown() {
    let coder = CoderdScene::new(&OPERATOR, "tiers", Mode::Unlicensed).await;
    coder.sim.set_version("v2.31.1");
    coder.plane(json!({})).await;
    let plane = coder
        .scene
        .until("coder", |plane: &CoderControlPlane| status(plane).version.as_deref() == Some("v2.31.1"))
        .await;
    assert_eq!(status(&plane).deployment_id, Some(coder.sim.deployment_id()));
    assert!(condition(&plane, "Downgrade").is_none());
}
