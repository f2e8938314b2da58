//! What holds for the built-in days, whatever their seed.
#![allow(missing_docs)]

use coder_k8s_simulate::{
    Millis, fixed, import,
    report::{Row, percentile},
    setting::Setting,
    trace::{BUILT_IN, HOUR, MINUTE, SECOND, Trace, TraceJob},
    world::World,
};

#[test]
fn no_build_is_killed_and_every_job_ends() {
    for seed in [1, 2] {
        for name in BUILT_IN {
            let trace = Trace::built_in(name, seed, 1);
            let work: Millis = trace.jobs.iter().map(|job| job.takes).sum();
            for setting in Setting::ALL {
                let outcome = World::run(&trace, setting, seed);
                let title = format!("{name}, {}, seed {seed}", setting.name());
                assert_eq!(outcome.killed, 0, "{title}");
                // Where most nodes are bad, a pool gives up after a few pods, and coderd gives up jobs.
                assert!(outcome.reaped == 0 || name == "failing-nodes", "{title}: {}", outcome.reaped);
                assert_eq!(outcome.waits.len(), trace.jobs.len(), "{title}");
                assert!(outcome.daemon_time >= work, "{title}: every build has a daemon");
                let max: u32 = trace.pools.iter().map(|pool| setting.policy(pool.reference).max).sum();
                assert!(
                    outcome.most <= max as usize + outcome.stopped_busy as usize,
                    "{title}: {}",
                    outcome.most
                );
            }
        }
    }
}

#[test]
fn a_seed_makes_the_same_day_again() {
    let run = |seed| World::run(&Trace::built_in("coderd-away", seed, 1), Setting::Warm, seed);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_workday_costs_less_than_fixed_fleets_and_hardly_waits() {
    let row = Row::simulate(&Trace::built_in("workday-1000", 3, 1), Setting::ToZero, 3);
    let day = row.outcome.length;
    assert_eq!(row.reference, 60);
    assert!(row.outcome.daemon_time * 5 < Millis::from(row.reference) * day, "{row:?}");
    assert!(row.outcome.daemon_time * 2 < Millis::from(row.fixed) * day, "{row:?}");
    let mut waits: Vec<_> = row.outcome.waits.iter().map(|(_, wait)| *wait).collect();
    assert!(percentile(&mut waits, 50) < SECOND && percentile(&mut waits, 99) < 60 * SECOND);
}

#[test]
fn a_second_day_of_rest_costs_nothing() {
    // Friday is the fifth day.
    let [week, weekend] =
        [5, 7].map(|days| World::run(&Trace::built_in("workday-1000", 1, days), Setting::ToZero, 1));
    assert_eq!(week.waits.len(), weekend.waits.len());
    assert_eq!(week.daemon_time, weekend.daemon_time);
}

#[test]
fn the_smallest_fleet_is_the_smallest() {
    let jobs: Vec<_> = Trace::built_in("workday-1000", 1, 1).of_pool(0).collect();
    for p95 in [0, 5 * SECOND, 60 * SECOND, 600 * SECOND] {
        let found = fixed::smallest(&jobs, p95);
        assert!(percentile(&mut fixed::waits(&jobs, found), 95) <= p95, "{found} daemons suffice");
        assert!(percentile(&mut fixed::waits(&jobs, found - 1), 95) > p95, "{found} daemons are needed");
    }
    assert_eq!(fixed::smallest(&[], 0), 0);
    let both = [0, 1].map(|at| TraceJob { at, takes: 10, pool: 0 });
    assert_eq!(fixed::waits(&both, 1), [0, 9]);
    assert_eq!(fixed::waits(&both, 2), [0, 0]);
}

#[test]
fn percentiles_are_values_that_occur() {
    for (values, percent, expected) in [
        (vec![], 95, 0),
        (vec![7], 50, 7),
        (vec![4, 1, 3, 2], 50, 2),
        ((1..=100).collect(), 95, 95),
        (vec![1, 2], 99, 2),
    ] {
        assert_eq!(percentile(&mut values.clone(), percent), expected, "{values:?}");
    }
}

#[test]
fn the_jobs_of_a_real_coderd_are_a_trace() {
    let text = r#"[
        {"id": "1", "created_at": "2026-03-02T09:00:00Z", "started_at": "2026-03-02T09:00:02.5Z",
         "completed_at": "2026-03-02T09:01:02.5Z", "status": "succeeded", "tags": {"scope": "organization", "owner": ""}},
        {"created_at": "2026-03-02T08:59:00Z", "started_at": "2026-03-02T08:59:01Z",
         "completed_at": "2026-03-02T08:59:21Z", "tags": {"scope": "organization", "owner": "", "gpu": "yes"}},
        {"created_at": "2026-03-02T09:00:00Z", "started_at": "2026-03-02T09:00:01Z",
         "completed_at": "2026-03-02T09:00:21Z", "tags": {"scope": "user", "owner": "42"}},
        {"created_at": "2026-03-02T09:05:00Z", "canceled_at": "2026-03-02T09:05:01Z", "tags": {}}
    ]"#;
    let trace = import::parse("jobs.json", text, 1_000).unwrap();
    let jobs: Vec<_> = trace.jobs.iter().map(|job| (job.at, job.takes, job.pool)).collect();
    assert_eq!(jobs, [(9 * HOUR - MINUTE, 20 * SECOND, 1), (9 * HOUR, MINUTE, 0)]);
    assert_eq!(trace.time(jobs[1].0).to_string(), "2026-03-02T09:00:00Z", "windows are at their time of day");
    let pools: Vec<_> = trace.pools.iter().map(|pool| (pool.tags.len(), pool.reference)).collect();
    assert_eq!(pools, [(2, 45), (3, 15)]);
    let outcome = World::run(&trace, Setting::ToZero, 1);
    assert_eq!((outcome.waits.len(), outcome.killed), (2, 0));
    for (text, expected) in
        [("{}", "expected a sequence"), ("[]", "no job in it"), ("[{\"tags\": 1}]", "expected a map")]
    {
        let error = format!("{:#}", import::parse("x", text, 1_000).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
}
