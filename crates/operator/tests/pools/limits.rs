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

use crate::{
    coder::Coder,
    pools::{Pools, is, listed, status, status_writes},
};

const LIMITED: Duration = Duration::from_secs(20);
const RETRY_AFTER: Duration = Duration::from_secs(4);
/// The backoff may have grown to 16 s by the end.
const RECOVERED: Duration = Duration::from_secs(30);

/// Whether a request is one for a pool.
fn is_for_pools(entry: &Entry) -> bool {
    entry.path.contains("provisionerkeys") || entry.path.starts_with("/api/v2/organizations")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_is_respected_and_outlived() {
    let coder = Coder::new("limits", Mode::Licensed).await;
    coder.plane(json!({})).await;
    let Coder { scene, sim } = &coder;
    scene
        .until("coder", |plane: &CoderControlPlane| {
            let status = crate::scene::status(plane);
            status.external_provisioner_daemons_entitlement.as_deref() == Some("entitled")
        })
        .await;
    let pools = Pools { client: &scene.client, namespace: &scene.namespace, operator: scene.operator };
    pools.make("rotated", "coder", json!({"tags": {"region": "eu"}})).await;
    let before = status(&pools.settles("rotated").await);

    sim.fault("*", "/api/v2/**", SimFault::rate_limited(RETRY_AFTER), None);
    let (mark, since, started) = (sim.mark(), scene.requests_in(&scene.namespace).len(), Instant::now());
    pools.edit("rotated", json!({"tags": {"region": "us"}})).await;
    pools.make("new", "coder", json!({})).await;
    tokio::time::sleep(LIMITED).await;
    let calls = sim.since(mark);
    let asked: Vec<AuditEvent> = scene.requests_in(&scene.namespace).split_off(since);
    sim.clear_faults();
    let ours: Vec<_> = calls.iter().filter(|entry| is_for_pools(entry)).collect();
    let writes = status_writes(&asked);
    println!("{} calls in {LIMITED:?}, {} of them for two pools", calls.len(), ours.len());
    println!("{} writes of their status: {:?}", writes.len(), listed(writes.iter().copied()));
    let of = |name: &str| writes.iter().filter(|event| event.name == name).count();
    // The first says that it works on it, the second what is in the way.
    assert!(of("rotated") <= 2 && of("new") <= 2, "{:?}", listed(writes.iter().copied()));

    // The limit is the server's: nobody asks it again before the time it gave.
    assert!(!ours.is_empty() && calls.iter().all(|entry| entry.status == Some(429)), "{calls:?}");
    let most = usize::try_from(LIMITED.as_secs() / RETRY_AFTER.as_secs()).unwrap() + 1;
    let least = SignedDuration::try_from(RETRY_AFTER).unwrap() - SignedDuration::from_millis(50);
    let early: Vec<_> =
        calls.windows(2).filter(|pair| pair[1].at.duration_since(pair[0].at) < least).collect();
    println!("{} calls came before the time that coderd gave", early.len());
    assert!(calls.len() <= 2 * most, "{calls:?}");
    assert!(early.len() <= most, "{early:?}");

    // Neither pool lost anything, and both say what is in the way.
    for name in ["rotated", "new"] {
        pools.until(name, |pool| is(pool, "ProvisionerKeyReady", "False", Some("RateLimited"))).await;
    }
    let during = status(&pools.until("rotated", |_| true).await);
    assert_eq!(during.provisioner_key_id, before.provisioner_key_id);
    let cleared = Instant::now();
    pools.settles("rotated").await;
    pools.settles("new").await;
    println!("both are ready {:.1?} after the limit ended", cleared.elapsed());
    assert!(cleared.elapsed() < RECOVERED, "{:?}", started.elapsed());
    let mut tags: Vec<_> = sim.keys().into_iter().map(|key| (key.name, key.tags)).collect();
    tags.sort();
    assert_eq!(tags.len(), 2, "{tags:?}");
    assert_eq!(tags[1].1["region"], "us");
}
