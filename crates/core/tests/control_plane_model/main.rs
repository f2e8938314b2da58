//! The operator token and the license of a control plane, searched exhaustively within bounds.
//!
//! Every search visits all interleavings of edits, crashes, lost answers, outages and damages that its budget allows. Every
//! flaw is a mistake that one of the searches must find, so that the searches are known to look where it matters.
#![allow(
    clippy::field_reassign_with_default,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::struct_excessive_bools,
    missing_docs
)]

mod license;
mod pool;
mod search;
mod token;

use search::{Model, search};
use token::{Budget, Flaw, Method, World};

const NONE: Budget = Budget { edits: 0, crashes: 0, damages: 0, renewals: 0, deletions: 0, stale_views: 0 };

fn holds<M: Model>(title: &str, first: M) {
    let began = std::time::Instant::now();
    let outcome = search(first);
    println!(
        "{title}: {} states, {} steps, depth {}, {:?}",
        outcome.states,
        outcome.steps,
        outcome.depth,
        began.elapsed()
    );
    if let Some(failure) = outcome.failure {
        panic!("{title}: {failure}");
    }
    assert!(outcome.states > 20, "the search hardly left its start");
}

fn is_caught<M: Model>(flaw: impl std::fmt::Debug, first: M) {
    let outcome = search(first);
    assert!(outcome.failure.is_some(), "{flaw:?} goes unnoticed in {} states", outcome.states);
    println!("{flaw:?} is caught after {} states, at depth {}", outcome.states, outcome.depth);
}

const EDIT: Budget = Budget { edits: 1, ..NONE };
const EDITS: Budget = Budget { edits: 2, ..NONE };
const RENEWAL: Budget = Budget { renewals: 1, ..NONE };
const DELETION: Budget = Budget { edits: 1, deletions: 1, ..NONE };

#[test]
fn a_new_control_plane_ends_with_one_token() {
    for method in [Method::Postgres, Method::FirstUser] {
        holds("new", World::new(method, Budget { crashes: 2, ..NONE }, None));
        holds("new and edited", World::new(method, EDIT, None));
    }
}

#[test]
fn a_change_of_method_ends_with_one_token_of_the_new_method() {
    for method in [Method::Postgres, Method::FirstUser] {
        holds("edits", World::settled(method, EDITS, None));
        holds("edit and crash", World::settled(method, Budget { edits: 1, crashes: 1, ..NONE }, None));
    }
}

#[test]
fn a_renewal_keeps_a_token_that_works() {
    for method in [Method::Postgres, Method::FirstUser] {
        let budget = Budget { renewals: 1, crashes: 1, damages: 1, ..NONE };
        holds("renewal", World::settled(method, budget, None));
        let budget = Budget { renewals: 1, edits: 1, ..NONE };
        holds("renewal and edit", World::settled(method, budget, None));
    }
}

#[test]
fn a_deletion_at_any_time_leaves_no_token_that_no_event_names() {
    let budget = Budget { deletions: 1, edits: 1, ..NONE };
    for method in Method::ALL {
        holds("deletion", World::settled(method, budget, None));
        let crash = Budget { deletions: 1, crashes: 1, ..NONE };
        holds("deletion of a new control plane", World::new(method, crash, None));
    }
}

#[test]
fn a_damaged_secret_or_account_is_mended() {
    let budget = Budget { damages: 2, crashes: 1, ..NONE };
    for method in [Method::Postgres, Method::FirstUser] {
        holds("damages", World::settled(method, budget, None));
    }
}

#[test]
fn a_stale_view_of_the_status_loses_no_token() {
    let budget = Budget { edits: 2, stale_views: 1, ..NONE };
    holds("stale view", World::settled(Method::FirstUser, budget, None));
    let budget = Budget { edits: 1, deletions: 1, stale_views: 1, ..NONE };
    holds("stale view and deletion", World::settled(Method::FirstUser, budget, None));
}

#[test]
fn a_control_plane_of_the_go_operator_keeps_its_token() {
    let budget = Budget { edits: 1, ..NONE };
    holds("taken over", World::taken_over(budget));
}

#[test]
fn a_database_of_another_coderd_is_not_filled_with_tokens() {
    let budget = Budget { edits: 1, ..NONE };
    let world = World::new(Method::Postgres, budget, None);
    holds("wrong database", World { wrong_database: true, ..world });
}

#[test]
fn every_flaw_of_the_token_protocol_is_caught() {
    let settled = |flaw, method, budget| is_caught(flaw, World::settled(method, budget, Some(flaw)));
    settled(Flaw::CreatesUnannounced, Method::Postgres, EDIT);
    settled(Flaw::KeepsOldRecord, Method::Postgres, Budget { damages: 1, ..NONE });
    settled(Flaw::ForgetsUnwrittenRecord, Method::FirstUser, EDITS);
    settled(Flaw::RecordsBeforeFinalizer, Method::Supplied, DELETION);
    settled(Flaw::RemovesUnproven, Method::Postgres, RENEWAL);
    settled(Flaw::TakesSilenceForRefusal, Method::Postgres, NONE);
    settled(Flaw::RevokesAsMe, Method::Postgres, EDITS);
    settled(Flaw::RevokesReplacedFirst, Method::Postgres, EDIT);
    settled(Flaw::ReplacesItself, Method::Postgres, EDITS);
    settled(Flaw::ForgetsSecondReplaced, Method::Postgres, EDITS);
    settled(Flaw::ForgetsReplacedOnRevocation, Method::Postgres, EDITS);
    settled(Flaw::AbandonsSilently, Method::Postgres, DELETION);
    settled(Flaw::SkipsRevocation, Method::Postgres, DELETION);
    let stale = Budget { edits: 2, deletions: 1, stale_views: 1, ..NONE };
    settled(Flaw::KeepsOldRevocation, Method::FirstUser, stale);
    let wrong = World::new(Method::Postgres, NONE, Some(Flaw::ReplacesForEver));
    is_caught(Flaw::ReplacesForEver, World { wrong_database: true, ..wrong });
    settled(Flaw::ReplacesOnce, Method::Postgres, Budget { damages: 2, ..NONE });
}

const LICENSE: license::Limits = license::Limits {
    remove_replaced: false,
    is_recognisable: true,
    leaves_nothing: false,
    rejects_second: false,
    flaw: None,
};
const ROTATIONS: license::Budget = license::Budget { rotations: 2, crashes: 1, upgrades: 0, others: 0 };

#[test]
fn a_license_is_sent_once_and_restored_when_it_is_lost() {
    for is_recognisable in [true, false] {
        let limits = license::Limits { is_recognisable, ..LICENSE };
        let budget = license::Budget { rotations: 1, crashes: 1, others: 1, upgrades: 1 };
        holds("license", license::World::new(limits, budget));
    }
}

#[test]
fn a_rotated_license_is_recognised_when_it_comes_back() {
    for remove_replaced in [true, false] {
        let limits = license::Limits { remove_replaced, ..LICENSE };
        holds("rotation", license::World::settled(limits, ROTATIONS));
        let budget = license::Budget { rotations: 1, others: 1, ..ROTATIONS };
        holds("rotation among others", license::World::settled(limits, budget));
    }
    let limits = license::Limits { remove_replaced: true, leaves_nothing: true, ..LICENSE };
    let budget = license::Budget { rotations: 1, crashes: 2, ..ROTATIONS };
    holds("removal", license::World::settled(limits, budget));
}

#[test]
fn a_rejected_license_is_sent_once_to_each_version_of_the_server() {
    let limits = license::Limits { rejects_second: true, remove_replaced: true, ..LICENSE };
    let budget = license::Budget { upgrades: 1, ..ROTATIONS };
    holds("rejection", license::World::settled(limits, budget));
}

#[test]
fn every_flaw_of_the_license_protocol_is_caught() {
    use license::Flaw;
    let one = license::Budget { rotations: 1, others: 1, ..license::Budget::default() };
    for (flaw, limits) in [
        (Flaw::IgnoresList, LICENSE),
        (Flaw::ForgetsRejection, license::Limits { rejects_second: true, ..LICENSE }),
        (Flaw::ForgetsHash, license::Limits { is_recognisable: false, ..LICENSE }),
        (Flaw::RemovesFirst, license::Limits { remove_replaced: true, ..LICENSE }),
        (Flaw::RemovesUnasked, LICENSE),
        (Flaw::RemovesOthers, license::Limits { remove_replaced: true, ..LICENSE }),
    ] {
        is_caught(flaw, license::World::settled(license::Limits { flaw: Some(flaw), ..limits }, one));
    }
}
