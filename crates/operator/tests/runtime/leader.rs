//! Leader election with real processes: who writes, and who never does.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, CoderControlPlaneSpec, crds};
use coder_k8s_testbed::{Cluster, SharedCluster, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rustix::process::Signal;
use tokio::{
    sync::{Mutex, MutexGuard},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

use coder_k8s_scenes::{Operator, PATIENCE, grant, requests, writes};

/// A lease that is lost quickly, so that the tests are quick.
const QUICK: [&str; 3] = ["--lease-duration=3s", "--renew-deadline=2s", "--retry-period=500ms"];

/// Where leaders are elected: one cluster for all tests here, one test at a time, because they measure time, and one of
/// them pauses the API server.
struct Election {
    cluster: &'static Cluster,
    /// How many events are those of earlier tests.
    before: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Election {
    async fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::const_new(());
        static CLUSTER: SharedCluster = SharedCluster::without_controllers(crds);
        let alone = ALONE.lock().await;
        let cluster = &CLUSTER.get().await.cluster;
        grant(&cluster.client(), &Install::default()).await;
        let before = cluster.audit().unwrap().len();
        Self { cluster, before, _alone: alone }
    }
}

/// Edits an object again and again, so that whoever leads has something to write.
async fn keep_busy(client: Client) -> AbortOnDropHandle<()> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("busy-{}", COUNT.fetch_add(1, Ordering::SeqCst));
    let api: Api<CoderControlPlane> = Api::namespaced(client, "default");
    let object = CoderControlPlane::new(&name, CoderControlPlaneSpec::default());
    api.create(&PostParams::default(), &object).await.unwrap();
    AbortOnDropHandle::new(tokio::spawn(async move {
        for count in 0_u64.. {
            let edit = serde_json::json!({"spec": {"serviceAccount": {"annotations": {"count": count.to_string()}}}});
            // While the API server is held up there is nothing to edit.
            let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(&edit)).await;
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    }))
}

/// Once another operator has written, none that wrote before it ever writes again.
fn assert_one_writer_at_a_time(election: &Election) -> usize {
    let mut all = election.cluster.audit().unwrap().split_off(election.before);
    all.retain(|event| {
        let user = event.impersonated.as_deref();
        user.is_some_and(|user| user.starts_with("operator-")) && event.stage != "ResponseStarted"
    });
    let mut writes = writes(&all);
    writes.sort_by_key(|event| event.received);
    let mut deposed = BTreeSet::new();
    let mut writer = "";
    for event in &writes {
        let user = event.impersonated.as_deref().unwrap();
        if user != writer {
            assert!(!deposed.contains(user), "{user} wrote after {writer} had: {event:?}");
            deposed.insert(writer.to_owned());
            writer = user;
        }
    }
    writes.len()
}

async fn wrote(cluster: &Cluster, user: &str) {
    let wrote = eventually(PATIENCE, || async {
        let all = requests(cluster, |name| name == user);
        if writes(&all).iter().any(|event| event.code < 300) { Ok(()) } else { Err("no write yet") }
    });
    wrote.await.unwrap();
}

/// The name of the lease, which the Go operator holds too: one that is still installed and this one never lead together.
const LEASE: &str = "coder-k8s-controller.coder.com";
/// Where a pod finds the namespace of its service account.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Asserts that an operator of this identity holds the lease, the only one of its namespace.
async fn assert_holds(cluster: &Cluster, namespace: &str, identity: &str) {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), namespace);
    let all = leases.list(&ListParams::default()).await.unwrap().items;
    let operators: Vec<_> =
        all.iter().filter(|lease| lease.name_any().contains("coder")).map(ResourceExt::name_any).collect();
    assert_eq!(operators, [LEASE], "in {namespace}");
    let holder = leases.get(LEASE).await.unwrap().spec.unwrap().holder_identity.unwrap();
    assert!(holder.starts_with(&format!("{identity}_")), "{holder} is not {identity}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_has_the_name_of_that_of_the_go_operator() {
    let election = Election::new().await;
    let args = [&QUICK[..], &["--identity=named"]].concat();
    let leader = Operator::start(election.cluster, &args);
    leader.until_leading().await;
    assert_holds(election.cluster, "coder-system", "named").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_in_the_namespace_of_the_pod_and_else_in_kube_system() {
    let election = Election::new().await;
    let cluster = election.cluster;
    // Tests that run in a pod themselves have the file, which comes before the last resort.
    let of_file = std::fs::read_to_string(NAMESPACE_FILE).ok().map(|text| text.trim().to_owned());
    let last = of_file.filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "kube-system".to_owned());
    for (pod, namespace) in [(Some("lease-of-pod"), "lease-of-pod"), (Some(" "), &last), (None, &last)] {
        grant(&cluster.client(), &Install { namespace: namespace.to_owned(), ..Install::default() }).await;
        let identity = format!("in-{namespace}-{}", pod.map_or("none", |pod| pod.trim()));
        let flag = format!("--identity={identity}");
        let leader = Operator::start_in_pod_of(cluster, pod, &[&QUICK[..], &[&flag]].concat());
        leader.until_leading().await;
        assert_holds(cluster, namespace, &identity).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_exports_series_of_single_objects() {
    let election = Election::new().await;
    let cluster = election.cluster;
    let api: Api<CoderControlPlane> = Api::namespaced(cluster.client(), "default");
    let object = CoderControlPlane::new("measured", CoderControlPlaneSpec::default());
    api.create(&PostParams::default(), &object).await.unwrap();
    let mut leader = Operator::start(cluster, &QUICK);
    leader.until_leading().await;
    let standby = Operator::start(cluster, &QUICK);
    standby.until_ready().await;
    let series = |text: &str| {
        text.lines().filter(|line| line.contains("namespace=\"default\",name=\"measured\"")).count()
    };
    let scrape = async |operator: &Operator| operator.get("--metrics-addr", "/metrics").await.1;
    let exports = async |operator: &Operator| {
        let found = eventually(PATIENCE, || async {
            let text = scrape(operator).await;
            if series(&text) > 0 { Ok(text) } else { Err(text) }
        });
        found.await.unwrap()
    };
    let of_leader = exports(&leader).await;
    assert!(of_leader.contains("coder_k8s_leading 1"), "{of_leader}");
    let of_standby = scrape(&standby).await;
    assert!(of_standby.contains("coder_k8s_leading 0"), "{of_standby}");
    assert!(
        of_standby.contains("coder_k8s_objects{kind=\"CoderControlPlane\""),
        "it counts objects: {of_standby}"
    );
    assert_eq!(series(&of_standby), 0, "{of_standby}");

    leader.signal(Signal::TERM);
    leader.exit_code().await;
    exports(&standby).await;
    api.delete("measured", &DeleteParams::default()).await.unwrap();
    let gone = eventually(PATIENCE, || async {
        let text = scrape(&standby).await;
        if series(&text) == 0 { Ok(()) } else { Err(text) }
    });
    gone.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed_after_the_lease_and_a_stopped_one_at_once() {
    let election = Election::new().await;
    let cluster = election.cluster;
    let busy = keep_busy(cluster.client()).await;
    let mut first = Operator::start(cluster, &QUICK);
    first.until_leading().await;
    let second = Operator::start(cluster, &QUICK);
    second.until_ready().await;
    wrote(cluster, &first.user).await;
    assert!(!second.output().contains("leading:"), "one that waits is ready and does not lead");

    first.signal(Signal::KILL);
    let killed = Instant::now();
    first.exit_code().await;
    second.until_leading().await;
    let took = killed.elapsed();
    println!("after SIGKILL: {took:?} (lease 3 s, retry 0.5 s)");
    assert!(took < Duration::from_secs(10), "{took:?}");
    wrote(cluster, &second.user).await;

    // With the settings of a real installation: what counts is the hand-over, not the lease.
    let settings = ["--lease-duration=15s", "--renew-deadline=10s", "--retry-period=2s"];
    let mut third = Operator::start(cluster, &settings);
    third.until_ready().await;
    let mut second = second;
    second.signal(Signal::TERM);
    third.until_leading().await;
    assert_eq!(second.exit_code().await, Some(0));
    let fourth = Operator::start(cluster, &settings);
    fourth.until_ready().await;
    third.signal(Signal::TERM);
    let stopped = Instant::now();
    fourth.until_leading().await;
    let took = stopped.elapsed();
    println!("after SIGTERM: {took:?} (lease 15 s, retry 2 s)");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(third.exit_code().await, Some(0));
    busy.abort();
    assert_one_writer_at_a_time(&election);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_slept_through_its_lease_writes_nothing_and_exits() {
    let election = Election::new().await;
    let cluster = election.cluster;
    let busy = keep_busy(cluster.client()).await;
    let mut sleeper = Operator::start(cluster, &QUICK);
    sleeper.until_leading().await;
    wrote(cluster, &sleeper.user).await;
    let other = Operator::start(cluster, &QUICK);
    other.until_ready().await;
    sleeper.signal(Signal::STOP);
    other.until_leading().await;
    wrote(cluster, &other.user).await;
    let before = writes(&requests(cluster, |user| user == sleeper.user)).len();
    sleeper.signal(Signal::CONT);
    assert_eq!(sleeper.exit_code().await, Some(1), "{}", sleeper.output());
    assert!(sleeper.output().contains("no longer leading"), "{}", sleeper.output());
    tokio::time::sleep(Duration::from_millis(500)).await;
    busy.abort();
    assert_eq!(writes(&requests(cluster, |user| user == sleeper.user)).len(), before);
    assert_one_writer_at_a_time(&election);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_reach_the_api_server_stops_leading_within_the_renew_deadline() {
    let election = Election::new().await;
    let cluster = election.cluster;
    let mut leader = Operator::start(cluster, &QUICK);
    leader.until_leading().await;
    cluster.pause_api_server().unwrap();
    let paused = Instant::now();
    assert_eq!(leader.exit_code().await, Some(1), "{}", leader.output());
    let took = paused.elapsed();
    cluster.resume_api_server().unwrap();
    println!("black hole: exited after {took:?} (renew deadline 2 s)");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Kills whoever leads, at random moments. `CODER_K8S_KILLS` sets how often; 50 is the full campaign.
#[tokio::test(flavor = "multi_thread")]
async fn however_often_leaders_die_there_are_never_two_writers() {
    let kills: usize = std::env::var("CODER_K8S_KILLS").map_or(6, |count| count.parse().unwrap());
    let election = Election::new().await;
    let cluster = election.cluster;
    let busy = keep_busy(cluster.client()).await;
    let mut pair = [Operator::start(cluster, &QUICK), Operator::start(cluster, &QUICK)];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut fallen = JoinSet::new();
    for round in 0..kills {
        let leader = eventually(PATIENCE, || async {
            pair.iter().position(|operator| operator.output().contains("leading:")).ok_or("nobody leads")
        });
        let leader = leader.await.unwrap();
        wrote(cluster, &pair[leader].user).await;
        // An xorshift: a random moment within half a second, the same in every run.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        tokio::time::sleep(Duration::from_millis(seed % 500)).await;
        let signal = [Signal::KILL, Signal::TERM, Signal::STOP][usize::try_from((seed >> 32) % 3).unwrap()];
        pair[leader].signal(signal);
        let mut one = std::mem::replace(&mut pair[leader], Operator::start(cluster, &QUICK));
        fallen.spawn(async move {
            if signal == Signal::STOP {
                // It wakes when another may already lead.
                tokio::time::sleep(Duration::from_millis(2_000 + seed % 3_000)).await;
                one.signal(Signal::CONT);
            }
            let code = one.exit_code().await;
            assert!(signal != Signal::TERM || code == Some(0), "{code:?}: {}", one.output());
        });
        println!("round {round}: {signal:?}");
    }
    while let Some(ended) = fallen.join_next().await {
        ended.unwrap();
    }
    busy.abort();
    let count = assert_one_writer_at_a_time(&election);
    println!("{kills} kills, {count} writes, never two writers");
    assert!(count > kills * 2);
}
