//! Counts each pending job for one pool among those that may run it, or for an idle daemon that needs no pool.
//!
//! The places for jobs have one fixed order, and each job takes the first place that it may take: a foreign idle daemon, an
//! idle one of a pool, a pod that starts, growth of the pool with the most room, and at last the shortest line of jobs that
//! wait for a pool that cannot grow. So another job takes a place more and none away: no pool needs fewer daemons for it.
//!
//! Jobs and tags come from a server that may be hostile. Equal tags are compared once, and comparisons are bounded.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use jiff::Timestamp;

use super::has_passed;
use crate::{
    daemon_listing::{DaemonTags, PendingJob},
    intervals::{FOREIGN_DAEMON_TAKES_JOB, MAX_TAG_COMPARISONS},
    jobs::can_run_within,
};

/// The places for jobs in one pool.
pub(super) struct Room<'a> {
    pub(super) name: &'a str,
    pub(super) tags: &'a DaemonTags,
    pub(super) idle: u32,
    pub(super) starting: u32,
    /// Pods that the pool may add.
    pub(super) growth: u32,
}

/// Jobs by pool.
pub(super) struct Assignment {
    /// In the order of the pools.
    pub(super) pools: Vec<PoolJobs>,
    /// False: there are too many different tags, and the jobs with some of them count for no pool.
    pub(super) is_complete: bool,
}

/// The jobs that count for one pool.
#[derive(Clone, Copy, Default)]
pub(super) struct PoolJobs {
    pub(super) pending: u32,
    /// When the first job was created that has the tags of one of them. None: unknown, or there are none.
    pub(super) oldest: Option<Timestamp>,
}

/// A pool while jobs are counted.
struct Places<'a> {
    room: Room<'a>,
    jobs: PoolJobs,
    /// Jobs for which the pool cannot grow.
    waiting: u32,
}

/// How many jobs have the same tags, and when the first of them was created.
#[derive(Clone, Copy, Default)]
struct Jobs {
    number: u32,
    oldest: Option<Timestamp>,
}

/// Jobs with the same tags, those that nobody took for long apart: number of tags, tags, whether they are left to foreign
/// daemons.
type JobClass<'a> = (Reverse<usize>, &'a DaemonTags, bool);

pub(super) fn assign(
    jobs: &[PendingJob],
    foreign: &BTreeMap<&DaemonTags, u32>,
    rooms: Vec<Room<'_>>,
    now: Timestamp,
) -> Assignment {
    // Jobs with many tags first: they have the least choice.
    let mut classes: BTreeMap<JobClass<'_>, Jobs> = BTreeMap::new();
    for PendingJob { tags, since } in jobs {
        let is_new = since.is_some_and(|since| !has_passed(since, FOREIGN_DAEMON_TAKES_JOB, now));
        let class = classes.entry((Reverse(tags.len()), tags, is_new)).or_default();
        class.number = class.number.saturating_add(1);
        class.oldest = earlier(class.oldest, *since);
    }
    let mut foreign: Vec<_> = foreign.iter().map(|(tags, number)| (*tags, *number)).collect();
    // Daemons with few tags first: they are of the least use for other jobs.
    foreign.sort_by_key(|(tags, _)| (tags.len(), *tags));
    let mut pools: Vec<_> =
        rooms.into_iter().map(|room| Places { room, jobs: PoolJobs::default(), waiting: 0 }).collect();
    let mut order: Vec<usize> = (0..pools.len()).collect();
    order.sort_by_key(|index| pools.get(*index).map(|pool| (pool.room.tags.len(), pool.room.name)));

    let mut left = MAX_TAG_COMPARISONS;
    for ((_, tags, is_new), jobs) in classes {
        let Jobs { mut number, oldest } = jobs;
        for (daemon, idle) in foreign.iter_mut().filter(|(_, idle)| is_new && *idle > 0) {
            if number > 0 && can_run_within(tags, daemon, &mut left) {
                take(&mut number, idle);
            }
        }
        let may_run = |index: &usize| {
            pools.get(*index).is_some_and(|pool| can_run_within(tags, pool.room.tags, &mut left))
        };
        let matching: Vec<_> =
            if number > 0 { order.iter().copied().filter(may_run).collect() } else { Vec::new() };
        if left == 0 {
            break;
        }
        place(Jobs { number, oldest }, &matching, &mut pools);
    }
    Assignment { pools: pools.iter().map(|pool| pool.jobs).collect(), is_complete: left > 0 }
}

/// Counts jobs with the same tags for the pools with these indices.
fn place(jobs: Jobs, matching: &[usize], pools: &mut [Places<'_>]) {
    let Jobs { mut number, oldest } = jobs;
    let sources: [for<'a> fn(&'a mut Room<'_>) -> &'a mut u32; 2] =
        [|room| &mut room.idle, |room| &mut room.starting];
    for source in sources {
        for index in matching {
            let Some(pool) = pools.get_mut(*index) else { continue };
            let taken = take(&mut number, source(&mut pool.room));
            pool.jobs.add(taken, oldest);
        }
    }
    let mut by_room: BinaryHeap<_> = matching
        .iter()
        .filter_map(|index| pools.get(*index).map(|pool| (pool.room.growth, Reverse(pool.room.name), *index)))
        .collect();
    while number > 0
        && let Some((growth, name, index)) = by_room.pop().filter(|(growth, _, _)| *growth > 0)
    {
        let Some(pool) = pools.get_mut(index) else { continue };
        pool.room.growth -= 1;
        pool.jobs.add(1, oldest);
        number -= 1;
        by_room.push((growth - 1, name, index));
    }
    let mut by_line: BinaryHeap<_> = matching
        .iter()
        .filter_map(|index| pools.get(*index).map(|pool| Reverse((pool.waiting, pool.room.name, *index))))
        .collect();
    while number > 0
        && let Some(Reverse((waiting, name, index))) = by_line.pop()
    {
        let Some(pool) = pools.get_mut(index) else { continue };
        pool.waiting = waiting.saturating_add(1);
        pool.jobs.add(1, oldest);
        number -= 1;
        by_line.push(Reverse((pool.waiting, name, index)));
    }
}

impl PoolJobs {
    fn add(&mut self, number: u32, oldest: Option<Timestamp>) {
        if number > 0 {
            self.pending = self.pending.saturating_add(number);
            self.oldest = earlier(self.oldest, oldest);
        }
    }
}

fn earlier(one: Option<Timestamp>, two: Option<Timestamp>) -> Option<Timestamp> {
    [one, two].into_iter().flatten().min()
}

/// Moves as much as there is from `places` to `number`, and returns how much.
fn take(number: &mut u32, places: &mut u32) -> u32 {
    let taken = (*number).min(*places);
    *number -= taken;
    *places -= taken;
    taken
}
