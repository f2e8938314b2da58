//! Without a license for proxies nothing is begun, and nothing that runs is taken away.

use coder_k8s_testbed::codersim::{CoderSim, Mode};
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
