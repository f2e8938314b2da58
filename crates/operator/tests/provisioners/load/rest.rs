//! What a pool costs when it is made, while nothing happens, and after a restart.
//!
//! In the first half the intervals are longer than the test. In the second half they are short: verification every 6 s
//! for 10 min, and the daemons of an organization every 2 s for 60 s.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_testbed::{AuditEvent, codersim::Entry};
use rustix::process::Signal;
use serde_json::json;

use coder_k8s_scenes::{
    Operator,
    audit::{besides, listed},
    coderd::license,
    pools::Pools,
    requests,
    scoped::{NO_LEASE, ScopedScene},
    writes,
};

use crate::MEASURING;

const POOLS: usize = 10;
const WATCHED: Duration = Duration::from_secs(30);
const AFTER_RESTART: Duration = Duration::from_secs(5);
const VERIFY: Duration = Duration::from_secs(6);
const SCALE: f64 = 100.0;
/// How often coderd is asked for the daemons and jobs of an organization.
const POLL: Duration = Duration::from_secs(2);

fn since(own: &ScopedScene, operator: &Operator, count: usize) -> Vec<AuditEvent> {
    requests(own.scene.cluster(), |user| user == operator.user).split_off(count)
}

fn by_call(entries: &[Entry]) -> BTreeMap<String, usize> {
    counted(entries.iter().map(|entry| format!("{} {}", entry.method, entry.path)))
}

fn counted(all: impl IntoIterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_costs_one_write_a_child_and_nothing_at_rest() {
    let _measuring = MEASURING.lock().await;
    let own = ScopedScene::new("rest").await;
    let quiet: Vec<_> =
        NO_LEASE.into_iter().chain(["--entitlements-interval=10m", "--daemons-interval=1h"]).collect();
    let mut first = own.operator(&quiet);
    first.until_leading().await;
    own.licensed_plane(&license(1), json!({})).await;
    own.until_condition("EntitlementsHealthy", "True", None).await;
    first.until_idle("CoderControlPlane").await;

    let pools = Pools(&own.scene);
    let (mark, count) = (own.sim.mark(), since(&own, &first, 0).len());
    pools.make("pool-00", "coder", json!({})).await;
    pools.until_settled("pool-00").await;
    first.until_idle("CoderProvisioner").await;
    let asked = since(&own, &first, count);
    println!("coderd, for a new pool: {:?}", by_call(&own.sim.since(mark)));
    costs_one_write_a_child(&asked);

    for n in 1..POOLS {
        pools.make(&format!("pool-{n:02}"), "coder", json!({"replicas": n % 3})).await;
    }
    for n in 1..POOLS {
        pools.until_settled(&format!("pool-{n:02}")).await;
    }
    first.until_idle("CoderProvisioner").await;
    let (mark, count) = (own.sim.mark(), since(&own, &first, 0).len());
    tokio::time::sleep(WATCHED).await;
    let (calls, asked) = (own.sim.since(mark), since(&own, &first, count));
    let asked = besides(&asked);
    println!(
        "{POOLS} pools at rest for {WATCHED:?}: {} requests, {} calls of coderd",
        asked.len(),
        calls.len()
    );
    assert!(asked.is_empty(), "{:?}", listed(asked.iter().copied()));
    assert!(calls.is_empty(), "{calls:?}");

    first.signal(Signal::TERM);
    assert_eq!(first.exit_code().await, Some(0), "{}", first.output());
    let mark = own.sim.mark();
    let mut second = own.operator(&quiet);
    second.until_leading().await;
    second.until_reconciled("CoderProvisioner", POOLS as u64).await;
    tokio::time::sleep(AFTER_RESTART).await;
    let asked = since(&own, &second, 0);
    println!("{AFTER_RESTART:?} after a restart: coderd {:?}", by_call(&own.sim.since(mark)));
    // The control plane asks anew what its license covers, which is its own matter.
    let written = writes(&asked).into_iter().filter(|event| event.resource != "codercontrolplanes");
    let written = listed(written);
    assert!(written.is_empty(), "{written:?}");
    let for_pools = |entry: &&Entry| entry.path.contains("provisioner");
    let early = own.sim.since(mark).iter().filter(for_pools).count();
    assert!(early <= 1, "a restart alone verifies within the interval: {:?}", by_call(&own.sim.since(mark)));
    second.signal(Signal::TERM);
    assert_eq!(second.exit_code().await, Some(0), "{}", second.output());

    let verify = format!("--verify-interval={}s", VERIFY.as_secs());
    let poll = format!("--daemons-interval={}s", POLL.as_secs());
    let often = [&*verify, &*poll, "--daemons-patience=1s", "--entitlements-interval=10m"];
    let often: Vec<_> = NO_LEASE.into_iter().chain(often).collect();
    verifies_at_its_interval(&own, &own.operator(&often)).await;
}

/// Asserts what a new pool costs the API server.
fn costs_one_write_a_child(asked: &[AuditEvent]) {
    let written = writes(asked);
    println!("{} writes for a new pool:", written.len());
    for line in listed(written.iter().copied()) {
        println!("  {line}");
    }
    let reads = besides(asked).into_iter().filter(|event| event.verb == "get" || event.verb == "list");
    println!("reads: {:?}", counted(listed(reads)));
    let of = |resource: &str, subresource: &str| {
        let is = |event: &&&AuditEvent| event.resource == resource && event.subresource == subresource;
        written.iter().filter(is).count()
    };
    for child in ["serviceaccounts", "roles", "rolebindings", "secrets", "deployments"] {
        assert_eq!(of(child, ""), 1, "{child}: {:?}", listed(written.iter().copied()));
    }
    assert_eq!(of("coderprovisioners", ""), 1, "the finalizer");
    let (statuses, events) = (of("coderprovisioners", "status"), of("events", ""));
    println!("{statuses} writes of the status, {events} events");
    // Announced, made, proven, rolling out, ready.
    assert!(statuses <= 5, "{:?}", listed(written.iter().copied()));
    // The first pool of a control plane has its jobs asked for, which its status says once.
    let planes = of("codercontrolplanes", "status");
    assert!(planes <= 1, "{:?}", listed(written.iter().copied()));
    assert_eq!(written.len(), 6 + statuses + events + planes, "{:?}", listed(written.iter().copied()));
    assert!(written.iter().all(|event| event.code < 300), "{:?}", listed(written.iter().copied()));
}

/// Asserts that verification asks as often as it says, reads Secrets, and writes nothing.
async fn verifies_at_its_interval(own: &ScopedScene, operator: &Operator) {
    operator.until_leading().await;
    operator.until_reconciled("CoderProvisioner", POOLS as u64).await;
    tokio::time::sleep(VERIFY).await;
    let (mark, count) = (own.sim.mark(), since(own, operator, 0).len());
    tokio::time::sleep(WATCHED).await;
    let (calls, asked) = (own.sim.since(mark), since(own, operator, count));
    let (counts, asked) = (by_call(&calls), besides(&asked));
    let proofs = calls.iter().filter(|entry| entry.is("GET", "/api/v2/provisionerkeys/")).count();
    let [each, hour] = [proofs / POOLS, 3600].map(|count| f64::from(u32::try_from(count).unwrap()));
    let per_hour = each * hour / WATCHED.as_secs_f64() / SCALE;
    println!("verification every {VERIFY:?} of {POOLS} pools for {WATCHED:?}: {counts:?}");
    println!("{per_hour:.1} proofs an hour and pool at scale 1");
    // The control plane is verified as well, which is its own matter.
    let others: Vec<_> = asked.into_iter().filter(|event| event.resource != "codercontrolplanes").collect();
    println!("asked of the API server: {:?}", counted(listed(others.iter().copied())));
    let reads_secrets =
        |event: &&AuditEvent| event.resource == "secrets" && ["get", "list"].contains(&&*event.verb);
    assert!(others.iter().all(reads_secrets), "{:?}", listed(others.iter().copied()));
    // Every 6 s, a tenth more or less.
    let expected = POOLS * 4..=POOLS * 6;
    assert!(expected.contains(&proofs), "{counts:?}");
    let keys = calls.iter().filter(|entry| entry.path.contains("/provisionerkeys")).count();
    assert_eq!(keys, proofs, "nothing else is asked about keys: {counts:?}");
    // One call each for all pools, every 2 s, a tenth more or less.
    for what in ["/provisionerdaemons", "/provisionerjobs"] {
        let asked = calls.iter().filter(|entry| entry.path.ends_with(what)).count();
        println!("{what}: {asked} calls for {POOLS} pools");
        assert!((10..=18).contains(&asked), "{counts:?}");
    }
}
