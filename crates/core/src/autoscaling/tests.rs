use super::*;
use crate::{daemon_listing::DaemonTags, jobs::normal};

const NOW: i64 = 100_000;
const AFTER: i64 = 300;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    at(NOW - seconds)
}

fn tags(list: &str) -> DaemonTags {
    let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn policy(min: u32, max: u32, spare: u32) -> ScalingPolicy {
    ScalingPolicy { min, max, spare, scale_down_after: SignedDuration::from_secs(AFTER), windows: Vec::new() }
}

/// `number` jobs that wait for 10 seconds.
fn jobs(list: &str, number: usize) -> Vec<PendingJob> {
    aged(list, number, 10)
}

fn aged(list: &str, number: usize, seconds: i64) -> Vec<PendingJob> {
    let given = tags(list);
    let tags = if given.contains_key("scope") { given } else { normal(&given) };
    vec![PendingJob { tags, since: Some(ago(seconds)) }; number]
}

fn pool<'a>(
    name: &'a str,
    list: &str,
    policy: &'a ScalingPolicy,
    replicas: u32,
    pods: PodCounts,
) -> ScaledPool<'a> {
    ScaledPool { name, tags: normal(&tags(list)), policy, replicas, pods }
}

fn decide_all(jobs: &[PendingJob], foreign: &[(&str, u32)], pools: &[ScaledPool<'_>]) -> Vec<ScaleDecision> {
    let foreign: Vec<_> = foreign.iter().map(|(list, number)| (normal(&tags(list)), *number)).collect();
    let foreign = foreign.iter().map(|(tags, number)| (tags, *number)).collect();
    decide(&QueueState::Known { jobs, foreign }, pools, at(NOW))
}

/// One pool without tags, jobs without tags.
fn decide_one(policy: &ScalingPolicy, pending: usize, replicas: u32, pods: PodCounts) -> ScaleDecision {
    decide_all(&jobs("", pending), &[], &[pool("pool", "", policy, replicas, pods)]).remove(0)
}

fn pods(busy: u32, idle: &[i64], starting: &[i64], failing: u32) -> PodCounts {
    let times = |list: &[i64]| list.iter().map(|seconds| ago(*seconds)).collect();
    PodCounts { busy, idle: times(idle), starting: times(starting), failing, ..PodCounts::default() }
}

#[test]
fn the_replicas_follow_the_queue() {
    use ScaleReason::{
        AtMaximum as Max, ScalingDown as Down, ScalingUp as Up, StartsFail as Fail, Steady,
        WaitingForIdle as Wait,
    };
    let refused = |pods: PodCounts| PodCounts { refused: true, ..pods };
    for (title, (min, max, spare), pending, replicas, pods, desired, reason) in [
        ("nothing to do", (0, 9, 0), 0, 0, pods(0, &[], &[], 0), 0, Steady),
        ("a burst from zero", (0, 9, 0), 5, 0, pods(0, &[], &[], 0), 5, Up),
        ("beside busy daemons", (0, 9, 0), 2, 3, pods(3, &[], &[], 0), 5, Up),
        ("at most the maximum", (0, 9, 0), 50, 0, pods(0, &[], &[], 0), 9, Max),
        ("busy at the maximum", (0, 3, 0), 1, 3, pods(3, &[], &[], 0), 3, Max),
        ("idle daemons take the jobs", (0, 9, 0), 2, 3, pods(1, &[5, 5], &[], 0), 3, Steady),
        ("pods that start are capacity", (0, 9, 0), 2, 2, pods(0, &[], &[20, 20], 0), 2, Up),
        ("pods to be created are capacity", (0, 9, 0), 2, 2, pods(0, &[], &[], 0), 2, Up),
        ("only the rest is added", (0, 9, 0), 5, 3, pods(1, &[5], &[20], 0), 6, Up),
        ("idle for too short", (0, 9, 0), 0, 2, pods(0, &[5, 299], &[], 0), 2, Wait),
        ("idle for long enough", (0, 9, 0), 0, 2, pods(0, &[5, 300], &[], 0), 1, Down),
        ("down to zero", (0, 9, 0), 0, 2, pods(0, &[400, 300], &[], 0), 0, Down),
        ("down to the minimum", (1, 9, 0), 0, 3, pods(0, &[400, 400, 400], &[], 0), 1, Down),
        ("never below busy", (0, 9, 0), 0, 3, pods(2, &[400], &[], 0), 2, Down),
        ("idle ones stay for jobs", (0, 9, 0), 1, 3, pods(1, &[400, 400], &[], 0), 2, Down),
        ("spare ones stay", (0, 9, 1), 0, 3, pods(1, &[400, 400], &[], 0), 2, Down),
        ("spare beside busy", (0, 9, 2), 0, 1, pods(1, &[], &[], 0), 3, Up),
        ("spare beside jobs", (0, 9, 1), 2, 0, pods(0, &[], &[], 0), 3, Up),
        ("spare within the maximum", (0, 3, 5), 1, 0, pods(0, &[], &[], 0), 3, Up),
        ("the minimum without jobs", (2, 9, 0), 0, 0, pods(0, &[], &[], 0), 2, Up),
        ("a minimum above the maximum", (7, 3, 0), 0, 0, pods(0, &[], &[], 0), 3, Up),
        ("a pod that starts for a job that went away", (0, 9, 0), 0, 1, pods(0, &[], &[20], 0), 1, Wait),
        ("a lower maximum", (0, 2, 0), 0, 5, pods(1, &[5, 5, 5, 5], &[], 0), 2, Down),
        ("a lower maximum kills no build", (0, 2, 0), 4, 5, pods(3, &[5, 5], &[], 0), 3, Max),
        ("a maximum of zero", (0, 0, 3), 4, 0, pods(0, &[], &[], 0), 0, Max),
        ("one more for a pod that fails", (0, 9, 0), 2, 2, pods(0, &[], &[20], 1), 3, Up),
        ("late is failing", (0, 9, 0), 1, 1, pods(0, &[], &[600], 0), 2, Up),
        ("not for ever", (0, 9, 0), 5, 3, pods(0, &[], &[], 3), 3, Fail),
        ("late too", (0, 9, 0), 5, 3, pods(0, &[], &[700, 700, 700], 0), 3, Fail),
        ("a few of many fail", (0, 40, 0), 5, 15, pods(12, &[], &[], 3), 20, Up),
        ("half of many fail", (0, 40, 0), 5, 18, pods(12, &[], &[], 6), 18, Fail),
        ("failing pods leave when no job waits", (0, 9, 0), 0, 3, pods(0, &[], &[], 3), 0, Down),
        ("failing pods leave after builds took place", (0, 9, 0), 0, 4, pods(2, &[], &[], 2), 2, Down),
        ("failing pods stay while others start", (0, 9, 0), 0, 3, pods(0, &[], &[20], 2), 3, Wait),
        ("failing pods do not stop the minimum", (5, 9, 0), 0, 3, pods(0, &[], &[], 3), 5, Fail),
        ("a quota", (0, 9, 0), 5, 3, refused(pods(2, &[], &[], 0)), 3, Fail),
        ("a quota that is enough", (0, 9, 0), 1, 3, refused(pods(2, &[5], &[], 0)), 3, Steady),
        ("a quota, and no job any more", (0, 9, 0), 0, 3, refused(pods(2, &[], &[], 0)), 2, Down),
        ("more pods than replicas in a rollout", (0, 9, 0), 0, 2, pods(0, &[5, 5], &[9, 9], 0), 2, Wait),
        ("more busy ones than replicas", (0, 9, 0), 0, 1, pods(3, &[], &[], 0), 3, Up),
    ] {
        let policy = policy(min, max, spare);
        let found = decide_one(&policy, pending, replicas, pods);
        assert_eq!((found.desired, found.reason), (desired, reason), "{title}: {found:?}");
    }
}

#[test]
fn each_reason_has_a_sentence() {
    let one = |bounds: (u32, u32, u32), pending, replicas, pods| {
        let policy = policy(bounds.0, bounds.1, bounds.2);
        decide_one(&policy, pending, replicas, pods).message
    };
    let refused = PodCounts { refused: true, ..pods(2, &[], &[], 0) };
    for (found, expected) in [
        (one((0, 9, 0), 1, 0, pods(0, &[], &[], 0)), "1 daemon instead of 0: 1 job waits for the pool"),
        (one((2, 9, 0), 0, 0, pods(0, &[], &[], 0)), "2 daemons instead of 0: the minimum is 2"),
        (one((0, 9, 2), 0, 0, pods(0, &[], &[], 0)), "2 daemons instead of 0: 2 spare"),
        (one((0, 9, 0), 2, 2, pods(0, &[], &[9, 9], 0)), "2 jobs wait for the pool, and 2 daemons start"),
        (
            one((0, 2, 0), 3, 2, pods(2, &[], &[], 0)),
            "3 jobs wait for the pool, and the pool may have 2 daemons: raise spec.autoscaling.maxReplicas, or wait for builds to end",
        ),
        (
            one((0, 9, 0), 5, 3, pods(0, &[], &[], 3)),
            "5 jobs wait for the pool, and 3 pods do not start, so that the pool does not grow: see the events and logs of its pods",
        ),
        (
            one((0, 9, 0), 5, 3, refused),
            "5 jobs wait for the pool, and the API server refuses more than 2 pods: see the events of the ReplicaSet, and raise the quota",
        ),
        (
            one((0, 9, 0), 0, 2, pods(0, &[400, 400], &[], 0)),
            "0 daemons instead of 2: the others were idle for 5m or did not start",
        ),
        (one((0, 2, 0), 0, 5, pods(0, &[1; 5], &[], 0)), "2 daemons instead of 5: the maximum is 2"),
        (
            one((0, 9, 0), 0, 2, pods(1, &[4], &[], 0)),
            "1 daemon more than needed, which may leave when idle for 5m",
        ),
        (one((0, 9, 0), 0, 2, pods(2, &[], &[], 0)), "2 busy and 0 idle: as many daemons as needed"),
    ] {
        assert_eq!(found, expected);
    }
}

/// Pending jobs of each pool, by name.
fn shares(jobs: &[PendingJob], foreign: &[(&str, u32)], pools: &[ScaledPool<'_>]) -> Vec<u32> {
    decide_all(jobs, foreign, pools).into_iter().map(|decision| decision.pending).collect()
}

#[test]
fn each_job_counts_for_one_pool_that_may_run_it() {
    let (small, large) = (policy(0, 4, 0), policy(0, 10, 0));
    let plain = |name| pool(name, "", &large, 0, PodCounts::default());
    let gpu = pool("gpu", "gpu=1", &large, 0, PodCounts::default());
    let both = pool("both", "gpu=1,region=eu", &large, 0, PodCounts::default());
    let full = pool("full", "gpu=1", &small, 4, pods(4, &[], &[], 0));
    let failing = pool("failing", "gpu=1", &large, 3, pods(0, &[], &[], 3));
    let idle = pool("idle", "gpu=1,region=eu,size=l", &large, 1, pods(0, &[5], &[], 0));
    let starting = pool("starting", "gpu=1,region=eu", &large, 1, pods(0, &[], &[5], 0));
    let zone = pool("zone", "gpu=1,zone=x", &large, 1, pods(0, &[5], &[], 0));
    let plain_start = pool("plain-start", "gpu=1", &large, 1, pods(0, &[], &[5], 0));
    let (max_three, max_two) = (policy(0, 3, 0), policy(0, 2, 0));
    let three = pool("a", "gpu=1,region=eu", &max_three, 0, PodCounts::default());
    let two = pool("b", "region=eu", &max_two, 0, PodCounts::default());
    let short = pool("short", "gpu=1", &small, 0, PodCounts::default());
    for (title, jobs, pools, expected) in [
        ("no pool", jobs("gpu=1", 3), vec![plain("a")], vec![0]),
        ("not on tagged daemons", jobs("", 3), vec![gpu.clone()], vec![0]),
        ("of a user", jobs("scope=user,owner=42", 3), vec![plain("a"), gpu.clone()], vec![0, 0]),
        ("fewer tags than the daemon", jobs("region=eu", 3), vec![gpu.clone(), both.clone()], vec![0, 3]),
        ("spread evenly", jobs("", 5), vec![plain("b"), plain("a")], vec![2, 3]),
        ("spread by room", jobs("gpu=1", 8), vec![short.clone(), gpu.clone()], vec![1, 7]),
        ("where there is room", jobs("gpu=1", 3), vec![full.clone(), gpu.clone()], vec![0, 3]),
        ("not where starts fail", jobs("gpu=1", 3), vec![failing.clone(), gpu.clone()], vec![0, 3]),
        ("unless nobody else may", jobs("gpu=1", 3), vec![failing.clone()], vec![3]),
        ("idle first", jobs("gpu=1", 1), vec![gpu.clone(), idle.clone()], vec![0, 1]),
        ("idle before starting", jobs("gpu=1", 1), vec![starting.clone(), idle.clone()], vec![0, 1]),
        ("starting before growth", jobs("gpu=1", 1), vec![gpu.clone(), starting.clone()], vec![0, 1]),
        ("lines of equal length", jobs("gpu=1", 5), vec![full.clone(), failing.clone()], vec![2, 3]),
        (
            "jobs with the least choice first",
            [jobs("gpu=1", 1), jobs("gpu=1,zone=x", 1)].concat(),
            vec![zone.clone(), plain_start.clone()],
            vec![1, 1],
        ),
        (
            "what other jobs took is taken",
            [jobs("gpu=1", 2), jobs("region=eu", 2)].concat(),
            vec![three.clone(), two.clone()],
            vec![3, 1],
        ),
    ] {
        assert_eq!(shares(&jobs, &[], &pools), expected, "{title}");
        let reversed: Vec<_> = pools.iter().rev().cloned().collect();
        let expected: Vec<_> = expected.into_iter().rev().collect();
        assert_eq!(shares(&jobs, &[], &reversed), expected, "{title}, in another order");
    }
}

#[test]
fn idle_daemons_of_others_take_jobs_unless_they_obviously_do_not() {
    let policy = policy(0, 10, 0);
    let gpu = [pool("gpu", "gpu=1", &policy, 0, PodCounts::default())];
    for (title, jobs, foreign, expected) in [
        ("enough", jobs("gpu=1", 2), &[("gpu=1", 2)][..], 0),
        ("with more tags", jobs("gpu=1", 2), &[("gpu=1,region=eu", 1), ("gpu=1", 1)][..], 0),
        ("too few", jobs("gpu=1", 5), &[("gpu=1", 2)][..], 3),
        ("with other tags", jobs("gpu=1", 2), &[("", 5), ("gpu=2", 5)][..], 2),
        ("until a job waits for too long", aged("gpu=1", 2, 29), &[("gpu=1", 2)][..], 0),
        ("which shows that they are gone", aged("gpu=1", 2, 30), &[("gpu=1", 2)][..], 2),
    ] {
        assert_eq!(shares(&jobs, foreign, &gpu), [expected], "{title}");
    }
    let ageless = [PendingJob { since: None, ..jobs("gpu=1", 1).remove(0) }];
    assert_eq!(shares(&ageless, &[("gpu=1", 1)], &gpu), [1], "a job without a time is old");
}

#[test]
fn without_an_answer_nothing_shrinks_and_at_last_only_what_never_connected() {
    let unknown = |since: i64, bounds: (u32, u32), replicas, pods: PodCounts| {
        let policy = policy(bounds.0, bounds.1, 0);
        let pools = [pool("pool", "", &policy, replicas, pods)];
        decide(&QueueState::Unknown { since: ago(since), why: None }, &pools, at(NOW)).remove(0)
    };
    let connected = |busy, unknown, starting: &[i64], failing| PodCounts {
        unknown,
        ..pods(busy, &[], starting, failing)
    };
    for (title, since, bounds, replicas, pods, desired) in [
        ("at once", 0, (0, 9), 5, connected(1, 2, &[50, 50], 0), 5),
        ("for a while", 899, (0, 9), 5, connected(1, 2, &[50], 1), 5),
        ("then", 900, (0, 9), 5, connected(1, 2, &[50], 1), 3),
        ("idle when last seen", 900, (0, 9), 5, pods(1, &[9000, 9000], &[], 2), 3),
        ("a lower maximum kills no build", 900, (0, 2), 5, connected(1, 4, &[], 0), 5),
        ("the minimum grows meanwhile", 10, (7, 9), 5, connected(5, 0, &[], 0), 7),
        ("the minimum stays", 900, (4, 9), 5, connected(1, 1, &[5, 5], 1), 4),
        ("pods to be created are given up", 900, (0, 9), 8, connected(2, 0, &[], 0), 2),
        ("never more for a rollout", 900, (0, 9), 2, connected(0, 4, &[], 0), 2),
    ] {
        let found = unknown(since, bounds, replicas, pods);
        assert_eq!((found.desired, found.reason), (desired, ScaleReason::QueueUnknown), "{title}: {found:?}");
        assert_eq!(found.until, (since < 900).then(|| ago(since - 900)), "{title}");
    }
    let found = unknown(10, (0, 9), 1, connected(1, 0, &[], 0)).message;
    let text = "coderd has not listed the jobs since 1970-01-02T03:46:30Z: the pool keeps 1 daemon until \
                1970-01-02T04:01:30Z, and longer what may run a build";
    assert_eq!(found, text);
}

#[test]
fn the_next_decision_is_when_time_alone_may_change_it() {
    let zone = jiff::tz::TimeZone::UTC;
    let [from, to] = [at(NOW + 60), at(NOW + 600)].map(|time| zone.to_datetime(time).time());
    let days = [zone.to_datetime(at(NOW)).weekday()].into_iter().collect();
    let window = WarmWindow { days, from, to, zone, minimum: 4 };
    let plain = policy(0, 9, 0);
    let warm = ScalingPolicy { windows: vec![window], ..plain.clone() };
    for (title, policy, pending, replicas, pods, until) in [
        ("nothing", &plain, 0, 0, pods(0, &[], &[], 0), None),
        ("busy", &plain, 0, 1, pods(1, &[], &[], 0), None),
        ("the first idle daemon", &plain, 0, 2, pods(0, &[100, 290], &[], 0), Some(10)),
        ("after another left", &plain, 0, 3, pods(0, &[100, 290, 400], &[], 0), Some(10)),
        ("idle but needed", &plain, 1, 1, pods(0, &[100], &[], 0), None),
        ("a start", &plain, 1, 1, pods(0, &[], &[100], 0), Some(500)),
        ("a window", &warm, 0, 0, pods(0, &[], &[], 0), Some(60)),
    ] {
        let found = decide_one(policy, pending, replicas, pods);
        assert_eq!(found.until, until.map(|seconds| at(NOW + seconds)), "{title}: {found:?}");
    }
    let pools = [pool("pool", "", &warm, 0, PodCounts::default())];
    let queue = QueueState::Known { jobs: &[], foreign: BTreeMap::new() };
    let found = decide(&queue, &pools, at(NOW + 60)).remove(0);
    assert_eq!((found.desired, found.until), (4, Some(at(NOW + 600))), "{found:?}");
}

#[test]
fn polls_are_dense_while_something_moves_and_never_too_many() {
    const INTERVAL: Duration = Duration::from_secs(5);
    let policy = policy(0, 9, 0);
    let delay = |decision: ScaleDecision, calls| poll_delay(&[decision], INTERVAL, calls, at(NOW)).as_secs();
    let rest = || decide_one(&policy, 0, 1, pods(1, &[], &[], 0));
    assert_eq!(delay(rest(), 3), 10);
    assert_eq!(delay(decide_one(&policy, 1, 1, pods(1, &[], &[], 0)), 3), 5, "a job waits");
    assert_eq!(delay(decide_one(&policy, 0, 1, pods(0, &[], &[9], 0)), 3), 5, "a pod starts");
    assert_eq!(delay(decide_one(&policy, 0, 1, pods(0, &[291], &[], 0)), 3), 9, "a daemon may leave");
    assert_eq!(delay(decide_one(&policy, 0, 1, pods(0, &[299], &[], 0)), 3), 5);
    assert_eq!(delay(decide_one(&policy, 1, 1, pods(1, &[], &[], 0)), 81), 5, "40 organizations");
    assert_eq!(
        delay(decide_one(&policy, 1, 1, pods(1, &[], &[], 0)), 200),
        12,
        "more than coderd should be asked"
    );
    assert_eq!(delay(rest(), u32::MAX), poll_delay(&[], INTERVAL, u32::MAX, at(NOW)).as_secs());
}

#[test]
fn too_many_different_tags_shrink_nothing() {
    let policy = policy(0, 9, 0);
    let many: Vec<_> = (0..2_000).flat_map(|n| jobs(&format!("all=1,job={n}"), 1)).collect();
    let foreign: Vec<_> = (0..2_000).map(|n| format!("all=1,daemon={n}")).collect();
    let foreign: Vec<_> = foreign.iter().map(|list| (list.as_str(), 1)).collect();
    let pools = [pool("pool", "all=1", &policy, 5, pods(0, &[900; 5], &[], 0))];
    let found = decide_all(&many, &foreign, &pools).remove(0);
    assert_eq!((found.desired, found.reason), (5, ScaleReason::QueueUnknown), "{found:?}");
    let equal = jobs("all=1", 200_000);
    let found = decide_all(&equal, &[], &pools).remove(0);
    assert_eq!((found.desired, found.pending), (9, 200_000));
}
