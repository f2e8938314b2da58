//! Random lives of the whole operator (`coder_k8s_scenes::soak`): many in memory, some on a real cluster.
//!
//! The tests live a part of them; `cargo xtask soak` lives all, and `cargo xtask soak --seed 17` one again (`--on cluster`
//! on the real one).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "everything here is a test")]

use std::{collections::BTreeMap, ops::Range};

use coder_k8s_scenes::soak::{KINDS, On, assert_converge, plan};

/// How many lives are lived at a time.
const IN_MEMORY: usize = 12;
const ON_CLUSTER: usize = 5;
/// How many lives the tests live, of the 500 and 100 that `cargo xtask soak` does.
const LIVES_IN_MEMORY: u64 = 100;
const LIVES_ON_CLUSTER: u64 = 5;

/// Seeds whose lives once ended badly, and why.
const KEPT: [(u64, &str); 1] = [(
    391,
    "an operator was killed after it had registered a proxy that was given another name in the meantime",
)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_in_memory_end_well() {
    assert_converge(On::Memory, seeds(LIVES_IN_MEMORY), IN_MEMORY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_on_a_cluster_end_well() {
    assert_converge(On::Cluster, seeds(LIVES_ON_CLUSTER), ON_CLUSTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_that_ended_badly_once_end_well() {
    let seeds = KEPT.map(|(seed, _)| seed).to_vec();
    assert_converge(On::Memory, seeds, IN_MEMORY).await;
}

/// A seed leads to the same life each time, and different ones to different lives.
#[test]
fn a_life_is_decided_by_its_seed() {
    let told = |seed| format!("{:?}", plan(seed));
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
    let mut kinds = BTreeMap::<String, usize>::new();
    for (_, action) in (0..LIVES_IN_MEMORY).flat_map(plan) {
        let name = format!("{action:?}").split([' ', '(', '{']).next().unwrap().to_owned();
        *kinds.entry(name).or_default() += 1;
    }
    println!("actions of {LIVES_IN_MEMORY} lives: {kinds:?}");
    assert_eq!(kinds.len(), KINDS, "every kind of action happens: {kinds:?}");
}

/// One seed, or so many from the first, as the environment says (see `xtask/src/soak.rs`).
fn seeds(count: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("CODER_K8S_SOAK_FIRST").unwrap_or_default();
    let seeds: Range<u64> = match number("CODER_K8S_SOAK_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("CODER_K8S_SOAK_COUNT").unwrap_or(count),
    };
    seeds.collect()
}
