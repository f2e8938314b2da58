//! The protocols of provisioner keys and of proxy registrations, searched exhaustively within bounds.
//!
//! Deeper: `cargo run -p coder-k8s-core --example credential_model -- keys --edits 3 --crashes 2`.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::print_stdout, missing_docs)]

mod keys;
mod model;
mod registrations;

use std::fmt::Debug;

use model::{
    Budget, Limits, Start,
    search::{Machine, search},
};

const NONE: Budget = Budget::NONE;

fn limits(title: &'static str, start: Start, budget: Budget) -> Limits {
    Limits { title, start, budget, chosen: false, sequential: false }
}

#[track_caller]
fn holds(machine: &impl Machine, limits: &Limits) {
    let began = std::time::Instant::now();
    let report = search(machine);
    let Limits { title, start, budget, .. } = limits;
    println!(
        "{title}: {} states, {} steps, depth {}, from {start:?}, {budget:?}, {:?}",
        report.states,
        report.steps,
        report.depth,
        began.elapsed()
    );
    if let Some(failure) = report.failure {
        panic!("{title}: {failure}");
    }
    assert!(report.states > 100, "the search hardly left its start");
}

/// A deliberate flaw must not go unnoticed.
#[track_caller]
fn is_caught(machine: &impl Machine, flaw: impl Debug) {
    let report = search(machine);
    let failure =
        report.failure.unwrap_or_else(|| panic!("{flaw:?} goes unnoticed in {} states", report.states));
    let why = failure.lines().find(|line| !line.starts_with(|first: char| first.is_ascii_digit()));
    println!("{flaw:?} is caught after {} states, at depth {}: {why:?}", report.states, report.depth);
}
