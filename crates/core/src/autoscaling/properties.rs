//! What holds for every input: over random organizations, and over small worlds that live through all polls of hours.

use fastrand::Rng;

use super::*;
use crate::jobs::{can_run, normal};

const NOW: i64 = 1_000_000;
const TAGS: [&[(&str, &str)]; 6] = [
    &[],
    &[("a", "1")],
    &[("b", "1")],
    &[("a", "1"), ("b", "1")],
    &[("a", "2")],
    &[("a", "1"), ("b", "1"), ("c", "1")],
];
const NAMES: [&str; 5] = ["p0", "p1", "p2", "p3", "p4"];

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn tags(index: usize) -> DaemonTags {
    let pairs = TAGS[index % TAGS.len()].iter();
    normal(&pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

/// An organization that may be in any state, possible or not.
struct Organization {
    jobs: Vec<PendingJob>,
    foreign: Vec<(DaemonTags, u32)>,
    policies: Vec<ScalingPolicy>,
    pools: Vec<(DaemonTags, u32, PodCounts)>,
}

impl Organization {
    fn random(rng: &mut Rng) -> Self {
        let pools = rng.usize(1..=NAMES.len());
        Self {
            jobs: (0..rng.usize(0..30)).map(|_| random_job(rng)).collect(),
            foreign: (0..rng.usize(0..4)).map(|_| (tags(rng.usize(..)), rng.u32(0..4))).collect(),
            policies: (0..pools).map(|_| random_policy(rng)).collect(),
            pools: (0..pools).map(|_| (tags(rng.usize(..)), rng.u32(0..20), random_pods(rng))).collect(),
        }
    }

    fn pools(&self) -> Vec<ScaledPool<'_>> {
        let each = self.pools.iter().zip(&self.policies).zip(NAMES);
        each.map(|(((tags, replicas, pods), policy), name)| ScaledPool {
            name,
            tags: tags.clone(),
            policy,
            replicas: *replicas,
            pods: pods.clone(),
        })
        .collect()
    }

    fn decide(&self) -> Vec<ScaleDecision> {
        let mut foreign = BTreeMap::new();
        for (tags, number) in &self.foreign {
            *foreign.entry(tags).or_default() += *number;
        }
        decide(&QueueState::Known { jobs: &self.jobs, foreign }, &self.pools(), at(NOW))
    }
}

fn random_job(rng: &mut Rng) -> PendingJob {
    let mut tags = tags(rng.usize(..));
    if rng.u8(..) < 20 {
        tags.extend(
            [("scope", "user"), ("owner", "42")].map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
    }
    PendingJob { tags, since: (rng.u8(..) < 240).then(|| at(NOW - rng.i64(-10..100))) }
}

fn random_policy(rng: &mut Rng) -> ScalingPolicy {
    let scale_down_after = SignedDuration::from_secs(rng.i64(0..600));
    let (min, max, spare) = (rng.u32(0..6), rng.u32(0..20), rng.u32(0..4));
    ScalingPolicy { min, max, spare, scale_down_after, windows: Vec::new() }
}

fn random_pods(rng: &mut Rng) -> PodCounts {
    let times = |rng: &mut Rng| (0..rng.usize(0..6)).map(|_| at(NOW - rng.i64(0..900))).collect();
    PodCounts {
        busy: rng.u32(0..8),
        unknown: if rng.bool() { 0 } else { rng.u32(0..3) },
        idle: times(rng),
        starting: times(rng),
        failing: if rng.bool() { 0 } else { rng.u32(0..5) },
        refused: rng.u8(..) < 20,
    }
}

fn organizations() -> impl Iterator<Item = (u64, Organization)> {
    (0..20_000).map(|seed| (seed, Organization::random(&mut Rng::with_seed(seed))))
}

#[test]
fn never_below_busy_and_never_above_the_maximum_otherwise() {
    for (seed, organization) in organizations() {
        for (pool, found) in organization.pools().iter().zip(organization.decide()) {
            let PodCounts { busy, unknown, .. } = pool.pods;
            assert!(found.desired >= busy, "seed {seed}: {found:?}");
            assert!(found.desired >= (busy + unknown).min(pool.replicas), "seed {seed}: {found:?}");
            assert!(found.desired <= pool.policy.max.max(found.busy), "seed {seed}: {found:?}");
            assert!(found.desired >= pool.policy.min.min(pool.policy.max), "seed {seed}: {found:?}");
        }
    }
}

#[test]
fn shrinks_only_by_what_is_idle_for_long_enough_or_never_connected() {
    for (seed, organization) in organizations() {
        for (pool, found) in organization.pools().iter().zip(organization.decide()) {
            let ripe = pool.pods.idle.iter();
            let ripe = count(ripe.filter(|since| has_passed(**since, pool.policy.scale_down_after, at(NOW))));
            let unconnected = pool.replicas.saturating_sub(found.busy + found.idle + found.starting);
            let least = pool.replicas.saturating_sub(ripe + unconnected).min(pool.policy.max);
            assert!(found.desired >= least, "seed {seed}: {found:?} of {pool:?}");
        }
    }
}

#[test]
fn each_job_counts_at_most_once_and_only_where_it_may_run() {
    for (seed, organization) in organizations() {
        let decisions = organization.decide();
        let pools = organization.pools();
        let may_run = |job: &&PendingJob| pools.iter().any(|pool| can_run(&job.tags, &pool.tags));
        let runnable = count(organization.jobs.iter().filter(may_run));
        let counted: u32 = decisions.iter().map(|decision| decision.pending).sum();
        let foreign: u32 = organization.foreign.iter().map(|(_, number)| number).sum();
        assert!(counted <= runnable && counted + foreign >= runnable, "seed {seed}: {counted} of {runnable}");
        for (pool, found) in pools.iter().zip(&decisions) {
            let own = count(organization.jobs.iter().filter(|job| can_run(&job.tags, &pool.tags)));
            assert!(found.pending <= own, "seed {seed}: {found:?}");
        }
    }
}

#[test]
fn the_total_is_never_more_than_jobs_spare_and_minimum_need() {
    for (seed, organization) in organizations() {
        let (mut total, mut bound) = (0, count(&organization.jobs));
        for (pool, found) in organization.pools().iter().zip(organization.decide()) {
            let ScalingPolicy { min, spare, .. } = pool.policy;
            let failing = pool.pods.failing + count(&pool.pods.starting);
            // What is there already leaves by itself, when it is idle.
            let stays = found.busy + min.max(spare) + failing;
            total += found.desired;
            bound += if found.desired > pool.replicas { stays } else { stays.max(pool.replicas) };
        }
        assert!(total <= bound, "seed {seed}: {total} of {bound}");
    }
}

#[test]
fn another_job_takes_no_daemon_away() {
    for (seed, mut organization) in organizations() {
        let mut rng = Rng::with_seed(!seed);
        let before = organization.decide();
        let index = rng.usize(0..=organization.jobs.len());
        organization.jobs.insert(index, random_job(&mut rng));
        for (before, after) in before.iter().zip(organization.decide()) {
            let is_monotone = after.desired >= before.desired && after.pending >= before.pending;
            assert!(is_monotone, "seed {seed}: {before:?}, then {after:?}");
        }
    }
}

#[test]
fn the_order_of_jobs_and_pools_decides_nothing() {
    for (seed, mut organization) in organizations() {
        let before = organization.decide();
        Rng::with_seed(seed).shuffle(&mut organization.jobs);
        assert_eq!(organization.decide(), before, "seed {seed}");
        let mut pools = organization.pools();
        pools.reverse();
        let mut foreign = BTreeMap::new();
        for (tags, number) in &organization.foreign {
            *foreign.entry(tags).or_default() += *number;
        }
        let mut after = decide(&QueueState::Known { jobs: &organization.jobs, foreign }, &pools, at(NOW));
        after.reverse();
        assert_eq!(after, before, "seed {seed}");
    }
}

#[test]
fn without_an_answer_nothing_shrinks() {
    for (seed, organization) in organizations() {
        let pools = organization.pools();
        for since in [0, 899, 901] {
            let found = decide(&QueueState::Unknown { since: at(NOW - since), why: None }, &pools, at(NOW));
            for (pool, found) in pools.iter().zip(found) {
                let PodCounts { busy, unknown, ref idle, .. } = pool.pods;
                let least = if since < 900 { pool.replicas } else { 0 };
                let least = least.max((busy + unknown + count(idle)).min(pool.replicas)).max(busy);
                assert!(found.desired >= least, "seed {seed}: {found:?}");
                let most = pool.replicas.max(busy).max(pool.policy.min.min(pool.policy.max));
                assert!(found.desired <= most, "seed {seed}: {found:?}");
            }
        }
    }
}

#[test]
fn sums_of_the_largest_numbers_are_survived() {
    let most = u32::MAX;
    let policy = ScalingPolicy {
        min: most,
        max: most,
        spare: most,
        scale_down_after: SignedDuration::MAX,
        windows: Vec::new(),
    };
    let times = vec![Timestamp::MIN, Timestamp::MAX];
    let pods = PodCounts {
        busy: most,
        unknown: most,
        idle: times.clone(),
        starting: times.clone(),
        failing: most,
        refused: false,
    };
    let pools = [ScaledPool { name: "p", tags: tags(0), policy: &policy, replicas: most, pods }];
    let jobs = times.iter().map(|since| PendingJob { tags: tags(0), since: Some(*since) });
    let jobs: Vec<_> = jobs.collect();
    for now in [Timestamp::MIN, at(NOW), Timestamp::MAX] {
        let foreign_tags = tags(0);
        let foreign = BTreeMap::from([(&foreign_tags, most)]);
        for queue in
            [QueueState::Known { jobs: &jobs, foreign }, QueueState::Unknown { since: now, why: None }]
        {
            assert_eq!(decide(&queue, &pools, now).remove(0).desired, most);
        }
    }
}

/// One pool whose pods take a while to start, with jobs that take a while to run.
struct World {
    policy: ScalingPolicy,
    replicas: u32,
    /// When each daemon of a pod finishes its build, or since when it is idle, or when it connects.
    pods: Vec<WorldPod>,
    /// When the pods connect that are created now. None: they never do.
    start: Option<i64>,
    now: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WorldPod {
    Starting { created: i64, connects: Option<i64> },
    Idle { since: i64 },
    Busy { until: i64 },
}

impl World {
    fn new(policy: ScalingPolicy, start: Option<i64>) -> Self {
        Self { policy, replicas: 0, pods: Vec::new(), start, now: NOW }
    }

    /// Lets time pass to the next poll: daemons connect, take jobs from the queue and finish them.
    fn advance(&mut self, queue: &mut u32, build: i64) {
        self.now += 5;
        for pod in &mut self.pods {
            *pod = match *pod {
                WorldPod::Starting { connects: Some(time), .. } if time <= self.now => {
                    WorldPod::Idle { since: self.now }
                }
                WorldPod::Busy { until } if until <= self.now => WorldPod::Idle { since: self.now },
                other => other,
            };
            if matches!(pod, WorldPod::Idle { .. }) && *queue > 0 {
                *queue -= 1;
                *pod = WorldPod::Busy { until: self.now + build };
            }
        }
    }

    fn counts(&self) -> PodCounts {
        let mut counts = PodCounts::default();
        for pod in &self.pods {
            match *pod {
                WorldPod::Starting { created, .. } => counts.starting.push(at(created)),
                WorldPod::Idle { since } => counts.idle.push(at(since)),
                WorldPod::Busy { .. } => counts.busy += 1,
            }
        }
        counts
    }

    /// Decides, and makes it so. The pods that leave are not busy ones.
    fn poll(&mut self, queue: u32) -> u32 {
        let jobs = vec![PendingJob { tags: tags(0), since: Some(at(self.now - 60)) }; queue as usize];
        let pool = ScaledPool {
            name: "p",
            tags: tags(0),
            policy: &self.policy,
            replicas: self.replicas,
            pods: self.counts(),
        };
        let known = QueueState::Known { jobs: &jobs, foreign: BTreeMap::new() };
        self.replicas = decide(&known, &[pool], at(self.now)).remove(0).desired;
        // As a ReplicaSet chooses: those that are not ready first, then those without a deletion cost.
        self.pods.sort_by_key(|pod| match *pod {
            WorldPod::Busy { .. } => (0, 0),
            WorldPod::Idle { since } => (1, -since),
            WorldPod::Starting { created, .. } => (2, created),
        });
        while self.pods.len() > self.replicas as usize {
            let pod = self.pods.pop();
            assert!(!matches!(pod, Some(WorldPod::Busy { .. })), "a busy daemon was told to stop");
        }
        let connects = self.start.map(|delay| self.now + delay);
        self.pods.resize(self.replicas as usize, WorldPod::Starting { created: self.now, connects });
        self.replicas
    }
}

fn changes(history: &[u32]) -> Vec<(u32, u32)> {
    history.windows(2).map(|pair| (pair[0], pair[1])).filter(|(one, two)| one != two).collect()
}

#[test]
fn a_constant_queue_makes_no_flapping() {
    for (queue, max, spare, start) in [
        (1, 9, 0, Some(30)),
        (4, 9, 0, Some(30)),
        (4, 3, 0, Some(120)),
        (4, 9, 2, Some(30)),
        (30, 40, 5, Some(550)),
    ] {
        let policy = ScalingPolicy { max, spare, ..base_policy() };
        let mut world = World::new(policy, start);
        // Jobs that nobody takes: the most that a queue can tempt.
        let history: Vec<_> = (0..1_000)
            .map(|_| {
                world.advance(&mut 0, 0);
                world.poll(queue)
            })
            .collect();
        assert_eq!(changes(&history), [], "queue {queue}: it is right from the first poll");
        assert_eq!(history[0], (queue + spare).min(max));
    }
}

#[test]
fn a_burst_grows_once_and_shrinks_once() {
    let mut world = World::new(base_policy(), Some(30));
    let mut queue = 7;
    let mut history = vec![0];
    for _ in 0..400 {
        world.advance(&mut queue, 90);
        history.push(world.poll(queue));
    }
    assert_eq!(queue, 0, "every job ran");
    assert_eq!(changes(&history), [(0, 7), (7, 0)]);
}

#[test]
fn a_steady_stream_of_jobs_settles() {
    // A job each 20 seconds that takes 90: between 4 and 5 daemons are busy.
    let mut world = World::new(base_policy(), Some(30));
    let (mut queue, mut history) = (0, Vec::new());
    for poll in 0..2_000 {
        queue += u32::from(poll % 4 == 0);
        world.advance(&mut queue, 90);
        history.push(world.poll(queue));
    }
    let settled = &history[200..];
    assert_eq!(changes(settled), [], "the last hours have no change");
    assert!(settled.iter().all(|replicas| (5..=7).contains(replicas)), "{}", settled[0]);
}

#[test]
fn starts_that_always_fail_are_bounded_and_end_with_the_queue() {
    let mut world = World::new(base_policy(), None);
    let mut history = vec![0];
    for _ in 0..2_000 {
        world.advance(&mut 0, 0);
        history.push(world.poll(1));
    }
    assert_eq!(history.iter().max(), Some(&3), "one job tempts {:?}", changes(&history));
    world.advance(&mut 0, 0);
    assert_eq!(world.poll(0), 0, "without jobs nothing is kept that fails");
}

#[test]
fn a_restart_changes_nothing_by_itself() {
    for (seed, mut organization) in organizations() {
        // A pool at rest: what it has is what it needs, or idle for whatever time.
        organization.jobs.clear();
        for ((_, replicas, pods), policy) in organization.pools.iter_mut().zip(&mut organization.policies) {
            *pods =
                PodCounts { unknown: 0, failing: 0, refused: false, starting: Vec::new(), ..pods.clone() };
            *replicas = pods.busy + count(&pods.idle);
            pods.idle.iter_mut().for_each(|since| *since = at(NOW));
            policy.max = policy.max.max(*replicas);
            policy.scale_down_after += SignedDuration::from_secs(1);
            (policy.min, policy.spare) = (policy.min.min(*replicas), policy.spare.min(count(&pods.idle)));
        }
        for (pool, found) in organization.pools().iter().zip(organization.decide()) {
            assert_eq!(found.desired, pool.replicas, "seed {seed}: {found:?}");
        }
    }
}

fn base_policy() -> ScalingPolicy {
    let scale_down_after = SignedDuration::from_mins(5);
    ScalingPolicy { min: 0, max: 50, spare: 0, scale_down_after, windows: Vec::new() }
}
