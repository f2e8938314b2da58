//! Searches of provisioner keys.

use crate::{
    NONE, limits,
    model::{
        Budget, Limits, Start,
        keys::{Flaw, Keys},
    },
};

fn holds(limits: &Limits) {
    crate::holds(&Keys { limits: *limits, flaw: None }, limits);
}

fn is_caught(flaw: Flaw, limits: &Limits) {
    crate::is_caught(&Keys { limits: *limits, flaw: Some(flaw) }, flaw);
}

#[test]
fn overlapping_edits_of_a_running_pool_end_with_one_key() {
    holds(&limits("overlapping edits", Start::Settled, Budget { edits: 2, crashes: 1, ..NONE }));
}

#[test]
fn a_new_pool_that_is_edited_while_it_comes_up_ends_with_one_key() {
    holds(&limits("new pool", Start::New, Budget { edits: 1, crashes: 2, restarts: 1, ..NONE }));
}

#[test]
fn edits_that_wait_for_each_other_never_make_a_third_key() {
    let limits = limits("waiting edits", Start::New, Budget { edits: 2, crashes: 1, restarts: 1, ..NONE });
    holds(&Limits { sequential: true, ..limits });
}

#[test]
fn a_damaged_secret_is_replaced_and_no_pod_loses_its_key() {
    let budget = Budget { edits: 1, damages: 1, restarts: 1, ..NONE };
    holds(&limits("damaged Secret", Start::Settled, budget));
}

#[test]
fn keys_of_others_are_never_touched() {
    holds(&limits("others", Start::Settled, Budget { edits: 1, others: 1, crashes: 1, ..NONE }));
}

#[test]
fn a_name_that_the_user_chose_is_not_evaded() {
    let limits = limits("chosen name", Start::New, Budget { edits: 1, others: 1, ..NONE });
    holds(&Limits { chosen: true, ..limits });
}

#[test]
fn a_deletion_at_any_time_leaves_nothing_that_nobody_knows_of() {
    let budget = Budget { edits: 1, deletions: 1, crashes: 1, ..NONE };
    holds(&limits("deletion", Start::New, budget));
    let budget = Budget { deletions: 1, others: 1, damages: 1, ..NONE };
    holds(&limits("deletion among others", Start::Settled, budget));
}

#[test]
fn a_lost_status_is_found_again() {
    let budget = Budget { edits: 1, losses: 1, crashes: 1, deletions: 1, ..NONE };
    holds(&limits("lost status", Start::Settled, budget));
}

#[test]
fn a_pool_of_the_go_operator_keeps_its_key() {
    let budget = Budget { edits: 1, crashes: 1, restarts: 1, deletions: 1, ..NONE };
    holds(&limits("taken over", Start::TakenOver, budget));
    let budget = Budget { edits: 1, crashes: 1, losses: 1, ..NONE };
    holds(&limits("taken over without its status", Start::TakenOver, budget));
}

#[test]
fn deleting_the_old_key_before_the_pods_have_changed_over_is_caught() {
    is_caught(Flaw::DeletesBeforeRollout, &limits("", Start::Settled, Budget { edits: 1, ..NONE }));
}

#[test]
fn trusting_a_name_is_caught() {
    is_caught(Flaw::TrustsNames, &limits("", Start::New, Budget { others: 1, ..NONE }));
}

#[test]
fn ignoring_uuids_is_caught() {
    is_caught(Flaw::IgnoresIds, &limits("", Start::Settled, Budget { edits: 1, others: 1, ..NONE }));
}

#[test]
fn making_a_key_that_is_not_announced_is_caught() {
    is_caught(Flaw::SkipsIntent, &limits("", Start::New, Budget { edits: 1, crashes: 1, ..NONE }));
}

#[test]
fn taking_silence_for_a_no_is_caught() {
    is_caught(Flaw::TakesSilenceForNo, &limits("", Start::Settled, Budget { edits: 1, ..NONE }));
}

#[test]
fn forgetting_replaced_keys_is_caught() {
    is_caught(Flaw::ForgetsStale, &limits("", Start::Settled, Budget { edits: 1, ..NONE }));
}

#[test]
fn letting_the_object_go_without_its_keys_is_caught() {
    is_caught(Flaw::SkipsFinalizer, &limits("", Start::New, Budget { deletions: 1, ..NONE }));
}

#[test]
fn leaving_a_key_behind_without_a_word_is_caught() {
    is_caught(Flaw::TellsNobody, &limits("", Start::Settled, Budget { deletions: 1, ..NONE }));
}

#[test]
fn forgetting_requests_that_take_effect_late_is_caught() {
    is_caught(Flaw::IgnoresLateEffects, &limits("", Start::Settled, Budget { edits: 2, crashes: 1, ..NONE }));
}
