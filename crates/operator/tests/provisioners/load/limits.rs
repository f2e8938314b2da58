//! A coderd that answers 429 for a while: it is asked as seldom as it says, and nothing is lost.
//!
//! Time is scaled by fifteen: five minutes are 20 s, and a Retry-After of 60 s is one of 4 s.

use std::time::{Duration, Instant};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{
    AuditEvent,
    codersim::{Entry, Mode, SimFault},
};
use jiff::SignedDuration;
use serde_json::json;

use coder_k8s_scenes::{
    audit::{listed, status_writes},
    coderd::CoderdScene,
    pool::{is, status},
    pools::Pools,
    scene::{self, Scene},
};

/// Keys are verified more seldom than a test lasts.
const ARGS: [&str; 5] = [
    "--leader-elect=false",
    "--entitlements-interval=2s",
    "--verify-interval=40s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=6s",
];
const LIMITED: Duration = Duration::from_secs(20);
const RETRY_AFTER: Duration = Duration::from_secs(4);
/// The backoff may have grown to 16 s by the end.
const RECOVERED: Duration = Duration::from_secs(30);

/// Calls that were under way at the same time: none of them knew yet.
const TOGETHER: SignedDuration = SignedDuration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_of_everything_is_respected_and_outlived() {
    outlives("everything", "*", "/api/v2/**").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_of_organizations_is_respected_and_outlived() {
    outlives("organizations", "GET", "/api/v2/organizations/*").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_of_new_keys_is_respected_and_outlived() {
    outlives("new keys", "POST", "/api/v2/organizations/*/provisionerkeys").await;
}

/// A pool whose tags and organization change and a new one, while calls are limited.
async fn outlives(what: &str, method: &str, path: &str) {
    let coder = CoderdScene::within(Scene::unmanaged("limits").await, Mode::Licensed).await;
    let _operator = coder.scene.start(&ARGS);
    coder.plane(json!({})).await;
    let CoderdScene { scene, sim } = &coder;
    scene
        .until("coder", |plane: &CoderControlPlane| {
            let status = scene::status(plane);
            status.external_provisioner_daemons_entitlement.as_deref() == Some("entitled")
        })
        .await;
    let pools = Pools(scene);
    sim.add_organization("acme");
    pools.make("rotated", "coder", json!({"tags": {"region": "eu"}})).await;
    let before = status(&pools.until_settled("rotated").await);

    sim.fault(method, path, SimFault::rate_limited(RETRY_AFTER), None);
    let (mark, since) = (sim.mark(), scene.requests_in(&scene.namespace).len());
    pools.edit("rotated", json!({"tags": {"region": "us"}, "organizationName": "acme"})).await;
    pools.make("new", "coder", json!({})).await;
    tokio::time::sleep(LIMITED).await;
    // Neither pool lost anything, and both say what is in the way.
    for name in ["rotated", "new"] {
        pools.until(name, |pool| is(pool, "ProvisionerKeyReady", "False", Some("RateLimited"))).await;
    }
    let during = status(&pools.until("rotated", |_| true).await);
    assert_eq!(during.provisioner_key_id, before.provisioner_key_id);
    let calls = sim.since(mark);
    let asked: Vec<AuditEvent> = scene.requests_in(&scene.namespace).split_off(since);
    sim.clear_faults();
    let cleared = Instant::now();
    is_respected(what, &calls, &asked);

    pools.until_settled("rotated").await;
    pools.until_settled("new").await;
    println!("{what}: both are ready {:.1?} after the limit ended", cleared.elapsed());
    assert!(cleared.elapsed() < RECOVERED, "{:?}", cleared.elapsed());
    let mut tags: Vec<_> = sim.keys().into_iter().map(|key| (key.name, key.tags)).collect();
    tags.sort();
    assert_eq!(tags.len(), 2, "{tags:?}");
    assert_eq!(tags[1].1["region"], "us");
}

/// Asserts that after each refusal the server was left alone for the time that it gave, and that nobody wrote a status
/// for every try.
fn is_respected(what: &str, calls: &[Entry], asked: &[AuditEvent]) {
    let is_limited = |entry: &&Entry| entry.status == Some(429);
    let limited: Vec<_> = calls.iter().filter(is_limited).collect();
    let wait = SignedDuration::try_from(RETRY_AFTER).unwrap() - SignedDuration::from_millis(50);
    let early = |entry: &&Entry| {
        limited.iter().any(|refused| {
            let after = entry.at.duration_since(refused.at);
            after > TOGETHER && after < wait
        })
    };
    let early: Vec<_> = calls.iter().filter(early).collect();
    let writes = status_writes(asked);
    let of = |name: &str| writes.iter().filter(|event| event.name == name).count();
    println!(
        "{what}: {} calls in {LIMITED:?}, {} of them refused, {} before the time that coderd gave; {} and {} writes of status",
        calls.len(),
        limited.len(),
        early.len(),
        of("rotated"),
        of("new"),
    );
    let most = usize::try_from(LIMITED.as_secs() / RETRY_AFTER.as_secs()).unwrap() + 1;
    // Two pools and their control plane may ask at the same time.
    assert!(!limited.is_empty() && limited.len() <= 3 * most, "{limited:?}");
    assert!(early.is_empty(), "{early:?}");
    // It works on it, a key is announced, and what is in the way.
    assert!(of("rotated") <= 3 && of("new") <= 3, "{:?}", listed(writes.iter().copied()));
}
