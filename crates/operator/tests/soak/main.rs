//! The whole operator through random lives: edits, faults of the API server, of coderd and of its database, crashes.
//!
//! What happens in a life is decided by its seed alone. Every life ends converged and quiet, with exactly one key for
//! each pool, one registration for the proxy, and nothing left of what was deleted. Many lives are lived in memory,
//! some on a real cluster. One seed is lived again with `cargo xtask soak --seed 17` (`--on cluster` for the
//! real one).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod acts;
mod life;
mod peace;
mod pool;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
mod troubles;
mod world;

use std::{collections::BTreeMap, ops::Range, time::Instant};

use futures::{StreamExt as _, stream};

use acts::plan;
use world::On;

/// How many lives are lived at a time.
const IN_MEMORY: usize = 12;
const ON_CLUSTER: usize = 5;

/// Seeds whose lives once ended badly, and why.
const KEPT: [(u64, &str); 1] = [(
    391,
    "an operator was killed after it had registered a proxy that was given another name in the meantime",
)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_in_memory_end_well() {
    live(On::Memory, 500, IN_MEMORY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_on_a_cluster_end_well() {
    live(On::Cluster, 20, ON_CLUSTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_that_ended_badly_once_end_well() {
    let seeds = KEPT.map(|(seed, _)| seed).to_vec();
    end_well(On::Memory, seeds, IN_MEMORY).await;
}

/// A seed leads to the same life each time, and different ones to different lives.
#[test]
fn a_life_is_decided_by_its_seed() {
    let told = |seed| format!("{:?}", plan(seed));
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
    let mut kinds = BTreeMap::<String, usize>::new();
    for (_, act) in (0..500).flat_map(plan) {
        let name = format!("{act:?}").split([' ', '(', '{']).next().unwrap().to_owned();
        *kinds.entry(name).or_default() += 1;
    }
    println!("acts of 500 lives: {kinds:?}");
    assert_eq!(kinds.len(), acts::KINDS, "every kind of act happens: {kinds:?}");
}

async fn live(on: On, count: u64, at_a_time: usize) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("CODER_K8S_SOAK_FIRST").unwrap_or_default();
    let seeds: Range<u64> = match number("CODER_K8S_SOAK_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("CODER_K8S_SOAK_COUNT").unwrap_or(count),
    };
    end_well(on, seeds.collect(), at_a_time).await;
}

async fn end_well(on: On, seeds: Vec<u64>, at_a_time: usize) {
    let (count, started) = (seeds.len(), Instant::now());
    let lived = stream::iter(seeds).map(|seed| async move {
        // A life of its own task, so that a panic ends this life alone.
        (seed, tokio::spawn(life::live(on, seed)).await)
    });
    let mut lived = lived.buffer_unordered(at_a_time);
    let (mut failed, mut acts, mut crashes, mut done) = (Vec::new(), 0, 0, 0);
    while let Some((seed, outcome)) = lived.next().await {
        done += 1;
        match outcome {
            Ok(Ok(story)) => (acts, crashes) = (acts + story.acts, crashes + story.crashes),
            Ok(Err(why)) => failed.push((seed, why)),
            Err(panic) => failed.push((seed, panic.to_string())),
        }
        if done % 50 == 0 {
            println!("{done} of {count} lives after {:.0?}, {} ended badly", started.elapsed(), failed.len());
        }
    }
    println!("{count} lives {on:?}: {acts} acts, {crashes} ends of the operator, {:.0?}", started.elapsed());
    for (seed, why) in &failed {
        println!("\nseed {seed}: {why}\nlive it again: cargo xtask soak --seed {seed}{}", on.flag());
    }
    let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "{} of {count} lives ended badly: seeds {seeds:?}", failed.len());
}
