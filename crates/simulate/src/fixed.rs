//! A fleet of a fixed size with the same jobs.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{Millis, report::percentile, trace::TraceJob};

/// More daemons than any search needs.
const MAX_DAEMONS: u32 = 100_000;

/// How long each job waits in a pool of so many daemons, which are connected from the beginning. No daemons: for ever.
pub fn waits(jobs: &[TraceJob], daemons: u32) -> Vec<Millis> {
    let mut free: BinaryHeap<_> = (0..daemons.min(MAX_DAEMONS)).map(|_| Reverse(Millis::MIN)).collect();
    let mut waits = Vec::with_capacity(jobs.len());
    for TraceJob { at, takes, pool: _ } in jobs {
        let Some(Reverse(first)) = free.pop() else {
            waits.push(Millis::MAX);
            continue;
        };
        let start = first.max(*at);
        waits.push(start - at);
        free.push(Reverse(start + takes));
    }
    waits
}

/// The smallest pool in which 95 of 100 jobs wait no longer than `p95`.
pub fn smallest(jobs: &[TraceJob], p95: Millis) -> u32 {
    if jobs.is_empty() {
        return 0;
    }
    let is_enough = |daemons: u32| percentile(&mut waits(jobs, daemons), 95) <= p95;
    let mut enough = 1;
    while !is_enough(enough) && enough < MAX_DAEMONS {
        enough *= 2;
    }
    let mut few = enough / 2;
    while few + 1 < enough {
        let middle = u32::midpoint(few, enough);
        if is_enough(middle) { enough = middle } else { few = middle }
    }
    enough
}
