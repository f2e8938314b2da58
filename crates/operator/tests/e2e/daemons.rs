//! A pool of real daemons, from the Deployment and the Secret that the operator writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use coder_k8s_api::CoderProvisioner;
use coder_k8s_coderd::{Daemon, DaemonFilter, ListedDaemonStatus};
use coder_k8s_testbed::{
    Exit,
    binaries::CODER_VERSION,
    codersim::{Entry, JobSeed, SessionEnd, SessionSeen},
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;

use coder_k8s_scenes::{pool::status, pools::Pools};

use crate::{real::IMAGE, simulated::Simulated};

const POOL: &str = "pool";
/// An idle daemon leaves at once. Its grace period is ten minutes.
const AT_ONCE: Duration = Duration::from_mins(1);

/// A pool of that many daemons, all of which have joined.
async fn pool(place: &Simulated, replicas: usize) -> Pools<'_> {
    let scene = place.scene();
    let pools = Pools(scene);
    let spec = json!({"image": IMAGE, "replicas": replicas, "tags": {"round": "first"}});
    pools.make(POOL, "coder", spec).await;
    joined(place, pools, replicas).await;
    pools
}

/// Waits until the pool rests and so many daemons are listed as idle, with its key and no other; gives the key's uuid.
async fn joined(place: &Simulated, pools: Pools<'_>, count: usize) -> String {
    let key = status(&pools.until_settled(POOL).await).provisioner_key_id.unwrap();
    place
        .until("the daemons have joined", async || {
            let open = place.open();
            let ours = open.len() == count && open.iter().all(|session| session.key_id == key);
            (ours && idle(place, &key).await == names(&open) && pods(place).await == names(&open))
                .then_some(())
        })
        .await;
    key
}

/// The names of the daemons that coderd lists as idle with a key.
async fn idle(place: &Simulated, key: &str) -> BTreeSet<String> {
    let all = place.owner().provisioner_daemons("default", DaemonFilter::default()).await.unwrap();
    let ours = |daemon: &Daemon| daemon.key_id == key && daemon.status == Some(ListedDaemonStatus::Idle);
    all.into_iter().filter(ours).map(|daemon| daemon.name).collect()
}

/// The names of all pods of the pool.
async fn pods(place: &Simulated) -> BTreeSet<String> {
    let ours = ListParams::default().labels("app.kubernetes.io/name=coder-provisioner");
    place.scene().api::<Pod>().list(&ours).await.unwrap().iter().map(ResourceExt::name_any).collect()
}

fn names(sessions: &[SessionSeen]) -> BTreeSet<String> {
    sessions.iter().map(|session| session.name.clone()).collect()
}

/// Waits until the daemons of these sessions are gone, and asserts that each left by itself when its pod was told to
/// end, and at once.
async fn left_gracefully(place: &Simulated, sessions: &[SessionSeen]) {
    for SessionSeen { name, began, .. } in sessions {
        let exit: Exit = place
            .until("the process has ended", async || place.exits().into_iter().find(|exit| exit.pod == *name))
            .await;
        let told = exit.told.unwrap_or_else(|| panic!("{name} ended before it was told to: {exit:?}"));
        assert_eq!(exit.code, 0, "{exit:?}");
        assert!(exit.finished.duration_since(told).unsigned_abs() < AT_ONCE, "{exit:?}");
        let all = place.sim().sessions();
        let session = all.iter().find(|seen| seen.name == *name && seen.began == *began).unwrap();
        let (at, how) = session.ended.unwrap_or_else(|| panic!("{name} is gone and its session is open"));
        assert_eq!(how, SessionEnd::Left, "{name}");
        assert!(at >= told, "the session of {name} ended before the pod was told to: {session:?} {exit:?}");
        assert_eq!(all.iter().filter(|seen| seen.name == *name).count(), 1, "{name} had to come back");
    }
}

/// Asserts that a key went, and that all of its sessions were over by then.
fn outlived(place: &Simulated, key: &str) {
    let changes = place.sim().key_changes();
    let gone = changes.iter().find(|change| change.id == key && !change.made).expect("the key is gone").at;
    for session in place.sim().sessions().into_iter().filter(|session| session.key_id == key) {
        let (ended, _) = session.ended.unwrap();
        assert!(ended <= gone, "the key went before its last session: {session:?}");
    }
}

#[tokio::test]
async fn a_rotation_brings_daemons_with_the_new_key_and_cuts_no_session() {
    let place = Simulated::new("rotated").await;
    let pools = pool(&place, 2).await;
    let (first, old) = (place.open(), place.sim().keys().remove(0).id);
    for daemon in place.owner().provisioner_daemons("default", DaemonFilter::default()).await.unwrap() {
        assert_eq!((daemon.version.as_str(), daemon.tags["round"].as_str()), (CODER_VERSION, "first"));
    }
    pools.edit(POOL, json!({"tags": {"round": "second"}})).await;
    let new = joined(&place, pools, 2).await;
    assert_ne!(old, new);
    left_gracefully(&place, &first).await;
    let keys: Vec<_> = place.sim().keys().into_iter().map(|key| key.id).collect();
    assert_eq!(keys, [new], "one key is left");
    outlived(&place, &old);
    assert!(place.refused().is_empty(), "{:?}", place.refused());
}

#[tokio::test]
async fn a_daemon_that_is_scaled_away_finishes_its_job_and_leaves() {
    let place = Simulated::new("scaled").await;
    let pools = pool(&place, 2).await;
    let both = place.open();
    for daemon in &both {
        assert!(place.sim().set_busy(&daemon.name, true));
    }
    pools.edit(POOL, json!({"replicas": 1})).await;
    let going = place
        .until("a pod is told to end", async || {
            let pods = place.scene().api::<Pod>().list(&ListParams::default()).await.unwrap();
            pods.into_iter().find(|pod| {
                pod.metadata.deletion_timestamp.is_some()
                    && both.iter().any(|seen| seen.name == pod.name_any())
            })
        })
        .await
        .name_any();
    // Long enough for an idle one to be gone.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(place.open(), both, "who has a job stays");
    let freed = jiff::Timestamp::now();
    for daemon in &both {
        assert!(place.sim().set_busy(&daemon.name, false));
    }
    let (gone, stays): (Vec<_>, Vec<_>) = both.into_iter().partition(|seen| seen.name == going);
    let ended = place.until("the process has ended", async || place.exits().into_iter().next()).await;
    assert!(ended.finished >= freed, "after its job: {ended:?}, freed {freed}");
    let took = ended.finished.duration_since(ended.told.unwrap());
    assert!(took.as_secs() < 600, "within its grace period: {ended:?}");
    left_gracefully(&place, &gone).await;
    // Coderd lists the other one for a minute and a half more, so that the list is not asked here.
    pools.until_settled(POOL).await;
    assert_eq!(place.open(), stays, "the other one was left alone");
    assert!(place.refused().is_empty(), "{:?}", place.refused());
}

#[tokio::test]
async fn a_deleted_pool_lets_its_daemons_leave_before_its_key_goes() {
    let place = Simulated::new("deleted").await;
    pool(&place, 1).await;
    let (daemons, key) = (place.open(), place.sim().keys().remove(0).id);
    place.scene().delete::<CoderProvisioner>(POOL).await;
    place.scene().until_gone::<CoderProvisioner>(POOL).await;
    place.scene().until_gone::<Secret>("pool-provisioner-key").await;
    left_gracefully(&place, &daemons).await;
    outlived(&place, &key);
    assert!(place.sim().keys().is_empty(), "{:?}", place.sim().keys());
    assert!(place.refused().is_empty(), "{:?}", place.refused());
}

#[tokio::test]
async fn a_daemon_that_is_too_new_is_refused_until_coderd_is_upgraded() {
    let place = Simulated::new("newer").await;
    place.sim().set_provisioner_api(1, 0);
    let material = place.sim().add_key("own", &BTreeMap::new());
    place.coder.secret("own-key", "key", &material).await;
    let from = json!({"secretKeyRef": {"name": "own-key", "key": "key"}});
    let url = format!("http://coder.{}.svc.cluster.local", place.scene().namespace);
    let container = json!({"args": ["provisionerd", "start"], "env": [
        {"name": "CODER_URL", "value": url},
        {"name": "CODER_PROVISIONER_DAEMON_KEY", "valueFrom": from},
        {"name": "CODER_PROVISIONER_DAEMON_NAME", "value": "newer"},
    ]});
    place.deploy("newer", container).await;
    let serve = "/api/v2/organizations/default/provisionerdaemons/serve";
    place
        .until("it is refused, and tries again", async || {
            let refused = |entry: &&Entry| entry.is("GET", serve) && entry.status == Some(400);
            (place.sim().requests().iter().filter(refused).count() > 1).then_some(())
        })
        .await;
    assert!(place.sim().sessions().is_empty());
    place.sim().set_provisioner_api(1, 18);
    place.until("it has joined", async || (place.open().len() == 1).then_some(())).await;
    assert_eq!(place.exits(), [], "it went on trying");
}

/// Real daemons that follow a queue: none, one for each job, and none again. The simulator says who has a job.
#[tokio::test]
async fn a_scaled_pool_of_real_daemons_follows_its_queue_and_stops_nobody_at_work() {
    let place = Simulated::new("queue").await;
    let pools = Pools(place.scene());
    let scaling = json!({"maxReplicas": 3, "scaleDownAfter": "3s"});
    pools.make(POOL, "coder", json!({"image": IMAGE, "autoscaling": scaling})).await;
    pools.until_settled(POOL).await;
    assert!(pods(&place).await.is_empty(), "nobody waits");

    let job = || JobSeed {
        status: "pending".into(),
        tags: BTreeMap::new(),
        waiting: Duration::ZERO,
        worker_id: None,
    };
    place.sim().set_jobs(&[job(), job()]);
    let both = place
        .until("two daemons have joined", async || Some(place.open()).filter(|open| open.len() == 2))
        .await;
    for daemon in &both {
        assert!(place.sim().set_busy(&daemon.name, true));
    }
    place.sim().set_jobs(&[]);
    // One ends its job. The other goes on for longer than a daemon may be idle.
    assert!(place.sim().set_busy(&both[0].name, false));
    left_gracefully(&place, &both[..1]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(names(&place.open()), names(&both[1..]), "who has a job stays");
    let busy = place.exits().into_iter().any(|exit| exit.pod == both[1].name);
    assert!(!busy && pods(&place).await == names(&both[1..]), "and is not told to stop");

    assert!(place.sim().set_busy(&both[1].name, false));
    left_gracefully(&place, &both[1..]).await;
    place.until("no pod is left", async || pods(&place).await.is_empty().then_some(())).await;
    pools.until_settled(POOL).await;
    assert_eq!(place.sim().keys().len(), 1, "the key stays");
    assert!(place.refused().is_empty(), "{:?}", place.refused());
}
