//! What a ready and licensed control plane costs while nothing happens, and after a restart.
//!
//! Time is scaled by fifty: entitlements every 2 s for 100 s, verification every 12 s for 10 min.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_testbed::codersim::Entry;
use rustix::process::Signal;
use serde_json::json;

use coder_k8s_scenes::{
    Operator,
    coderd::{license, uuid},
    requests,
    scoped::{NO_LEASE, ScopedScene},
    writes,
};

const SCALE: f64 = 50.0;
const WATCHED: Duration = Duration::from_secs(40);
/// Shorter than any time between two verifications.
const AFTER_RESTART: Duration = Duration::from_secs(9);
const ARGS: [&str; 2] = ["--entitlements-interval=2s", "--verify-interval=12s"];

fn by_call(entries: &[Entry]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        *counts.entry(format!("{} {}", entry.method, entry.path)).or_default() += 1;
    }
    counts
}

/// What was asked of the API server, but for the lease and the watches.
struct Asked {
    status_writes: usize,
    other_writes: usize,
    secret_reads: usize,
    all: usize,
}

fn asked(own: &ScopedScene, operator: &Operator, since: usize) -> Asked {
    let all = requests(own.scene.cluster(), |user| user == operator.user);
    let later = &all[since..];
    let written = writes(later);
    let of_status = written.iter().filter(|event| event.subresource == "status").count();
    let reads = later.iter().filter(|event| event.verb == "get" && event.resource == "secrets").count();
    let all = later.iter().filter(|event| event.resource != "leases" && event.verb != "watch").count();
    Asked { status_writes: of_status, other_writes: written.len() - of_status, secret_reads: reads, all }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_rest_only_the_intervals_cost_and_a_restart_costs_nothing_more() {
    let own = ScopedScene::new("idle").await;
    let args: Vec<_> = ARGS.into_iter().chain(NO_LEASE).collect();
    let mut first = own.operator(&args);
    first.until_leading().await;
    own.licensed_plane(&license(1), json!({})).await;
    own.until_condition("EntitlementsHealthy", "True", None).await;
    tokio::time::sleep(Duration::from_secs(3)).await;

    let (mark, since) = (own.sim.mark(), requests(own.scene.cluster(), |user| user == first.user).len());
    tokio::time::sleep(WATCHED).await;
    let counts = by_call(&own.sim.since(mark));
    let Asked { status_writes, other_writes, secret_reads, all } = asked(&own, &first, since);
    let per_hour = 3600.0 / WATCHED.as_secs_f64() / SCALE;
    for (call, count) in &counts {
        let count = f64::from(u32::try_from(*count).unwrap());
        println!("{call}: {count} in {WATCHED:?}, {:.0} an hour at scale 1", count * per_hour);
    }
    println!("{status_writes} writes of the status, {other_writes} others, {secret_reads} reads of Secrets");
    let of = |call: &str| counts.get(call).copied().unwrap_or_default();
    let refreshes = of("GET /api/v2/entitlements");
    // A tenth more or less; a verification refreshes as well.
    assert!((16..=26).contains(&refreshes), "{counts:?}");
    let verified = ["GET /api/v2/licenses", "GET /api/v2/users/me", "GET /api/v2/buildinfo"].map(of);
    assert!(verified.iter().all(|count| (2..=4).contains(count)), "{counts:?}");
    assert_eq!(counts.len(), 4, "{counts:?}");
    assert!(status_writes <= refreshes + 1, "{status_writes} for {refreshes}");
    assert_eq!(other_writes, 0);
    assert_eq!(all, status_writes + secret_reads, "nothing else is asked");
    assert!(secret_reads <= verified[0], "{secret_reads} reads of Secrets for {verified:?} verifications");

    first.signal(Signal::TERM);
    assert_eq!(first.exit_code().await, Some(0), "{}", first.output());
    let mark = own.sim.mark();
    let second = own.operator(&args);
    second.until_leading().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let early = by_call(&own.sim.since(mark));
    // A verification refreshes as well.
    let most = |call: &str| if call.ends_with("/entitlements") { 2 } else { 1 };
    assert!(early.iter().all(|(call, count)| *count <= most(call)), "at once: {early:?}");
    tokio::time::sleep(AFTER_RESTART).await;
    let counts = by_call(&own.sim.since(mark));
    let Asked { status_writes, other_writes, secret_reads, .. } = asked(&own, &second, 0);
    println!("after a restart, {AFTER_RESTART:?}: at once {early:?}, then {counts:?}");
    println!("{status_writes} writes of the status, {other_writes} others, {secret_reads} reads of Secrets");
    let of = |call: &str| counts.get(call).copied().unwrap_or_default();
    assert_eq!(of("POST /api/v2/licenses"), 0);
    for call in ["GET /api/v2/licenses", "GET /api/v2/users/me", "GET /api/v2/buildinfo"] {
        assert!(of(call) <= 1, "{counts:?}");
    }
    assert!(of("GET /api/v2/entitlements") <= 8, "{counts:?}");
    assert!(status_writes <= of("GET /api/v2/entitlements"), "{status_writes} for {counts:?}");
    assert_eq!(other_writes, 0);
    own.until_holds(&[uuid(1)]).await;
}
