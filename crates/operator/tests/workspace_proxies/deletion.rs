//! A proxy that is deleted leaves nothing in coderd, or says what it leaves.

use std::time::{Duration, Instant};

use coder_k8s_api::{CoderControlPlane, CoderWorkspaceProxy};
use coder_k8s_coderd::{Connector, Endpoint, Settings};
use coder_k8s_testbed::{codersim::SimFault, eventually};
use futures::{StreamExt, stream};
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
    let nobody =
        Connector::new(Settings::on_loopback()).client(&Endpoint::new(site.sim().url()), None).unwrap();
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

/// One row for each place in which a clean-up can fail; every way to fail is on virtual time in `core::cleanup`.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_coderd_answers_a_proxy_goes_by_its_deadline() {
    let (all, one) = ("/api/v2/workspaceproxies", "/api/v2/workspaceproxies/*");
    let rows = [
        ("GET", all, SimFault::rate_limited(Duration::from_secs(1_000_000_000))),
        ("DELETE", one, SimFault::status(403, "no", "")),
        ("DELETE", one, SimFault::rate_limited(Duration::from_secs(u64::MAX))),
        ("*", "/api/v2/buildinfo", SimFault::Latency(Duration::from_mins(1))),
        ("*", "/**", SimFault::Reset),
    ];
    let all = rows.into_iter().map(|(method, path, fault)| async move {
        let row = format!("{method} {path} {fault:?}");
        let site = ProxyScene::ready(&OPERATOR, "deadline", json!({})).await;
        let only = site.assert_consistent().await;
        let mark = site.sim().mark();
        site.sim().fault(method, path, fault, None);
        let deleted = Instant::now();
        delete(&site).await;
        // `--cleanup-timeout` of 6 s, and a busy machine.
        assert!(deleted.elapsed() < Duration::from_secs(25), "{row}: {:?}", deleted.elapsed());
        let told = site.events("ProxyAbandoned").await;
        assert!(told.iter().any(|note| note.contains(&only.id)), "{row}: {told:?}");
        let asked = site.sim().since(mark).iter().filter(|entry| entry.is(method, "/")).count();
        // Three on virtual time; a busy machine may lose one of them within 6 s.
        assert!((2..150).contains(&asked), "{row}: {asked} attempts");
    });
    // A few at a time: the deadlines of other tests on the same operator are as short.
    stream::iter(all).buffer_unordered(3).collect::<Vec<_>>().await;
}
