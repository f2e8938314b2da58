//! The provisioner key protocol, searched exhaustively within bounds. Deeper: `cargo run -p coder-k8s-core --example keys_model`.
#![allow(clippy::indexing_slicing, clippy::missing_panics_doc, missing_docs)]

mod model;

use model::{Flaw, Limits, Start, search, world::Budget};

const NONE: Budget =
    Budget { edits: 0, crashes: 0, damages: 0, others: 0, restarts: 0, losses: 0, deletions: 0 };

fn limits(title: &'static str, start: Start, budget: Budget) -> Limits {
    Limits { title, start, budget, chosen: false, sequential: false }
}

fn holds(limits: &Limits) {
    let began = std::time::Instant::now();
    let report = search(limits, None);
    println!(
        "{}: {} states, {} steps, depth {}, {:?}, {:?}",
        limits.title,
        report.states,
        report.steps,
        report.depth,
        limits.budget,
        began.elapsed()
    );
    if let Some(failure) = report.failure {
        panic!("{}: {failure}", limits.title);
    }
}

#[test]
fn a_new_pool_with_an_edit_and_a_crash() {
    holds(&limits("new", Start::New, Budget { edits: 1, crashes: 1, restarts: 1, ..NONE }));
}

#[test]
fn a_new_pool_whose_edits_wait() {
    let limits = limits("sequential", Start::New, Budget { edits: 2, crashes: 2, restarts: 1, ..NONE });
    holds(&Limits { sequential: true, ..limits });
}

#[test]
fn a_damaged_secret() {
    holds(&limits(
        "damage",
        Start::Settled,
        Budget { edits: 1, damages: 1, crashes: 1, restarts: 1, others: 0, ..NONE },
    ));
}

#[test]
fn keys_of_others() {
    holds(&limits("others", Start::Settled, Budget { edits: 1, others: 2, crashes: 1, ..NONE }));
}

#[test]
fn keys_of_others_under_a_chosen_name() {
    let limits = limits("chosen", Start::New, Budget { edits: 1, others: 1, crashes: 1, ..NONE });
    holds(&Limits { chosen: true, ..limits });
}

#[test]
fn a_deletion_at_any_time() {
    holds(&limits(
        "deletion",
        Start::New,
        Budget { edits: 1, deletions: 1, crashes: 1, restarts: 1, ..NONE },
    ));
}

#[test]
fn a_lost_status() {
    holds(&limits("loss", Start::Settled, Budget { edits: 1, losses: 1, crashes: 1, deletions: 1, ..NONE }));
}

#[test]
fn a_pool_of_the_existing_operator() {
    holds(&limits(
        "takeover",
        Start::TakenOver,
        Budget { edits: 1, crashes: 1, restarts: 1, damages: 1, ..NONE },
    ));
}

#[test]
fn overlapping_edits_of_a_running_pool() {
    holds(&limits("edits", Start::Settled, Budget { edits: 2, crashes: 1, restarts: 1, ..NONE }));
}
