//! A coderd that hangs delays nobody but its own pools.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use coder_k8s_testbed::{
    codersim::{CoderSim, Mode, SimFault},
    eventually,
};
use futures::future::join_all;
use serde_json::json;

use coder_k8s_scenes::{PATIENCE, coderd::license, pool::status, pools::Pools, scoped::ScopedScene};

use crate::MEASURING;

/// Each with a server of its own; the operator has four calls at most under way to each.
const PLANES: usize = 5;
const POOLS: usize = 4;
const HANGING: usize = PLANES * POOLS;
const EDITS: usize = 5;
/// Whatever else hangs. A call that hangs is given up after 10 s.
const BOUND: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn twenty_pools_that_hang_delay_no_edit_of_another() {
    let _measuring = MEASURING.lock().await;
    let own = ScopedScene::new("isolation").await;
    let operator = own.operator(&[]);
    operator.until_leading().await;
    own.licensed_plane(&license(1), json!({})).await;
    let pools = Pools(&own.scene);
    pools.make("healthy", "coder", json!({})).await;
    pools.until_settled("healthy").await;
    let (rotated, rolled) = measure(pools).await;
    println!("alone: key {rotated:?}, image {rolled:?} (median of {EDITS})");

    let hanging = CoderSim::start(Mode::Licensed).await.unwrap();
    join_all((0..PLANES).map(|n| plane(&own, &hanging, format!("slow-{n}")))).await;
    let names: Vec<_> =
        (0..HANGING).map(|n| (format!("hanging-{n:02}"), format!("slow-{}", n % PLANES))).collect();
    join_all(names.iter().map(|(name, plane)| async {
        pools.make(name, plane, json!({"replicas": 0})).await;
        pools.until_settled(name).await;
    }))
    .await;
    let mark = hanging.mark();
    hanging.fault("*", "/**", SimFault::Latency(PATIENCE), None);
    join_all(names.iter().map(|(name, _)| pools.edit(name, json!({"tags": {"region": "us"}})))).await;
    let all_hang = eventually(PATIENCE, || async {
        match hanging.since(mark).len() {
            calls if calls >= HANGING => Ok(()),
            calls => Err(format!("{calls} of {HANGING}")),
        }
    });
    all_hang.await.unwrap();
    let (rotated, rolled) = measure(pools).await;
    println!("beside {HANGING} that hang: key {rotated:?}, image {rolled:?} (median of {EDITS})");
    assert!(rotated < BOUND && rolled < BOUND, "{rotated:?}, {rolled:?}");
}

/// A control plane at the server, once it has answered.
async fn plane(own: &ScopedScene, sim: &CoderSim, name: String) {
    own.scene.service(&name, sim.address());
    own.secret(&name, "token", &sim.owner_token()).await;
    let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": name}});
    own.plane_named(&name, json!({"operatorAccess": access, "licenseSecretRef": null})).await;
    let answered = eventually(PATIENCE, || async {
        let plane = own.planes().get(&name).await.map_err(|error| error.to_string())?;
        let status = plane.status.unwrap_or_default();
        let entitled = status.external_provisioner_daemons_entitlement.as_deref() == Some("entitled");
        if entitled && status.workload.image.is_some() { Ok(()) } else { Err(format!("{status:?}")) }
    });
    answered.await.unwrap();
}

/// From an edit to its effect: another key in use, and another image. The median of several: calls that hang would delay each of them, a busy
/// machine one or two.
async fn measure(pools: Pools<'_>) -> (Duration, Duration) {
    static EDIT: AtomicUsize = AtomicUsize::new(0);
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..EDITS {
        let n = EDIT.fetch_add(1, Ordering::SeqCst);
        let before = status(&pools.until("healthy", |_| true).await).provisioner_key_id;
        let started = Instant::now();
        pools.edit("healthy", json!({"tags": {"edit": n.to_string()}})).await;
        pools.until("healthy", |pool| status(pool).provisioner_key_id != before).await;
        times.0.push(started.elapsed());

        let image = format!("example.test/coder:v2.36.{n}");
        let started = Instant::now();
        pools.edit("healthy", json!({"image": image})).await;
        let asked = eventually(PATIENCE, || async {
            let pod = pools.deployment("healthy").await.spec.unwrap().template.spec.unwrap();
            if pod.containers[0].image.as_ref() == Some(&image) { Ok(()) } else { Err("not yet") }
        });
        asked.await.unwrap();
        times.1.push(started.elapsed());
    }
    times.0.sort();
    times.1.sort();
    (times.0[EDITS / 2], times.1[EDITS / 2])
}
