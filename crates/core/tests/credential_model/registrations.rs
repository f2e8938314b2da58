//! Searches of proxy registrations.

use crate::{
    NONE, limits,
    model::{
        Budget, Limits, Start,
        registrations::{Flaw, Registrations},
    },
};

fn holds(limits: &Limits) {
    crate::holds(&Registrations { limits: *limits, flaw: None }, limits);
}

fn is_caught(flaw: Flaw, limits: &Limits) {
    crate::is_caught(&Registrations { limits: *limits, flaw: Some(flaw) }, flaw);
}

#[test]
fn overlapping_edits_of_a_running_proxy_end_with_one_registration() {
    holds(&limits("overlapping edits", Start::Settled, Budget { edits: 2, crashes: 1, ..NONE }));
}

#[test]
fn a_new_proxy_that_is_edited_while_it_comes_up_ends_with_one_registration() {
    holds(&limits("new proxy", Start::New, Budget { edits: 1, crashes: 2, restarts: 1, ..NONE }));
}

#[test]
fn edits_that_wait_for_each_other_never_make_a_second_registration_in_one_coderd() {
    let limits = limits("waiting edits", Start::New, Budget { edits: 3, crashes: 1, ..NONE });
    holds(&Limits { sequential: true, ..limits });
}

#[test]
fn a_damaged_secret_gets_a_token_that_works() {
    let budget = Budget { edits: 1, damages: 1, crashes: 1, restarts: 1, ..NONE };
    holds(&limits("damaged Secret", Start::Settled, budget));
    holds(&limits("damaged while it comes up", Start::New, Budget { damages: 2, crashes: 1, ..NONE }));
}

#[test]
fn registrations_of_others_are_never_touched() {
    let budget = Budget { edits: 1, others: 1, crashes: 1, ..NONE };
    holds(&limits("others", Start::Settled, budget));
    let budget = Budget { others: 1, crashes: 1, ..NONE };
    holds(&limits("others while it comes up", Start::New, budget));
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
fn a_proxy_of_the_go_operator_keeps_its_registration() {
    let budget = Budget { edits: 1, crashes: 1, restarts: 1, deletions: 1, ..NONE };
    holds(&limits("taken over", Start::TakenOver, budget));
}

#[test]
fn deleting_the_old_registration_before_the_pods_have_changed_over_is_caught() {
    is_caught(Flaw::DeletesBeforeRollout, &limits("", Start::Settled, Budget { edits: 1, ..NONE }));
}

#[test]
fn trusting_a_name_is_caught() {
    is_caught(Flaw::TrustsNames, &limits("", Start::New, Budget { others: 1, ..NONE }));
}

#[test]
fn trusting_the_token_in_the_secret_is_caught() {
    is_caught(Flaw::TrustsTokens, &limits("", Start::Settled, Budget { others: 1, ..NONE }));
}

#[test]
fn registering_what_is_not_announced_is_caught() {
    is_caught(Flaw::SkipsIntent, &limits("", Start::New, Budget { crashes: 1, ..NONE }));
}

#[test]
fn taking_silence_for_a_no_is_caught() {
    is_caught(Flaw::TakesSilenceForNo, &limits("", Start::Settled, Budget { edits: 1, ..NONE }));
}

#[test]
fn forgetting_replaced_registrations_is_caught() {
    is_caught(Flaw::ForgetsStale, &limits("", Start::Settled, Budget { edits: 1, ..NONE }));
}

#[test]
fn letting_the_object_go_without_its_registration_is_caught() {
    is_caught(Flaw::SkipsFinalizer, &limits("", Start::New, Budget { deletions: 1, ..NONE }));
}

#[test]
fn leaving_a_registration_behind_without_a_word_is_caught() {
    is_caught(Flaw::TellsNobody, &limits("", Start::Settled, Budget { deletions: 1, ..NONE }));
}

#[test]
fn forgetting_requests_that_take_effect_late_is_caught() {
    let budget = Budget { deletions: 1, crashes: 1, ..NONE };
    is_caught(Flaw::IgnoresLateEffects, &limits("", Start::New, budget));
}
