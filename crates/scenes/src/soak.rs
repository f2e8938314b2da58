//! The whole operator through random lives: edits, faults of the API server, of coderd and of its database, crashes.
//!
//! What happens in a life is decided by its seed alone. Every life ends converged and quiet, with exactly one key for each
//! pool, one registration for the proxy, and nothing left of what was deleted. Lives are lived with an API server in
//! memory, or on a real cluster.

mod actions;
mod converged;
mod faults;
mod life;
mod pool;
mod proxy;
mod world;

use std::time::Instant;

use futures::{StreamExt as _, stream};

pub use actions::{Action, End, KINDS, plan};
pub use world::On;

/// Lives the lives of these seeds, so many at a time, and panics after the last if one ended badly. Says how to live
/// each of those again.
pub async fn assert_converge(on: On, seeds: Vec<u64>, at_a_time: usize) {
    let (count, started) = (seeds.len(), Instant::now());
    let lived = stream::iter(seeds).map(|seed| async move {
        // A life of its own task, so that a panic ends this life alone.
        (seed, tokio::spawn(life::live(on, seed)).await)
    });
    let mut lived = lived.buffer_unordered(at_a_time);
    let (mut failed, mut actions, mut crashes, mut done) = (Vec::new(), 0, 0, 0);
    while let Some((seed, outcome)) = lived.next().await {
        done += 1;
        match outcome {
            Ok(Ok(summary)) => {
                (actions, crashes) = (actions + summary.actions, crashes + summary.crashes);
            }
            Ok(Err(why)) => failed.push((seed, why)),
            Err(panic) => failed.push((seed, panic.to_string())),
        }
        if done % 50 == 0 {
            println!("{done} of {count} lives after {:.0?}, {} ended badly", started.elapsed(), failed.len());
        }
    }
    println!(
        "{count} lives {on:?}: {actions} actions, {crashes} ends of the operator, {:.0?}",
        started.elapsed()
    );
    for (seed, why) in &failed {
        println!("\nseed {seed}: {why}\nlive it again: cargo xtask soak --seed {seed}{}", on.flag());
    }
    let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "{} of {count} lives ended badly: seeds {seeds:?}", failed.len());
}
