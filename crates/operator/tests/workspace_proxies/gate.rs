//! Without a license for proxies nothing is begun, and nothing that runs is taken away.

use std::time::Duration;

use coder_k8s_testbed::codersim::{CoderSim, Mode, SimFault};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;

use coder_k8s_scenes::proxy::{CHILD, ProxyScene, is, message};

use crate::OPERATOR;

#[tokio::test(flavor = "multi_thread")]
async fn an_unlicensed_proxy_waits_and_begins_when_the_license_comes() {
    let site = ProxyScene::plane(&OPERATOR, "unlicensed", Mode::Unlicensed).await;
    site.make(json!({})).await;
    let proxy = site.until_condition("Entitled", "False", "NotEntitled").await;
    assert!(message(&proxy, "Entitled").contains("workspace proxies"));
    assert!(is(&proxy, "Ready", "False", Some("NotEntitled")) && is(&proxy, "Stalled", "True", None));
    assert!(site.scene().absent::<Deployment>(CHILD).await);
    assert_eq!(site.asked("*"), 0, "coderd is not asked in vain");
    site.sim().add_license(&CoderSim::license().build());
    site.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_lost_its_license_goes_on_and_is_updated() {
    let site = ProxyScene::ready(&OPERATOR, "lapsed", json!({})).await;
    for license in site.sim().licenses() {
        site.sim().delete_license(license.id);
    }
    let proxy = site.until_condition("Entitled", "False", "NotEntitled").await;
    assert!(is(&proxy, "Registered", "True", None), "{:?}", proxy.status);
    site.edit(json!({"replicas": 2})).await;
    site.scene()
        .until(CHILD, |made: &Deployment| made.status.as_ref().and_then(|s| s.ready_replicas) == Some(2))
        .await;
    assert_eq!((site.registrations().len(), site.asked("PATCH"), site.asked("DELETE")), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_without_licenses_is_told_apart() {
    let site = ProxyScene::plane(&OPERATOR, "agpl", Mode::Agpl).await;
    let url = format!("http://coder.{}.svc.cluster.local", site.scene().namespace);
    site.coder.secret("creds", "token", &site.sim().owner_token()).await;
    let spec = json!({"bootstrap": {"coderURL": url, "credentialsSecretRef": {"name": "creds"}}});
    site.make_as("eu", spec).await;
    let proxy = site.until_condition("Entitled", "False", "NotSupported").await;
    assert!(message(&proxy, "Entitled").contains("enterprise build"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_tells_its_proxies_of_a_build_without_licenses() {
    let site = ProxyScene::plane(&OPERATOR, "agpl", Mode::Agpl).await;
    site.make(json!({})).await;
    let proxy = site.until_condition("Entitled", "False", "NotSupported").await;
    assert!(message(&proxy, "Entitled").contains("ghcr.io/coder/coder"));
    assert!(is(&proxy, "Stalled", "True", Some("NotSupported")), "{:?}", proxy.status);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_coderd_does_not_accept_is_made_again_ever_more_rarely() {
    let site = ProxyScene::plane(&OPERATOR, "refused", Mode::Licensed).await;
    let refusal = SimFault::status(401, "Invalid external proxy token", "");
    site.sim().fault("GET", "/api/v2/workspaceproxies/me/crypto-keys", refusal, None);
    site.make(json!({})).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let made = site.asked("POST") + site.asked("PATCH");
    assert!((2..=6).contains(&made), "{made} in 10 s");
    site.sim().clear_faults();
    // An edit is tried at once.
    site.edit(json!({"replicas": 2})).await;
    site.until_ready().await;
    assert_eq!(site.registrations().len(), 1);
}
