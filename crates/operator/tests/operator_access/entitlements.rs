//! Tier and entitlements on status, refreshed without churn.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::codersim::{CoderSim, Mode};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use rustix::process::Signal;
use serde_json::json;

use coder_k8s_scenes::{
    coderd::{CoderdScene, uuid},
    scene::{Scene, condition, message, status},
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

#[tokio::test]
async fn kubectl_get_shows_a_ready_control_plane_in_one_row() {
    let coder = CoderdScene::new(&OPERATOR, "columns", Mode::Unlicensed).await;
    coder.sim.set_version("v2.31.1");
    coder.plane(json!({"image": "coder:v2.31.1"})).await;
    coder.until_condition("EntitlementsHealthy", "True", "Healthy").await;
    let plane = coder.scene.until_ready("coder").await;
    let url = status(&plane).access_url.unwrap();
    let narrow = json!([
        ["Name", "coder"],
        ["Ready", "True"],
        ["Status", "RolledOut"],
        ["Version", "v2.31.1"],
        ["License", "none"],
        ["URL", url],
    ]);
    assert_eq!(coder.scene.row::<CoderControlPlane>("coder", false).await, narrow);
    let wide = json!([
        ["Name", "coder"],
        ["Ready", "True"],
        ["Status", "RolledOut"],
        ["Version", "v2.31.1"],
        ["License", "none"],
        ["URL", url],
        ["Replicas", 1],
        ["Desired", 1],
        ["Image", "coder:v2.31.1"],
        ["Phase", "Ready"],
    ]);
    assert_eq!(coder.scene.row::<CoderControlPlane>("coder", true).await, wide);
}

#[tokio::test]
async fn a_check_that_lies_in_the_future_delays_no_refresh() {
    let coder = CoderdScene::within(Scene::unmanaged("skew").await, Mode::Licensed).await;
    let future = "2999-01-01T00:00:00Z";
    let skew = async || {
        let patch = json!({"status": {"entitlementsLastChecked": future}});
        let api = coder.scene.api::<CoderControlPlane>();
        let plane = api.patch_status("coder", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        assert_eq!(status(&plane).entitlements_last_checked.unwrap().0.to_string(), future);
    };
    let corrected = async || {
        let is_past = |plane: &CoderControlPlane| {
            let checked = status(plane).entitlements_last_checked;
            checked.is_some_and(|checked| checked.0.to_string().as_str() < "2900")
        };
        coder.scene.until("coder", is_past).await
    };
    let mut operator = coder.scene.start(&["--entitlements-interval=2s"]);
    operator.until_leading().await;
    coder.plane(json!({})).await;
    coder.until_condition("EntitlementsHealthy", "True", "Healthy").await;
    corrected().await;
    // Another clock wrote the status while the operator runs.
    skew().await;
    corrected().await;
    coder.until_refreshed(2).await;
    operator.signal(Signal::KILL);
    operator.exit_code().await;
    // And while it does not run. The next one refreshes at once, not after its interval.
    skew().await;
    let before = coder.sim.count("GET", "/api/v2/entitlements");
    let mut operator = coder.scene.start(&["--entitlements-interval=10m", "--verify-interval=10m"]);
    operator.until_leading().await;
    corrected().await;
    assert!(coder.sim.count("GET", "/api/v2/entitlements") > before);
    assert!(operator.runs() && !operator.output().contains("panicked"), "{}", operator.tail());
}
