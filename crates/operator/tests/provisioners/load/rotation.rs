//! Rotations with daemons at work: no session is cut, no job is lost, two keys at most, one in the end.
//!
//! `CODER_K8S_ROTATIONS` says how many, 10 as it is. They are shared out among pools that rotate at the same time, each
//! one edit after the other: tags, name of the key, organization, and the move to the other control plane.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::codersim::{CoderSim, KeyChange, Mode};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use coder_k8s_scenes::{
    coderd::CoderdScene, pool::status, pools::Pools, scene::Scene, working_daemons::Daemons,
};

/// Keys are verified more seldom than a test lasts.
const ARGS: [&str; 5] = [
    "--leader-elect=false",
    "--entitlements-interval=2s",
    "--verify-interval=40s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=6s",
];
/// How many pools rotate at the same time, at most.
const POOLS: usize = 5;
const PLANES: [&str; 2] = ["coder", "other"];
const ORGANIZATION: &str = "acme";

/// Where a pool is.
#[derive(Clone, Copy, Default)]
struct At {
    plane: usize,
    elsewhere: bool,
}

/// What the n-th rotation of a pool edits.
fn edit(n: usize, pool: &str, at: &mut At) -> (&'static str, Value) {
    match n % 4 {
        0 => ("tags", json!({"tags": {"round": n.to_string()}})),
        1 => ("key name", json!({"key": {"name": format!("{pool}-{n}")}})),
        2 => {
            at.elsewhere = !at.elsewhere;
            let organization = if at.elsewhere { ORGANIZATION } else { "default" };
            ("organization", json!({"organizationName": organization}))
        }
        _ => {
            at.plane = 1 - at.plane;
            ("control plane", json!({"controlPlaneRef": {"name": PLANES[at.plane]}}))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotations_cut_no_session_and_lose_no_job() {
    let rotations: usize = std::env::var("CODER_K8S_ROTATIONS").map_or(10, |text| text.parse().unwrap());
    let CoderdScene { scene, sim } =
        CoderdScene::within(Scene::unmanaged("rotation").await, Mode::Licensed).await;
    let _operator = scene.start(&ARGS);
    let sims = [Arc::new(sim), Arc::new(CoderSim::start(Mode::Licensed).await.unwrap())];
    let mut servers = HashMap::new();
    for (name, sim) in PLANES.iter().zip(&sims) {
        let host = format!("{name}.{}.svc.cluster.local", scene.namespace);
        scene.host(&host, sim.address());
        servers.insert(host, sim.clone());
        sim.add_organization(ORGANIZATION);
        plane(&scene, name, sim).await;
    }
    let daemons = Daemons::follow(&scene, servers);
    let pools = Pools(&scene);

    let count = POOLS.min(rotations);
    let names: Vec<_> = (0..count).map(|n| format!("pool-{n:02}")).collect();
    join_all(names.iter().map(|name| async {
        pools.make(name, PLANES[0], json!({"replicas": 2, "tags": {"round": "first"}})).await;
        pools.until_settled(name).await;
        holds_one_key(&scene, name, &sims, 0).await;
    }))
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    let taken = join_all(names.iter().enumerate().map(|(at, name)| {
        let share = rotations / count + usize::from(at < rotations % count);
        rotate(&scene, pools, name, share, at, &sims)
    }));
    let taken: Vec<_> = taken.await.into_iter().flatten().collect();
    let elapsed = started.elapsed();

    let most = names.iter().map(|name| most_live(name, &sims)).max().unwrap();
    let tally = &daemons.tally;
    let [sessions, cut, jobs, lost, late, refused] =
        [&tally.sessions, &tally.cut, &tally.jobs, &tally.lost, &tally.told_while_busy, &tally.refused]
            .map(|count| count.load(SeqCst));
    for (what, times) in by_kind(&taken) {
        let longest = times.iter().max().unwrap();
        println!("{what}: {} rotations, the longest {longest:.1?}", times.len());
    }
    println!("{rotations} rotations of {count} pools in {elapsed:.1?}");
    println!(
        "{sessions} sessions, {cut} cut; {jobs} jobs, {lost} lost, {late} finished after the pod was told to stop"
    );
    println!("{most} keys live at most, {refused} connections refused");
    assert_eq!(taken.len(), rotations);
    assert_eq!((cut, lost, refused), (0, 0, 0));
    assert!(sessions >= 2 * rotations, "each rotation is followed by new sessions");
    assert!(late >= rotations, "rollouts come in the middle of jobs");
    assert_eq!(most, 2, "one is made before the other goes");
}

/// A control plane with the owner's token, once it has answered.
async fn plane(scene: &Scene, name: &str, sim: &CoderSim) {
    let token = format!("{name}-token");
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": token, "namespace": scene.namespace},
        "stringData": {"token": sim.owner_token().expose_secret()}});
    coder_k8s_scenes::apply(&scene.client, secret).await;
    let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": token}});
    scene.plane(name, json!({"operatorAccess": access})).await;
    let answered = |plane: &CoderControlPlane| {
        let status = coder_k8s_scenes::scene::status(plane);
        status.external_provisioner_daemons_entitlement.as_deref() == Some("entitled")
            && status.workload.image.is_some()
    };
    scene.until(name, answered).await;
}

/// Rotates a pool so many times, and says how long each took.
async fn rotate(
    scene: &Scene,
    pools: Pools<'_>,
    name: &str,
    times: usize,
    first: usize,
    sims: &[Arc<CoderSim>; 2],
) -> Vec<(&'static str, Duration)> {
    let mut taken = Vec::new();
    // Pools begin with different edits, so that every kind occurs in few rotations too.
    let mut at = At::default();
    for n in first..first + times {
        let started = Instant::now();
        let before = status(&pools.until_settled(name).await).provisioner_key_id;
        let (what, spec) = edit(n, name, &mut at);
        pools.edit(name, spec).await;
        let after = status(&pools.until_settled(name).await).provisioner_key_id;
        assert_ne!(before, after, "{name}: {what}");
        taken.push((what, started.elapsed()));
        holds_one_key(scene, name, sims, at.plane).await;
    }
    taken
}

/// Asserts that a pool has one key in all the world: that of the control plane it is at, whose material is in the Secret.
async fn holds_one_key(scene: &Scene, name: &str, sims: &[Arc<CoderSim>; 2], plane: usize) {
    let ours = |sim: &CoderSim| {
        let mut keys = sim.keys();
        keys.retain(|key| is_of(&key.name, name));
        keys
    };
    let [here, there] = [ours(&sims[plane]), ours(&sims[1 - plane])];
    let names: Vec<_> = here.iter().map(|key| &key.name).collect();
    assert!(here.len() == 1 && there.is_empty(), "{name}: {names:?} and {} elsewhere", there.len());
    let secret: Secret = scene.until_exists(&format!("{name}-provisioner-key")).await;
    let held = &secret.data.unwrap()["key"].0;
    assert!(held == here[0].material.expose_secret().as_bytes(), "{name}: the Secret holds something else");
}

/// Whether a key is a pool's, by its name.
fn is_of(key: &str, pool: &str) -> bool {
    key == pool || key.starts_with(&format!("{pool}-"))
}

/// The most keys that a pool had at any moment, in all the world.
fn most_live(pool: &str, sims: &[Arc<CoderSim>; 2]) -> usize {
    let mut changes: Vec<KeyChange> = sims.iter().flat_map(|sim| sim.key_changes()).collect();
    changes.retain(|change| is_of(&change.name, pool));
    changes.sort_by_key(|change| change.at);
    let mut live = BTreeSet::new();
    let counts = changes.into_iter().map(|KeyChange { id, made, .. }| {
        if made {
            live.insert(id)
        } else {
            live.remove(&id)
        };
        live.len()
    });
    counts.max().unwrap_or_default()
}

fn by_kind(taken: &[(&'static str, Duration)]) -> BTreeMap<&'static str, Vec<Duration>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (what, time) in taken {
        all.entry(*what).or_default().push(*time);
    }
    all
}
