//! A deeper search of the provisioner key protocol than the tests make.
//!
//! `cargo run -p coder-k8s-core --example keys_model -- --start settled --edits 2 --crashes 2 --others 1`
#![allow(clippy::indexing_slicing, clippy::print_stdout, missing_docs, dead_code)]

#[path = "../tests/keys_model/model/mod.rs"]
mod model;

use std::process::ExitCode;

use model::{Limits, Start, search, world::Budget};

const USAGE: &str = "options: --start new|settled|taken-over, --chosen, --sequential, and with a number: --edits, --crashes, \
                     --damages, --others, --restarts, --losses, --deletions";

fn main() -> ExitCode {
    let Some(limits) = limits(std::env::args().skip(1)) else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let began = std::time::Instant::now();
    let report = search(&limits, None);
    println!("{limits:?}");
    println!(
        "{} states, {} steps, depth {}, {:?}",
        report.states,
        report.steps,
        report.depth,
        began.elapsed()
    );
    match report.failure {
        Some(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn limits(mut args: impl Iterator<Item = String>) -> Option<Limits> {
    let budget = Budget { edits: 0, crashes: 0, damages: 0, others: 0, restarts: 0, losses: 0, deletions: 0 };
    let mut limits =
        Limits { title: "deep", start: Start::Settled, budget, chosen: false, sequential: false };
    while let Some(option) = args.next() {
        match &*option {
            "--chosen" => limits.chosen = true,
            "--sequential" => limits.sequential = true,
            "--start" => {
                limits.start = match &*args.next()? {
                    "new" => Start::New,
                    "settled" => Start::Settled,
                    "taken-over" => Start::TakenOver,
                    _ => return None,
                }
            }
            named => {
                let count = match named {
                    "--edits" => &mut limits.budget.edits,
                    "--crashes" => &mut limits.budget.crashes,
                    "--damages" => &mut limits.budget.damages,
                    "--others" => &mut limits.budget.others,
                    "--restarts" => &mut limits.budget.restarts,
                    "--losses" => &mut limits.budget.losses,
                    "--deletions" => &mut limits.budget.deletions,
                    _ => return None,
                };
                *count = args.next()?.parse().ok()?;
            }
        }
    }
    Some(limits)
}
