use jiff::Timestamp;

use super::{
    operator::{ACT, NEW_NODE, POD_START, STOP},
    *,
};
use crate::trace::{HOUR, TracePool};

fn trace(jobs: Vec<TraceJob>) -> Trace {
    let pools = vec![TracePool { name: "p".into(), tags: DaemonTags::new(), reference: 3 }];
    Trace { name: "t".into(), jobs, pools, faults: Vec::new(), length: HOUR, begins: Timestamp::UNIX_EPOCH }
}

#[test]
fn a_build_that_its_grace_period_does_not_suffice_for_counts_as_killed() {
    for (takes, killed) in [(9 * MINUTE, 0), (11 * MINUTE, 1)] {
        let trace = trace(vec![TraceJob { at: 0, takes, pool: 0 }]);
        let mut world = World::new(&trace, Setting::ToZero, 1);
        while !world.pods.values().any(|pod| matches!(pod.state, PodState::Busy { .. })) {
            world.step();
        }
        // What the decision never does.
        world.schedule(world.now, Event::Stop(0));
        let outcome = world.live();
        assert_eq!((outcome.stopped_busy, outcome.killed), (1, killed), "{outcome:?}");
    }
}

#[test]
fn a_job_waits_for_the_poll_and_the_start_of_a_pod() {
    let trace = trace(vec![TraceJob { at: MINUTE, takes: MINUTE, pool: 0 }]);
    let outcome = World::run(&trace, Setting::ToZero, 1);
    let [(_, wait)] = outcome.waits[..] else { panic!("{outcome:?}") };
    assert!((POD_START.0..15 * SECOND + ACT + NEW_NODE.1).contains(&wait), "{wait}");
    assert_eq!((outcome.started, outcome.most, outcome.changes.values().sum::<u32>()), (1, 1, 2));
    // It leaves when it was idle for five minutes and a poll has seen it.
    let life = outcome.daemon_time - MINUTE - 5 * MINUTE;
    assert!(life < NEW_NODE.1 + 30 * SECOND + ACT + STOP, "{life}");
    assert_eq!(outcome.length, HOUR);
}

#[test]
fn a_job_that_nobody_may_take_is_given_up_by_coderd() {
    let mut trace = trace(vec![TraceJob { at: 0, takes: MINUTE, pool: 0 }]);
    trace.pools[0].reference = 0;
    let outcome = World::run(&trace, Setting::ToZero, 1);
    assert_eq!((outcome.reaped, outcome.started, outcome.waits.len()), (1, 0, 1));
}
