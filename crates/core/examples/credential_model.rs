//! A deeper search of the credential protocols than the tests make.
//!
//! `cargo run -p coder-k8s-core --example credential_model -- keys --start settled --edits 2 --crashes 2 --others 1`
#![allow(clippy::indexing_slicing, clippy::print_stdout, missing_docs, dead_code)]

#[path = "../tests/credential_model/model/mod.rs"]
mod model;

use std::process::ExitCode;

use model::{Budget, Limits, Start, keys::Keys, registrations::Registrations, search::search};

const USAGE: &str = "keys|registrations, then options: --start new|settled|taken-over, --chosen, --sequential, and with a \
                     number: --edits, --crashes, --damages, --others, --restarts, --losses, --deletions";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(kind), Some(limits)) = (args.next(), limits(args)) else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let began = std::time::Instant::now();
    let report = match &*kind {
        "keys" => search(&Keys { limits, flaw: None }),
        "registrations" => search(&Registrations { limits, flaw: None }),
        _ => {
            println!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    println!("{kind}: {limits:?}");
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
    let mut limits = Limits {
        title: "deep",
        start: Start::Settled,
        budget: Budget::NONE,
        chosen: false,
        sequential: false,
    };
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
