//! A new license, and an operator that ends, loses an answer or is not alone while it is applied.

use std::{sync::Arc, time::Duration};

use coder_k8s_api::CoderControlPlane;
use futures::TryStreamExt;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::json;

use coder_k8s_scenes::{
    coderd::{license, uuid},
    scene::{condition, status},
    scoped::{NO_LEASE, ScopedScene},
};

/// Somebody else's license.
const FOREIGN: u8 = 99;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_step_of_a_rotation_leaves_exactly_the_new_license() {
    let own = ScopedScene::new("crashes").await;
    own.sim.add_license(&license(FOREIGN));
    let mut victim = own.operator(&NO_LEASE);
    victim.until_leading().await;
    own.licensed_plane(&license(1), json!({"license": {"removeReplaced": true}})).await;
    let mut held = 1;
    for step in [
        "coderd list-licenses",
        "coderd add-license",
        "coderd delete-license",
        "update codercontrolplanes/status",
    ] {
        for when in ["before", "after"] {
            own.until_condition("OperatorAccessReady", "True", None).await;
            own.until_condition("Ready", "True", None).await;
            let (mark, next) = (own.sim.mark(), held + 1);
            victim.faults(&[format!("{when} {step} / exit 1")]);
            own.license(&license(next)).await;
            let code = victim.exit_code().await;
            assert_eq!(code, Some(coder_k8s_engine::client::EXIT_CODE), "{when} {step}");
            victim = own.operator(&NO_LEASE);
            victim.until_leading().await;
            let plane = own.until_applied(&license(next)).await;
            own.until_holds(&[uuid(next), uuid(FOREIGN)]).await;
            assert_eq!(status(&plane).license.unwrap().uuid, Some(uuid(next)), "{when} {step}");
            assert_eq!(condition(&plane, "LicenseApplied").unwrap().status, "True", "{when} {step}");
            // Time for what a storm would bring.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let calls = own.sim.since(mark);
            let sent = calls.iter().filter(|entry| entry.is("POST", "/api/v2/licenses")).count();
            println!("{when} {step}: {} calls, {sent} uploads", calls.len());
            assert_eq!(sent, 1, "{when} {step}: the list shows what was uploaded");
            assert!(calls.len() <= 14, "{when} {step}: {calls:?}");
            held = next;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_record_fails_is_recognised() {
    let own = ScopedScene::new("crashes").await;
    let operator = own.operator(&[]);
    operator.until_leading().await;
    own.licensed_plane(&license(1), json!({})).await;
    let mut held = 1;
    for when in ["before", "after"] {
        for fault in ["status=500", "status=409", "error"] {
            let (mark, next) = (own.sim.mark(), held + 1);
            operator.faults(&[format!("{when} update codercontrolplanes/status / {fault} 3")]);
            own.license(&license(next)).await;
            own.until_applied(&license(next)).await;
            own.until_condition("Ready", "True", None).await;
            let calls = own.sim.since(mark);
            let sent = calls.iter().filter(|entry| entry.is("POST", "/")).count();
            assert_eq!(sent, 1, "{when} {fault}: {calls:?}");
            assert!(calls.len() <= 10, "{when} {fault}: {calls:?}");
            held = next;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_and_outdated_views_never_clear_what_is_known_of_the_license() {
    let own = ScopedScene::new("crashes").await;
    let args = ["--leader-elect=false", "--entitlements-interval=1s", "--verify-interval=6s"];
    let operators = [own.operator(&args), own.operator(&args)];
    own.licensed_plane(&license(1), json!({})).await;
    own.until(|plane| status(plane).license_tier.as_deref() == Some("premium")).await;
    let seen: Arc<Mutex<Vec<CoderControlPlane>>> = Arc::default();
    let watching = {
        let (seen, api) = (seen.clone(), own.planes());
        tokio::spawn(async move {
            let all = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
            all.try_for_each(|plane| {
                seen.lock().push(plane);
                std::future::ready(Ok(()))
            })
            .await
        })
    };
    for n in 2..=6 {
        for (operator, when) in operators.iter().zip(["before", "after"]) {
            operator.faults(&[format!("{when} update codercontrolplanes/status / status=409 3")]);
        }
        own.license(&license(n)).await;
        let edit = json!({"spec": {"extraEnv": [{"name": "N", "value": n.to_string()}]}});
        own.planes().patch("coder", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
        own.until_applied(&license(n)).await;
        own.until_condition("Ready", "True", None).await;
        for operator in &operators {
            operator.faults(&[]);
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    watching.abort();
    let seen = seen.lock();
    println!("{} versions seen", seen.len());
    assert!(seen.len() > 10, "{}", seen.len());
    for plane in &*seen {
        let known = status(plane);
        let version = plane.resource_version();
        assert!(known.license_last_applied_hash.is_some(), "{version:?}: {known:?}");
        assert_eq!(known.license_tier.as_deref(), Some("premium"), "{version:?}");
        assert!(known.license.is_some(), "{version:?}: {known:?}");
    }
}
