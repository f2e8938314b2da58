use super::*;
use crate::{daemon_listing::PendingJob, outcome::Blocker};

const NOW: i64 = 100_000;

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds).unwrap()
}

/// `busy-..` is busy; `other-..` has another key.
fn daemon(name: &str) -> ListedDaemon {
    let key = if name.starts_with("other") { "other-key" } else { "key" };
    ListedDaemon {
        name: name.into(),
        key: key.into(),
        tags: normal(&DaemonTags::new()),
        busy: name.contains("busy"),
        ..ListedDaemon::default()
    }
}

/// A pod that was created so many seconds ago. `new-..` is not ready.
fn pod(name: &str, age: i64) -> DaemonPod {
    DaemonPod {
        name: name.into(),
        daemon: Some(name.into()),
        created: Some(ago(age)),
        fails: name.contains("fails"),
        ready_since: (!name.starts_with("new")).then(|| ago(age - 1)),
        is_deleting: name.contains("leaves"),
        ..DaemonPod::default()
    }
}

fn listing(names: &[&str]) -> DaemonListing {
    let daemons = names.iter().map(|name| daemon(name)).collect();
    DaemonListing { daemons, jobs: Some(Vec::new()), ..DaemonListing::default() }
}

fn policy() -> ScalingPolicy {
    let scale_down_after = jiff::SignedDuration::from_mins(5);
    ScalingPolicy { min: 0, max: 9, spare: 0, scale_down_after, windows: Vec::new() }
}

/// Counts the pods of one pool, after polls with these listings, a minute apart, of which the last is now. Returns the
/// number of idle daemons of others too.
fn counted(
    listings: &[&DaemonListing],
    pods: Option<&[DaemonPod]>,
    replicas: u32,
) -> (PodCounts, Option<u32>) {
    let mut times = DaemonTimes::new(ago(60 * i64::try_from(listings.len()).unwrap()));
    for (index, listing) in listings.iter().enumerate() {
        let time = ago(60 * i64::try_from(listings.len() - 1 - index).unwrap());
        if listing.blocker.is_some() {
            times.record_failure(time);
        } else {
            times.record(&listing.daemons, time);
        }
    }
    let (policy, keys) = (policy(), ["key".to_owned(), String::new()]);
    let pools = [ObservedPool {
        name: "pool",
        tags: &DaemonTags::new(),
        policy: &policy,
        replicas,
        keys: &keys,
        pods,
        refused: false,
    }];
    let census = observe(listings.last().copied(), ago(0), &times, &pools, ago(0));
    let foreign = match &census.queue {
        QueueState::Known { foreign, .. } => Some(foreign.values().sum()),
        QueueState::Unknown { .. } => None,
    };
    (census.pools[0].pods.clone(), foreign)
}

fn numbers(counts: &PodCounts) -> [usize; 5] {
    let PodCounts { busy, unknown, idle, starting, failing, refused: _ } = counts;
    [*busy as usize, *unknown as usize, idle.len(), starting.len(), *failing as usize]
}

#[test]
fn daemons_and_pods_are_sorted() {
    let listed =
        listing(&["busy-1", "idle-1", "busy-leaves", "idle-leaves", "gone", "other-idle", "other-busy"]);
    let pods = [
        pod("busy-1", 500),
        pod("idle-1", 500),
        pod("busy-leaves", 500),
        pod("idle-leaves", 500),
        pod("new-1", 20),
        pod("new-fails", 20),
        pod("connects", 20),
    ];
    let (counts, foreign) = counted(&[&listed], Some(&pods), 5);
    // A daemon whose pod is gone or leaves is neither capacity nor a replica.
    assert_eq!((numbers(&counts), foreign), ([1, 0, 1, 2, 1], Some(1)));
    assert_eq!(counts.starting, [ago(20), ago(20)]);
    let (counts, _) = counted(&[&listed], None, 5);
    assert_eq!(numbers(&counts), [2, 0, 3, 0, 0], "without pods the listing is all there is");
    let nameless = pods.map(|pod| DaemonPod { daemon: None, ..pod });
    let (counts, _) = counted(&[&listed], Some(&nameless), 5);
    assert_eq!(
        numbers(&counts),
        [2, 0, 3, 1, 1],
        "daemons without known names are counted as they are listed"
    );
}

#[test]
fn a_daemon_is_idle_since_it_was_first_seen_idle() {
    let (busy, idle, none) = (listing(&["busy-1"]), listing(&["d"]), listing(&[]));
    let was_busy =
        DaemonListing { daemons: vec![ListedDaemon { busy: true, ..daemon("d") }], ..idle.clone() };
    let failed =
        DaemonListing { blocker: Some(Blocker::new(coder_k8s_api::Reason::Forbidden, "")), ..idle.clone() };
    let pods = [pod("d", 9_000)];
    for (title, listings, since) in [
        ("first seen", vec![&idle], 0),
        ("seen before", vec![&idle, &idle, &idle], 120),
        ("a build in between", vec![&idle, &was_busy, &idle], 0),
        ("ended a build", vec![&was_busy, &idle, &idle], 60),
        ("missing in between", vec![&idle, &none, &busy, &idle], 180),
        ("no answer in between", vec![&idle, &failed, &idle], 0),
    ] {
        assert_eq!(counted(&listings, Some(&pods), 1).0.idle, [ago(since)], "{title}");
    }
    let mut times = DaemonTimes::new(ago(0));
    times.record(&[daemon("d")], ago(0));
    times.record(&[daemon("d")], ago(5_000));
    assert_eq!(times.idle_since("d", ago(0)), ago(5_000), "a clock that was set back");
}

#[test]
fn a_daemon_that_lost_its_connection_is_protected_for_a_while() {
    let (listed, none) = (listing(&["d"]), listing(&[]));
    let pods = [pod("d", 9_000)];
    let after = |polls: usize| {
        let listings: Vec<_> = [&listed].into_iter().chain(vec![&none; polls]).collect();
        numbers(&counted(&listings, Some(&pods), 1).0)
    };
    assert_eq!(after(1), [0, 1, 0, 0, 0]);
    assert_eq!(after(9), [0, 1, 0, 0, 0]);
    assert_eq!(after(10), [0, 0, 0, 0, 1]);
    let restarted = |polls: usize| numbers(&counted(&vec![&none; polls], Some(&pods), 1).0);
    assert_eq!(restarted(1), [0, 1, 0, 0, 0], "it may have been connected before the operator started");
    assert_eq!(restarted(10), [0, 0, 0, 0, 1]);
    let young = [pod("d", 30)];
    assert_eq!(numbers(&counted(&[&none], Some(&young), 1).0), [0, 0, 0, 1, 0]);
}

#[test]
fn without_an_answer_what_may_run_a_build_is_unknown() {
    let known = listing(&["busy-1", "idle-1"]);
    let blocker = Some(Blocker::new(coder_k8s_api::Reason::Forbidden, "no"));
    let pods =
        [pod("busy-1", 500), pod("idle-1", 500), pod("ready", 500), pod("new-1", 20), pod("new-fails", 20)];
    for (title, last) in [
        ("the last poll failed", DaemonListing { blocker: blocker.clone(), ..known.clone() }),
        ("polls fail for long", DaemonListing { outdated: true, blocker: blocker.clone(), ..known.clone() }),
        ("jobs cannot be listed", DaemonListing { jobs: None, blocker, ..known.clone() }),
    ] {
        let (counts, foreign) = counted(&[&last], Some(&pods), 5);
        assert_eq!((numbers(&counts), foreign), ([1, 2, 0, 1, 1], None), "{title}");
        assert_eq!(numbers(&counted(&[&last], None, 5).0), [1, 4, 0, 0, 0], "{title}, without pods");
        let nameless = pods.clone().map(|pod| DaemonPod { daemon: None, ..pod });
        assert_eq!(
            numbers(&counted(&[&last], Some(&nameless), 5).0),
            [1, 2, 0, 1, 1],
            "{title}, without names"
        );
    }
    let restarted = observe(None, ago(5), &DaemonTimes::new(ago(5)), &[], ago(0));
    assert!(matches!(restarted.queue, QueueState::Unknown { since, why: None } if since == ago(5)));
}

#[test]
fn a_job_is_handed_on_and_memory_is_bounded() {
    let jobs = vec![PendingJob { tags: normal(&DaemonTags::new()), since: Some(ago(3)) }];
    let listing = DaemonListing { jobs: Some(jobs.clone()), ..listing(&[]) };
    let census = observe(Some(&listing), ago(0), &DaemonTimes::new(ago(0)), &[], ago(0));
    assert!(matches!(census.queue, QueueState::Known { jobs: found, .. } if found == jobs));
    let mut times = DaemonTimes::new(ago(0));
    for poll in 0..50 {
        let daemons: Vec<_> = (0..1_000).map(|n| daemon(&format!("d-{poll}-{n}"))).collect();
        times.record(&daemons, ago(0));
        assert!(times.daemons.len() <= MAX_REMEMBERED_DAEMONS + 1_000);
    }
}
