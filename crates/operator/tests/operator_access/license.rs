//! The license of a Secret is applied, followed, restored and explained.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::controlplane::coderd::license::hash;
use coder_k8s_testbed::{
    Behaviour, Rule,
    codersim::{CoderSim, Mode, SimFault},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use coder_k8s_scenes::{
    coderd::{CoderdScene, license, uuid},
    scene::{condition, message, status},
};

use crate::OPERATOR;

#[tokio::test]
async fn without_a_reference_nothing_is_sent() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.plane(json!({})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let plane = coder.until_condition("LicenseApplied", "Unknown", "Pending").await;
    assert_eq!(condition(&plane, "Ready").unwrap().status, "True");
    assert_eq!(coder.sent(), 0);
}

#[tokio::test]
async fn a_license_waits_until_a_pod_is_ready_and_is_then_sent_once() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    let rule = || Rule::namespace(&coder.scene.namespace);
    coder.scene.node().behave(rule(), Behaviour::Unready);
    let text = license(1);
    // Blanks around it do not count; the key is `license` unless given.
    coder.secret_text("license", "license", &format!("  {}\n\n", text.expose_secret())).await;
    coder.plane(json!({"licenseSecretRef": {"name": "license"}})).await;
    coder.until_condition("LicenseApplied", "False", "Pending").await;
    assert_eq!(coder.sim.requests().len(), 0, "nobody is asked before a pod is ready");

    coder.scene.node().behave(rule(), Behaviour::Ready);
    let plane = coder.scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "LicenseApplied").unwrap().reason, "Applied");
    let said = status(&plane);
    assert_eq!(said.license_last_applied_hash, Some(hash(text.expose_secret())));
    assert!(said.license_last_applied.is_some());
    let shown = said.license.unwrap();
    assert_eq!((shown.id, shown.uuid), (Some(1), Some(uuid(1))));
    assert!(
        shown.days_left.is_some() && shown.expires.is_some() && shown.account.is_some(),
        "{:?}",
        plane.status
    );
    assert_eq!(said.operator_token_secret_ref.unwrap().name, "token");
    coder.until_verified().await;
    assert_eq!(coder.sent(), 1, "verified, not sent again");
    let plane = coder.scene.until_exists::<CoderControlPlane>("coder").await;
    assert_eq!(message(&plane, "LicenseApplied"), "coderd holds the license of the Secret", "stable words");
}

#[tokio::test]
async fn coderd_is_called_by_http_inside_the_cluster_even_when_it_serves_https() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.secret("license", "license", &license(1)).await;
    let tls = json!({"licenseSecretRef": {"name": "license"}, "tls": {"secretNames": ["cert"]}, "service": {"port": 443}});
    coder.plane(tls).await;
    let plane = coder.scene.until_ready("coder").await;
    let namespace = &coder.scene.namespace;
    assert_eq!(status(&plane).url, Some(format!("https://coder.{namespace}.svc.cluster.local:443")));
    assert_eq!(coder.sent(), 1);
}

#[tokio::test]
async fn a_license_that_somebody_deletes_is_restored_though_another_is_there() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.sim.add_license(&license(9));
    coder.licensed_plane(&license(1)).await;
    coder.scene.until_ready("coder").await;
    let ours = coder.sim.licenses().into_iter().find(|l| l.uuid == uuid(1)).unwrap();
    coder.sim.delete_license(ours.id);
    let back = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let all = coder.installed();
        if all.contains(&uuid(1)) { Ok(()) } else { Err(format!("{all:?}")) }
    });
    back.await.unwrap();
    assert_eq!(coder.sent(), 2);
    assert!(coder.installed().contains(&uuid(9)));
}

#[tokio::test]
async fn a_reset_of_the_licenses_is_made_good() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.licensed_plane(&license(1)).await;
    coder.scene.until_ready("coder").await;
    for license in coder.sim.licenses() {
        coder.sim.delete_license(license.id);
    }
    let back = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let all = coder.installed();
        if all == [uuid(1)] { Ok(()) } else { Err(format!("{all:?}")) }
    });
    back.await.unwrap();
}

#[tokio::test]
async fn a_new_value_is_applied_beside_the_old_one_and_going_back_costs_nothing() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    let (first, second) = (license(1), license(2));
    coder.licensed_plane(&first).await;
    coder.scene.until_ready("coder").await;
    let applied = async |text: &SecretString| {
        coder.secret("license", "license", text).await;
        let expected = Some(hash(text.expose_secret()));
        let plane = coder
            .scene
            .until("coder", |plane: &CoderControlPlane| status(plane).license_last_applied_hash == expected)
            .await;
        assert_eq!(condition(&plane, "LicenseApplied").unwrap().status, "True");
    };
    applied(&second).await;
    assert_eq!(coder.installed(), [uuid(1), uuid(2)], "what was there stays");
    applied(&first).await;
    assert_eq!(coder.sent(), 2, "it is there already");
    assert_eq!(status(&coder.scene.until_exists("coder").await).license.unwrap().uuid, Some(uuid(1)));
}

#[tokio::test]
async fn a_replaced_license_goes_when_asked_for_and_others_stay() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.sim.add_license(&license(9));
    coder.secret("license", "license", &license(1)).await;
    coder.plane(json!({"licenseSecretRef": {"name": "license"}, "license": {"removeReplaced": true}})).await;
    coder.scene.until_ready("coder").await;
    coder.secret("license", "license", &license(2)).await;
    let moved = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let all = coder.installed();
        if all == [uuid(9), uuid(2)] { Ok(()) } else { Err(format!("{all:?}")) }
    });
    moved.await.unwrap();
    let log = coder.sim.requests();
    let sent = log.iter().rposition(|entry| entry.is("POST", "/api/v2/licenses")).unwrap();
    let deleted = log.iter().position(|entry| entry.is("DELETE", "/api/v2/licenses")).unwrap();
    assert!(sent < deleted, "its successor was accepted first");
    coder.scene.until_ready("coder").await;
}

#[tokio::test]
async fn a_refused_license_is_sent_once_a_value_and_version() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.secret_text("license", "license", "not.a.license").await;
    coder.plane(json!({"licenseSecretRef": {"name": "license"}})).await;
    let plane = coder.until_condition("LicenseApplied", "False", "InvalidLicense").await;
    assert_eq!(condition(&plane, "Stalled").unwrap().status, "True");
    assert_eq!(condition(&plane, "Ready").unwrap().reason, "LicenseRefused");
    coder.until_verified().await;
    coder.until_verified().await;
    assert_eq!(coder.sent(), 1);
    // Another server may take it.
    coder.sim.set_version("v2.99.0");
    coder.until_verified().await;
    coder.until_verified().await;
    assert_eq!(coder.sent(), 2);
    // Another value.
    coder.secret("license", "license", &license(1)).await;
    coder.scene.until_ready("coder").await;
    assert_eq!(coder.sent(), 3);
}

#[tokio::test]
async fn a_server_without_licenses_is_a_settled_state() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Agpl).await;
    coder.licensed_plane(&license(1)).await;
    let plane = coder.until_condition("LicenseApplied", "False", "NotSupported").await;
    assert_eq!(condition(&plane, "Stalled").unwrap().status, "True");
    assert_eq!(status(&plane).license_last_applied_hash, None);
    assert_eq!(coder.sent(), 0);
    let plane = coder
        .scene
        .until("coder", |p: &CoderControlPlane| status(p).license_tier.as_deref() == Some("none"))
        .await;
    assert_eq!(status(&plane).external_provisioner_daemons_entitlement.as_deref(), Some("not_entitled"));
}

#[tokio::test]
async fn a_missing_or_empty_secret_is_named_and_its_coming_noticed() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.plane(json!({"licenseSecretRef": {"name": "license", "key": "jwt"}})).await;
    let plane = coder.until_condition("LicenseApplied", "False", "SecretMissing").await;
    assert!(message(&plane, "LicenseApplied").contains("Secret license"), "{plane:?}");
    assert_eq!(condition(&plane, "Stalled").unwrap().status, "False", "it may come by itself");
    for (text, part) in [("   \n", "is empty")] {
        coder.secret_text("license", "jwt", text).await;
        let plane = coder
            .scene
            .until("coder", |p: &CoderControlPlane| message(p, "LicenseApplied").contains(part))
            .await;
        assert_eq!(condition(&plane, "LicenseApplied").unwrap().reason, "SecretMissing");
    }
    coder.secret("license", "jwt", &license(1)).await;
    coder.scene.until_ready("coder").await;
    assert_eq!(coder.sent(), 1);
}

#[tokio::test]
async fn removing_the_reference_leaves_the_license_and_what_is_known_of_it() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.licensed_plane(&license(1)).await;
    coder.scene.until_ready("coder").await;
    coder.scene.spec("coder", json!({"licenseSecretRef": null})).await;
    let plane = coder.until_condition("LicenseApplied", "Unknown", "Pending").await;
    assert!(status(&plane).license_last_applied_hash.is_some());
    assert_eq!(coder.installed(), [uuid(1)]);
    coder.scene.spec("coder", json!({"licenseSecretRef": {"name": "license"}})).await;
    coder.scene.until_ready("coder").await;
    assert_eq!(coder.sent(), 1);
}

#[tokio::test]
async fn the_end_of_a_license_is_warned_about_in_condition_event_and_metric() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    let soon = CoderSim::license().id(&uuid(1)).expires_in(Duration::from_hours(6 * 24)).build();
    coder.licensed_plane(&soon).await;
    let plane = coder.until_condition("LicenseExpiring", "True", "ExpiresIn7Days").await;
    assert_eq!(status(&plane).license.unwrap().days_left, Some(5));
    coder.scene.until_ready("coder").await;
    let told = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let all = coder.scene.events("coder").await;
        if all.contains(&("Warning".into(), "ExpiresIn7Days".into())) {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    });
    told.await.unwrap();
    let (_, metrics) = coder.scene.operator().get("--metrics-addr", "/metrics").await;
    let line = format!(
        "coder_k8s_license_expires_timestamp_seconds{{namespace=\"{}\",name=\"coder\"}}",
        coder.scene.namespace
    );
    assert!(metrics.contains(&line), "{metrics}");
}

#[tokio::test]
async fn a_removal_that_fails_is_tried_again() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    coder.secret("license", "license", &license(1)).await;
    coder.plane(json!({"licenseSecretRef": {"name": "license"}, "license": {"removeReplaced": true}})).await;
    coder.scene.until_ready("coder").await;
    coder.sim.fault("DELETE", "/api/v2/licenses/**", SimFault::status(500, "On purpose.", ""), Some(2));
    coder.secret("license", "license", &license(2)).await;
    let gone = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
        let all = coder.installed();
        if all == [uuid(2)] { Ok(()) } else { Err(format!("{all:?}")) }
    });
    gone.await.unwrap();
    let plane = coder
        .scene
        .until("coder", |plane: &CoderControlPlane| {
            status(plane).license.is_some_and(|l| l.replaces.is_none())
        })
        .await;
    assert_eq!(condition(&plane, "LicenseApplied").unwrap().status, "True");
    assert_eq!(coder.sent(), 2);
}

#[tokio::test]
async fn one_that_somebody_else_installs_at_the_same_moment_is_recognised() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Unlicensed).await;
    // The list does not show it yet; coderd has it when it is sent.
    coder.sim.fault(
        "GET",
        "/api/v2/licenses",
        SimFault::Answer {
            status: 200,
            headers: vec![("Content-Type".into(), "application/json".into())],
            body: "[]".into(),
        },
        Some(1),
    );
    coder.sim.add_license(&license(1));
    coder.licensed_plane(&license(1)).await;
    let plane = coder.scene.until_ready("coder").await;
    assert_eq!(status(&plane).license.unwrap().uuid, Some(uuid(1)));
    assert_eq!((coder.sent(), coder.installed()), (1, vec![uuid(1)]));
}

#[tokio::test]
async fn one_failed_call_is_forgotten_as_soon_as_the_next_succeeds() {
    let coder = CoderdScene::new(&OPERATOR, "license", Mode::Licensed).await;
    coder.plane(json!({})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let fault =
        coder.sim.fault("GET", "/api/v2/entitlements", SimFault::status(500, "On purpose.", ""), None);
    coder.until_condition("OperatorAccessReady", "False", "ServerError").await;
    coder.sim.clear(fault);
    let since = std::time::Instant::now();
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert!(since.elapsed() < Duration::from_secs(8), "before the next verification: {:?}", since.elapsed());
}
