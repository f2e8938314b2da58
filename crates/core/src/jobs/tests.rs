use super::*;
use crate::daemon_listing::ListedDaemon;

fn tags(list: &str) -> DaemonTags {
    let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn job(list: &str, waits: i64) -> PendingJob {
    let given = tags(list);
    let tags = if given.contains_key("scope") { given } else { normal(&given) };
    PendingJob { tags, since: Some(at(1000 - waits)) }
}

fn listing(daemons: &[&str], jobs: Vec<PendingJob>) -> DaemonListing {
    let daemons = daemons.iter().enumerate().map(|(n, list)| ListedDaemon {
        name: format!("daemon-{n}"),
        tags: normal(&tags(list)),
        ..ListedDaemon::default()
    });
    DaemonListing { daemons: daemons.collect(), jobs: Some(jobs), ..DaemonListing::default() }
}

fn pool(name: &str, list: &str) -> TaggedPool {
    TaggedPool {
        name: name.into(),
        organization: "org".into(),
        tags: tags(list),
        is_scaled_to_zero: name.contains("zero"),
        is_growing: name.contains("growing"),
    }
}

fn verdict(listing: &DaemonListing, pools: &[TaggedPool]) -> JobsVerdict {
    judge(&[ListedOrganization { id: "org", name: "default", listing }], pools, at(1000))
}

#[test]
fn tags_match_as_coderd_matches_them() {
    for (job, daemon, runs) in [
        ("", "", true),
        ("", "region=eu", false),
        ("region=eu", "", false),
        ("region=eu", "region=eu", true),
        ("region=eu", "region=eu,gpu=1", true),
        ("region=eu,gpu=1", "region=eu", false),
        ("region=eu", "region=us", false),
        ("region=eu", "REGION=eu", false),
        ("region=", "", true),
        ("", "region=", true),
        ("scope=organization,owner=", "", true),
        ("a=1,scope=organization", "a=1", true),
        ("owner=somebody", "", true),
    ] {
        assert_eq!(can_run(&normal(&tags(job)), &normal(&tags(daemon))), runs, "{job:?} on {daemon:?}");
    }
    let of_a_user = tags("scope=user,owner=42");
    assert!(!can_run(&of_a_user, &normal(&tags(""))), "daemons with a key belong to no user");
    assert!(can_run(&of_a_user, &of_a_user));
}

#[test]
fn a_job_is_stuck_when_it_waits_too_long_and_nobody_alive_could_run_it() {
    for (daemons, jobs, stuck) in [
        (&["region=eu"][..], vec![job("region=eu", 600)], false),
        (&[][..], vec![job("region=eu", 59)], false),
        (&[][..], vec![job("region=eu", 60)], false),
        (&[][..], vec![job("region=eu", 61)], true),
        (&["region=us"][..], vec![job("region=eu", 61)], true),
        (&["region=eu"][..], vec![job("", 61)], true),
        (&[""][..], vec![job("", 600), job("gpu=1", 10)], false),
        (&[][..], vec![], false),
        (&[][..], vec![PendingJob { tags: normal(&tags("")), since: None }], true),
    ] {
        let found = verdict(&listing(daemons, jobs.clone()), &[]);
        assert_eq!(matches!(found, JobsVerdict::Stuck(_)), stuck, "{daemons:?} {jobs:?}: {found:?}");
    }
}

#[test]
fn what_would_help_is_named() {
    let pools = [
        pool("eu", "region=eu"),
        pool("zero", "gpu=1,size="),
        pool("plain", ""),
        TaggedPool { organization: "elsewhere".into(), ..pool("us", "region=us") },
    ];
    for (tags, pools, expected) in [
        ("region=eu", &pools[..], "CoderProvisioner eu would run them, but no daemon of it is connected"),
        ("gpu=1", &pools[..], "CoderProvisioner zero would run them, but is scaled to zero"),
        ("", &pools[..], "CoderProvisioner plain would run them, but no daemon of it is connected"),
        ("region=us", &pools[..], "a CoderProvisioner with tags region=us would run them"),
        ("", &pools[..2], "a CoderProvisioner without tags would run them"),
        ("scope=user,owner=42", &pools[..], "only a daemon that their owner runs may take them"),
    ] {
        match verdict(&listing(&[], vec![job(tags, 100)]), pools) {
            JobsVerdict::Stuck(message) => assert!(message.ends_with(expected), "{tags}: {message}"),
            other => panic!("{tags}: {other:?}"),
        }
    }
}

#[test]
fn a_job_for_which_a_daemon_starts_is_not_stuck() {
    let waiting = || listing(&[], vec![job("region=eu", 100)]);
    assert_eq!(verdict(&waiting(), &[pool("growing", "region=eu")]), JobsVerdict::Runnable);
    for other in [pool("growing", "region=us"), pool("fixed", "region=eu")] {
        assert!(matches!(verdict(&waiting(), &[other]), JobsVerdict::Stuck(_)));
    }
    let elsewhere = TaggedPool { organization: "elsewhere".into(), ..pool("growing", "region=eu") };
    assert!(matches!(verdict(&waiting(), &[elsewhere]), JobsVerdict::Stuck(_)));
}

#[test]
fn the_message_is_the_same_from_look_to_look_and_bounded() {
    let many = |waits: i64| {
        (0..40).map(|n| job(&format!("a={n:02},long={}", "x".repeat(400)), waits + n)).collect::<Vec<_>>()
    };
    let [one, two] = [100, 900].map(|waits| verdict(&listing(&[], many(waits)), &[]));
    assert_eq!(one, two);
    let JobsVerdict::Stuck(message) = one else { panic!("{one:?}") };
    assert!(message.ends_with("; and jobs with other tags") && message.len() < 4000, "{message}");
}

#[test]
fn what_could_not_be_asked_is_unknown_unless_a_job_is_known_to_be_stuck() {
    let blocker = Blocker::new(Reason::Forbidden, "not permitted");
    let blind = DaemonListing { jobs: None, blocker: Some(blocker.clone()), ..DaemonListing::default() };
    assert_eq!(verdict(&blind, &[]), JobsVerdict::Unknown(blocker.clone()));
    let old =
        DaemonListing { outdated: true, blocker: Some(blocker.clone()), ..listing(&[], vec![job("", 100)]) };
    assert_eq!(verdict(&old, &[]), JobsVerdict::Unknown(blocker.clone()));
    let recent = DaemonListing { outdated: false, ..old };
    assert!(matches!(verdict(&recent, &[]), JobsVerdict::Stuck(_)), "one failure withdraws nothing");
    let stuck = listing(&[], vec![job("", 100)]);
    let both =
        [("a", &blind), ("b", &stuck)].map(|(id, listing)| ListedOrganization { id, name: id, listing });
    assert!(matches!(judge(&both, &[], at(1000)), JobsVerdict::Stuck(_)));
}

#[test]
fn equal_tags_are_compared_once() {
    const MANY: usize = 100_000;
    let jobs: Vec<_> = (0..MANY).map(|n| job(["region=eu", "gpu=1", ""][n % 3], 100)).collect();
    let daemons = vec!["region=us,gpu=2"; MANY];
    let listing = listing(&daemons, jobs.clone());
    let mut left = MAX_TAG_COMPARISONS;
    assert_eq!(stuck(&jobs, &listing, at(1000), &mut left).len(), 3);
    assert!(MAX_TAG_COMPARISONS - left < 10, "{} comparisons", MAX_TAG_COMPARISONS - left);
}

#[test]
fn the_comparisons_of_a_verdict_are_bounded() {
    const MANY: usize = 2_000;
    let jobs: Vec<_> = (0..MANY).map(|n| job(&format!("all=1,job={n}"), 100)).collect();
    let daemons: Vec<_> = (0..MANY).map(|n| format!("all=1,daemon={n}")).collect();
    let many = listing(&daemons.iter().map(String::as_str).collect::<Vec<_>>(), jobs.clone());
    let mut left = MAX_TAG_COMPARISONS;
    let found = stuck(&jobs, &many, at(1000), &mut left);
    assert_eq!(left, 0);
    assert!(found.len() < 200, "{} sets of tags were compared with every daemon", found.len());
    assert!(matches!(verdict(&many, &[]), JobsVerdict::Stuck(_)), "what is known is said");

    let runnable = (0..MANY).map(|n| job(&format!("daemon={n}"), 100)).collect();
    let unsure = DaemonListing { jobs: Some(runnable), ..many };
    match verdict(&unsure, &[]) {
        JobsVerdict::Unknown(blocker) => assert_eq!(blocker.reason, Reason::ListIncomplete),
        other => panic!("{other:?}"),
    }
}

#[test]
fn queues_are_counted_by_tags_and_never_too_many() {
    let jobs = vec![job("region=eu", 5), job("region=eu", 50), job("", 7), job("scope=user,owner=42", 9)];
    let found = queues(&jobs);
    let said: Vec<_> =
        found.iter().map(|queue| (&*queue.tags, queue.pending, queue.since.unwrap().as_second())).collect();
    assert_eq!(said, [("region=eu", 2, 950), ("none", 1, 993), ("owner=42,scope=user", 1, 991)]);
    let many: Vec<_> = (0..100).map(|n| job(&format!("n={n}"), n)).collect();
    let found = queues(&many);
    assert_eq!(found.len(), MAX_JOB_QUEUES + 1);
    assert_eq!(found.iter().map(|queue| queue.pending).sum::<usize>(), 100);
    assert_eq!((&*found[MAX_JOB_QUEUES].tags, found[MAX_JOB_QUEUES].pending), ("other", 80));
}
