//! Pools that follow their queue: from zero to as many daemons as jobs wait, back to zero, and never a build lost.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::{
    codersim::{Mode, SimFault},
    eventually,
    node::{Behaviour, Rule},
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use coder_k8s_scenes::{
    CRASHING, Operator, PATIENCE, exits_around,
    pool::{PoolScene, condition, is, is_settled, message, status, tags},
    scene::Scene,
    working_daemons::{Daemons, Tally, WaitingJobs},
};

use crate::{DAEMONS, MEASURING};

/// Long enough that a poll comes while it runs.
const BUILD: Duration = Duration::from_secs(2);

/// A scaled pool whose daemons take the jobs of a queue.
struct Queue {
    pool: PoolScene,
    jobs: Arc<WaitingJobs>,
    daemons: Daemons,
}

impl Queue {
    /// A pool without pods and jobs.
    async fn new(autoscaling: Value) -> Self {
        let queue = Self::of(PoolScene::plane(&DAEMONS, "scaled", Mode::Licensed).await);
        queue.make(autoscaling).await;
        queue
    }

    fn of(pool: PoolScene) -> Self {
        let jobs = WaitingJobs::new(&pool.sim, tags(&[]));
        let daemons = Daemons::follow_queue(&pool.scene, &jobs);
        Self { pool, jobs, daemons }
    }

    async fn make(&self, autoscaling: Value) {
        self.pool.make(json!({"autoscaling": autoscaling, "replicas": 7})).await;
        self.pool.until_ready().await;
        self.until_scaling("True", "Steady").await;
    }

    async fn until_scaling(&self, status: &str, reason: &str) -> CoderProvisioner {
        self.pool.until_condition("Autoscaling", status, reason).await
    }

    async fn replicas(&self) -> i32 {
        let deployment: Deployment = self.pool.scene.until_exists("provisioner-pool").await;
        deployment.spec.unwrap().replicas.unwrap()
    }

    /// Waits until the Deployment has so many replicas, and says how many it had at most meanwhile.
    async fn until_replicas(&self, expected: i32) -> i32 {
        let mut most = 0;
        let began = Instant::now();
        loop {
            let replicas = self.replicas().await;
            most = most.max(replicas);
            if replicas == expected {
                return most;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{replicas} and not {expected} replicas: {:?}\n{}",
                self.pool.now().await.status,
                self.pool.scene.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until no pod is left: one that has not been told to stop yet may take the next job.
    async fn until_empty(&self) {
        self.until_replicas(0).await;
        let labels = ListParams::default().labels("app.kubernetes.io/name=coder-provisioner");
        let empty = eventually(PATIENCE, || async {
            let all = self.pool.scene.api::<Pod>().list(&labels).await.map_err(|error| error.to_string())?;
            if all.items.is_empty() { Ok(()) } else { Err(format!("{} pods", all.items.len())) }
        });
        empty.await.unwrap();
    }

    async fn until_done(&self, builds: usize) {
        let done = eventually(PATIENCE, || async {
            let finished = self.tally().jobs.load(SeqCst);
            if finished >= builds { Ok(()) } else { Err(format!("{finished} of {builds}")) }
        });
        done.await.unwrap_or_else(|error| panic!("{error}\n{}", self.pool.scene.log()));
    }

    fn tally(&self) -> &Tally {
        &self.daemons.tally
    }

    /// No build lost its session. Returns how many daemons were told to stop while they had one.
    fn told_while_busy(&self) -> usize {
        assert_eq!(self.tally().lost.load(SeqCst), 0, "a build was lost: {:?}", self.tally());
        self.tally().told_while_busy.load(SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_fills_the_pool_and_its_end_empties_it() {
    let queue = Queue::new(json!({"maxReplicas": 4, "scaleDownAfter": "2s"})).await;
    assert_eq!(queue.replicas().await, 0, "spec.replicas is ignored");
    let pool = queue.pool.now().await;
    assert!(is(&pool, "Ready", "True", Some("ScaledToZero")) || is(&pool, "Ready", "True", None));
    let key = queue.pool.only_key().id;

    queue.jobs.add(3, BUILD);
    assert_eq!(queue.until_replicas(3).await, 3, "one daemon for each job");
    queue.until_done(3).await;
    queue.until_empty().await;
    queue.until_scaling("True", "Steady").await;
    queue.pool.until(is_settled).await;
    assert_eq!(queue.told_while_busy(), 0);
    assert_eq!(queue.pool.only_key().id, key, "the key stays");
    assert!(queue.pool.events("ScalingUp").await[0].contains("3 jobs wait for the pool"));
    assert!(!queue.pool.events("ScalingDown").await.is_empty());

    // More jobs than daemons are permitted.
    queue.jobs.add(9, BUILD);
    let pool = queue.until_scaling("False", "AtMaximum").await;
    assert!(message(&pool, "Autoscaling").contains("raise spec.autoscaling.maxReplicas"));
    let said = status(&pool).autoscaling.unwrap();
    assert!(said.desired == 4 && said.pending > 4 && said.reason == "AtMaximum", "{said:?}");
    let (_, metrics) = queue.pool.scene.operator().get("--metrics-addr", "/metrics").await;
    let labels = format!("{{namespace=\"{}\",name=\"pool\"", queue.pool.scene.namespace);
    for family in ["coder_k8s_pool_jobs_pending", "coder_k8s_pool_jobs_longest_wait_seconds"] {
        assert!(metrics.contains(&format!("{family}{labels}")), "{metrics}");
    }
    assert_eq!(queue.until_replicas(4).await, 4);
    queue.until_done(12).await;
    assert!(queue.until_replicas(0).await <= 4);
    assert_eq!(queue.told_while_busy(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_daemon_stays_while_the_idle_ones_leave() {
    let queue = Queue::new(json!({"maxReplicas": 4, "scaleDownAfter": "1s"})).await;
    queue.jobs.add(2, Duration::from_millis(200));
    queue.jobs.add(1, Duration::from_secs(8));
    queue.until_replicas(3).await;
    queue.until_done(2).await;
    queue.until_replicas(1).await;
    let is_said = |pool: &CoderProvisioner| {
        status(pool).autoscaling.is_some_and(|said| (said.desired, said.busy) == (1, 1))
    };
    queue.pool.until(is_said).await;
    queue.until_done(3).await;
    queue.until_replicas(0).await;
    assert_eq!(queue.told_while_busy(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_in_the_middle_of_a_burst_loses_no_build() {
    let queue = Queue::new(json!({"maxReplicas": 3, "scaleDownAfter": "2s"})).await;
    queue.jobs.add(9, BUILD);
    queue.until_replicas(3).await;
    queue.until_done(1).await;
    queue.pool.edit(json!({"key": {"name": "another"}})).await;
    queue.until_done(9).await;
    queue.until_replicas(0).await;
    queue.pool.until(is_settled).await;
    queue.pool.until_holds(&["another"]).await;
    // A rollout tells all daemons to stop, and those with a build finish it first.
    println!("{} of 9 builds ended after their pod was told to stop", queue.told_while_busy());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaves_while_coderd_does_not_answer() {
    let queue = Queue::new(json!({"maxReplicas": 3, "scaleDownAfter": "1s"})).await;
    queue.jobs.add(2, Duration::from_secs(4));
    queue.until_replicas(2).await;
    for path in ["provisionerdaemons", "provisionerjobs"] {
        queue.pool.sim.fault("GET", &format!("/api/v2/organizations/*/{path}"), SimFault::Reset, None);
    }
    let pool = queue.until_scaling("Unknown", "QueueUnknown").await;
    assert!(message(&pool, "Autoscaling").contains("keeps 2 daemons"));
    queue.until_done(2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(queue.replicas().await, 2, "they are idle for long enough, and nobody knows");
    queue.pool.sim.clear_faults();
    queue.until_replicas(0).await;
    assert_eq!(queue.told_while_busy(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minimum_and_spare_daemons_are_kept_and_edits_are_followed() {
    let queue = Queue::new(json!({"minReplicas": 1, "maxReplicas": 4, "scaleDownAfter": "1s"})).await;
    queue.until_replicas(1).await;
    queue.pool.edit(json!({"autoscaling": {"spare": 2}})).await;
    queue.until_replicas(2).await;
    queue.pool.edit(json!({"autoscaling": {"maxReplicas": 1, "spare": 1}})).await;
    queue.until_replicas(1).await;
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let day = |day: jiff::civil::Date| format!("{:?}", day.weekday());
    let days = [day(now.date().yesterday().unwrap()), day(now.date())];
    let window =
        json!({"weekdays": days, "from": "00:00", "to": "00:00", "timeZone": "Etc/UTC", "minReplicas": 3});
    queue.pool.edit(json!({"autoscaling": {"maxReplicas": 4, "spare": 0, "windows": [window]}})).await;
    queue.until_replicas(3).await;
    // Without autoscaling the replicas of the spec count again.
    queue.pool.edit(json!({"autoscaling": null, "replicas": 2})).await;
    queue.until_replicas(2).await;
    let pool = queue.pool.until(|pool| condition(pool, "Autoscaling").is_none()).await;
    assert!(status(&pool).autoscaling.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_makes_one_pool_grow_and_not_two() {
    let queue = Queue::of(PoolScene::plane(&DAEMONS, "scaled", Mode::Licensed).await);
    for name in ["pool", "other"] {
        queue.pool.make_named(name, json!({"autoscaling": {"maxReplicas": 4, "scaleDownAfter": "1s"}})).await;
        queue.pool.until_condition_of(name, "Autoscaling", "True", Some("Steady")).await;
    }
    queue.jobs.add(2, Duration::from_secs(3));
    queue.until_done(2).await;
    for name in ["provisioner-pool", "provisioner-other"] {
        queue
            .pool
            .scene
            .until(name, |deployment: &Deployment| deployment.spec.as_ref().unwrap().replicas == Some(0))
            .await;
    }
    assert_eq!(queue.tally().sessions.load(SeqCst), 2, "one daemon for each job");
    assert_eq!(queue.told_while_busy(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_do_not_start_do_not_multiply() {
    let queue = Queue::new(json!({"maxReplicas": 20, "scaleDownAfter": "1s"})).await;
    let broken = Rule::namespace(&queue.pool.scene.namespace).image("broken");
    queue.pool.scene.node().behave(broken, Behaviour::ImagePullBackOff);
    queue.pool.edit(json!({"image": "example.test/broken:v2.36.1"})).await;
    queue.pool.until_ready().await;
    queue.jobs.add(1, BUILD);
    queue.until_replicas(1).await;
    queue.pool.scene.until("pool", |pool| is(pool, "Autoscaling", "True", Some("ScalingUp"))).await;
    queue.jobs.add(9, BUILD);
    let pool = queue.until_scaling("False", "StartsFail").await;
    assert!(message(&pool, "Autoscaling").contains("see the events and logs of its pods"));
    let before = queue.replicas().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(queue.replicas().await, before, "no more are added");
    queue.pool.edit(json!({"image": null})).await;
    queue.until_done(10).await;
    queue.until_replicas(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_through_the_scale_subresource_is_ignored_and_said() {
    let queue = Queue::new(json!({"maxReplicas": 3})).await;
    let api = queue.pool.scene.api::<CoderProvisioner>();
    let scale = json!({"spec": {"replicas": 3}});
    api.patch_scale("pool", &PatchParams::apply("some-autoscaler"), &Patch::Merge(&scale)).await.unwrap();
    let pool = queue.pool.until_condition("ScaleIgnored", "True", "ScaledByOthers").await;
    assert!(message(&pool, "ScaleIgnored").starts_with("some-autoscaler set spec.replicas"));
    assert_eq!(queue.replicas().await, 0);
    queue.pool.edit(json!({"replicas": null})).await;
    queue.pool.until(|pool| condition(pool, "ScaleIgnored").is_none()).await;
}

/// The arguments of an operator that may end, with the intervals of a scaled pool.
fn crashing() -> Vec<&'static str> {
    [CRASHING, &["--autoscaling-interval=500ms", "--daemons-interval=1s"]].concat()
}

/// The same, with keys and entitlements that are asked for as seldom as they really are.
fn resting() -> Vec<&'static str> {
    let is_scaled = |flag: &&str| flag.starts_with("--verify-") || flag.starts_with("--entitlements-");
    crashing().into_iter().filter(|flag| !is_scaled(flag)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_ends_at_any_step_of_scaling_loses_no_build() {
    let scene = Scene::unmanaged("scaled").await;
    let pool = PoolScene::within(scene, Mode::Licensed).await;
    let queue = Queue::of(pool);
    let mut victim: Operator = queue.pool.scene.start(&crashing());
    queue.pool.make_plane(json!({})).await;
    queue.pool.until_answered().await;
    queue.make(json!({"maxReplicas": 3, "scaleDownAfter": "1s"})).await;
    let mut builds = 0;
    let steps = [
        "patch deployments",
        "patch pods",
        "update coderprovisioners/status",
        "coderd list-provisionerdaemons",
    ];
    for fault in exits_around(&steps) {
        // One of the builds lasts, so that the pool shrinks around it: without it no pod would be marked.
        let lasts = if fault.contains("patch pods") { 10 } else { 3 };
        queue.jobs.add(2, Duration::from_millis(300));
        queue.jobs.add(1, Duration::from_secs(lasts));
        builds += 3;
        victim.faults(std::slice::from_ref(&fault));
        let code = victim.exit_code().await;
        assert_eq!(code, Some(coder_k8s_engine::client::EXIT_CODE), "{fault}: {}", victim.tail());
        victim = queue.pool.scene.start(&crashing());
        queue.until_done(builds).await;
        queue.until_empty().await;
        assert_eq!(queue.told_while_busy(), 0, "{fault}");
    }
    queue.pool.until(is_settled).await;
    assert_eq!(queue.pool.made(), 1, "scaling makes no key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_changes_nothing_and_rest_costs_the_api_server_nothing() {
    let scene = Scene::unmanaged("scaled").await;
    let queue = Queue::of(PoolScene::within(scene, Mode::Licensed).await);
    let mut first: Operator = queue.pool.scene.start(&resting());
    queue.pool.make_plane(json!({})).await;
    queue.pool.until_answered().await;
    queue.make(json!({"maxReplicas": 3, "scaleDownAfter": "1h"})).await;
    queue.jobs.add(2, Duration::from_millis(300));
    queue.until_replicas(2).await;
    queue.until_done(2).await;
    queue.until_scaling("True", "WaitingForIdle").await;
    first.signal(rustix::process::Signal::KILL);
    first.exit_code().await;
    let second = queue.pool.scene.start(&resting());
    second.until_ready().await;
    // It polls, and the idle times begin anew: only the time of the status may change.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(queue.replicas().await, 2);
    let mark = queue.pool.sim.mark();
    let (before, began) = (queue.pool.scene.requests_in(&queue.pool.scene.namespace).len(), Instant::now());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let requests = queue.pool.scene.requests_in(&queue.pool.scene.namespace).split_off(before);
    // The control plane may ask for its entitlements meanwhile.
    let of_pools = requests
        .iter()
        .filter(|event| ["coderprovisioners", "deployments", "pods"].contains(&event.resource.as_str()));
    let requests: Vec<_> = of_pools.map(|event| (&event.verb, &event.resource, &event.name)).collect();
    assert!(requests.is_empty(), "at rest the API server is asked nothing: {requests:?}");
    let calls = queue.pool.sim.since(mark).iter().filter(|entry| entry.path.contains("provisioner")).count();
    let seconds = began.elapsed().as_secs_f64();
    println!("at rest: {calls} lists in {seconds:.1} s, with an interval of 0.5 s that doubles at rest");
    assert!(calls <= 16, "{calls} calls: the interval at rest is a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_its_pod_within_an_interval() {
    const SAMPLES: usize = 9;
    let _alone = MEASURING.lock().await;
    let queue = Queue::of(PoolScene::within(Scene::unmanaged("scaled").await, Mode::Licensed).await);
    // Without the short interval of fixed pools, whose polls would come in between.
    let flags = resting().into_iter().filter(|flag| !flag.starts_with("--daemons-interval"));
    let _operator: Operator = queue.pool.scene.start(&flags.collect::<Vec<_>>());
    queue.pool.make_plane(json!({})).await;
    queue.pool.until_answered().await;
    queue.make(json!({"maxReplicas": 2, "scaleDownAfter": "1s"})).await;
    let mut times = Vec::new();
    for sample in 0..SAMPLES {
        queue.until_empty().await;
        queue.until_scaling("True", "Steady").await;
        // Jobs come at any time of the interval at rest, which is a second.
        tokio::time::sleep(Duration::from_millis(1_000 + 111 * sample as u64)).await;
        let began = Instant::now();
        queue.jobs.add(1, Duration::from_millis(100));
        let pods = queue.pool.scene.api::<Pod>();
        let labels = ListParams::default().labels("app.kubernetes.io/instance=pool");
        loop {
            let all = pods.list(&labels).await.unwrap().items;
            if all.iter().any(|pod| pod.metadata.deletion_timestamp.is_none()) {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{}", queue.pool.scene.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.push(began.elapsed());
        queue.until_done(sample + 1).await;
    }
    times.sort();
    let (median, worst) = (times[SAMPLES / 2], times[SAMPLES - 1]);
    println!(
        "from a job in the list to its pod: median {median:?}, longest {worst:?}, interval 500 ms, at rest 1 s"
    );
    assert!(worst < Duration::from_secs(10), "{times:?}");
}
