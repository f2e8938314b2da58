//! Pools without a license wait for one at no cost.
//!
//! Time is scaled by fifty: entitlements every 2 s for 100 s, and 7.2 s for six minutes. `CODER_K8S_SCALE=1` takes the
//! time that it takes.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{AuditEvent, codersim::Entry};
use futures::future::join_all;
use serde_json::json;

use coder_k8s_scenes::{
    audit::{listed, status_writes},
    pool::is,
    pools::Pools,
    requests,
    scoped::ScopedScene,
};

use crate::MEASURING;

const POOLS: usize = 20;
const WATCHED: Duration = Duration::from_mins(6);
const REFRESH: Duration = Duration::from_secs(100);

#[tokio::test(flavor = "multi_thread")]
async fn twenty_pools_without_a_license_cost_one_status_each() {
    let _measuring = MEASURING.lock().await;
    let scale: u32 = std::env::var("CODER_K8S_SCALE").map_or(50, |text| text.parse().unwrap());
    let own = ScopedScene::new("unlicensed").await;
    let interval = format!("--entitlements-interval={}ms", (REFRESH / scale).as_millis());
    let operator = own.operator(&[&interval]);
    operator.until_leading().await;
    own.secret("token", "token", &own.sim.owner_token()).await;
    own.plane(json!({"licenseSecretRef": null})).await;
    own.until(|plane: &CoderControlPlane| {
        let status = coder_k8s_scenes::scene::status(plane);
        status.external_provisioner_daemons_entitlement.as_deref() == Some("not_entitled")
    })
    .await;
    let pools = Pools(&own.scene);
    let names: Vec<_> = (0..POOLS).map(|n| format!("pool-{n:02}")).collect();
    join_all(names.iter().map(|name| async {
        pools.make(name, "coder", json!({})).await;
        pools.until(name, |pool| is(pool, "Ready", "False", Some("NotEntitled"))).await;
    }))
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let ours = || requests(own.scene.cluster(), |user| user == operator.user);
    let (mark, since) = (own.sim.mark(), ours().len());
    let first = counted(status_writes(&ours()));
    println!("writes of the status of a new pool: {first:?}");
    let watched = WATCHED / scale;
    tokio::time::sleep(watched).await;
    let (calls, later) = (own.sim.since(mark), ours().split_off(since));
    let refreshes = calls.iter().filter(|entry| entry.is("GET", "/api/v2/entitlements")).count();
    let rest: Vec<_> = calls.iter().filter(|entry| !entry.is("GET", "/api/v2/entitlements")).collect();
    let written = status_writes(&later);
    println!(
        "{POOLS} pools, {watched:?}, scale {scale}: {} writes of their status, {refreshes} entitlement calls, {} others",
        written.len(),
        rest.len()
    );
    assert!(first.values().all(|count| *count == 1) && first.len() == POOLS, "{first:?}");
    assert!(written.is_empty(), "{:?}", listed(written.iter().copied()));
    // The control plane's own, a tenth more or less often than it says.
    let due = watched.as_secs_f64() / (REFRESH / scale).as_secs_f64() / 0.9;
    assert!(f64::from(u32::try_from(refreshes).unwrap()) <= due + 1.0, "{refreshes} for {due}");
    assert!(rest.iter().all(|entry| is_of_the_plane(entry)), "{rest:?}");

    // A license opens the gate for all of them.
    own.sim.add_license(&coder_k8s_scenes::coderd::license(1));
    for name in &names {
        pools.until_settled(name).await;
    }
}

/// Whether a call is one of a verification of the control plane.
fn is_of_the_plane(entry: &Entry) -> bool {
    ["/api/v2/users/me", "/api/v2/buildinfo", "/api/v2/licenses"].iter().any(|path| entry.is("GET", path))
}

fn counted(events: Vec<&AuditEvent>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(event.name.clone()).or_default() += 1;
    }
    counts
}
