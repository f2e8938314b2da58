//! A proxy that is deleted leaves nothing in coderd, or says what it leaves.

use coder_k8s_api::{CoderControlPlane, CoderWorkspaceProxy};
use coder_k8s_coderd::{Connector, Settings, Target};
use coder_k8s_testbed::{codersim::SimFault, eventually};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    proxy::{ProxyScene, SECRET, is},
};

use crate::OPERATOR;

async fn delete(site: &ProxyScene) {
    site.scene().delete::<CoderWorkspaceProxy>("eu").await;
    site.scene().until_gone::<CoderWorkspaceProxy>("eu").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_proxy_is_deregistered_and_its_token_is_void() {
    let site = ProxyScene::ready(&OPERATOR, "gone", json!({})).await;
    let only = site.assert_consistent().await;
    delete(&site).await;
    assert_eq!(site.registrations().len(), 0);
    let nobody = Connector::new(Settings::default()).client(&Target::new(site.sim().url()), None).unwrap();
    let refused = nobody.prove_proxy_token(&only.token).await.unwrap_err();
    assert_eq!(refused.reason().as_str(), "Unauthenticated");
    site.scene().until_gone::<Secret>(SECRET).await;
    // The name is free again.
    site.make(json!({})).await;
    assert_ne!(site.assert_consistent().await.id, only.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_for_a_moment_holds_the_deletion_up() {
    let site = ProxyScene::ready(&OPERATOR, "away", json!({})).await;
    let fault =
        site.sim().fault("DELETE", "/api/v2/workspaceproxies/*", SimFault::status(500, "x", ""), None);
    site.scene().delete::<CoderWorkspaceProxy>("eu").await;
    let going = site.until(|proxy| is(proxy, "Ready", "False", Some("Deleting"))).await;
    assert!(is(&going, "Reconciling", "True", None));
    site.sim().clear(fault);
    site.scene().until_gone::<CoderWorkspaceProxy>("eu").await;
    assert_eq!(site.registrations().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_deregistered_in_time_is_named() {
    let site = ProxyScene::ready(&OPERATOR, "named", json!({})).await;
    let only = site.assert_consistent().await;
    site.sim().fault("*", "/api/v2/workspaceproxies/**", SimFault::status(500, "x", ""), None);
    site.sim().fault("*", "/api/v2/workspaceproxies", SimFault::status(500, "x", ""), None);
    delete(&site).await;
    let told = eventually(PATIENCE, || async {
        let events = site.events("ProxyAbandoned").await;
        if events.iter().any(|text| text.contains(&only.id) && text.contains("eu")) {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    });
    told.await.unwrap();
    assert_eq!(site.registrations().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_control_plane_a_proxy_still_goes() {
    let site = ProxyScene::ready(&OPERATOR, "orphan", json!({})).await;
    site.scene().delete::<CoderControlPlane>("coder").await;
    site.scene().until_gone::<CoderControlPlane>("coder").await;
    delete(&site).await;
    // The token and the address are on record, and the same deployment answers.
    assert_eq!(site.registrations().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_never_began_goes_at_once() {
    let site = ProxyScene::plane(&OPERATOR, "early", coder_k8s_testbed::codersim::Mode::Unlicensed).await;
    site.make(json!({})).await;
    site.until_condition("Entitled", "False", "NotEntitled").await;
    delete(&site).await;
    assert_eq!(site.asked("*"), 0);
}
