use super::*;
use crate::outcome::{Blocker, ForeignObject};

fn settled() -> Verdict {
    let message = "all is well".to_owned();
    Verdict { ready: true, progress: Progress::Settled, reason: Reason::RolledOut, message }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pass(before: &[Condition], done: &ActResult, now: i64) -> Vec<Condition> {
    let mut conditions = Conditions::new(before, Some(3), at(now));
    conditions.set_common(done, settled());
    conditions.into_vec()
}

fn status(all: &[Condition], type_: &str) -> (String, String) {
    let found = all.iter().find(|c| c.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone())
}

fn failed() -> ActResult {
    let failure = Blocker::new(Reason::Forbidden, "no");
    ActResult { failures: vec![failure], ..ActResult::default() }
}

fn in_the_way() -> ActResult {
    let foreign = ForeignObject {
        kind: "ServiceAccount".into(),
        name: "coder".into(),
        hand_over: "a=b".into(),
        refused: None,
    };
    ActResult { foreign: vec![foreign], ..ActResult::default() }
}

#[test]
fn a_time_moves_only_when_a_status_flips() {
    let first = pass(&[], &ActResult::default(), 10);
    let second = pass(&first, &ActResult::default(), 20);
    assert_eq!(first, second);
    let third = pass(&second, &failed(), 30);
    let ready = third.iter().find(|c| c.type_ == condition_type::READY).unwrap();
    assert_eq!(ready.last_transition_time, Time(at(30)));
    let stalled = third.iter().find(|c| c.type_ == condition_type::STALLED).unwrap();
    assert_eq!(stalled.last_transition_time, Time(at(10)));
}

#[test]
fn a_failure_is_worked_on_and_a_conflict_waits_for_a_person() {
    let failing = pass(&[], &failed(), 1);
    assert_eq!(status(&failing, condition_type::READY), ("False".into(), "Forbidden".into()));
    assert_eq!(status(&failing, condition_type::RECONCILING).0, "True");
    assert_eq!(status(&failing, condition_type::STALLED).0, "False");
    let conflict = pass(&[], &in_the_way(), 1);
    assert_eq!(status(&conflict, condition_type::READY), ("False".into(), Reason::ForeignObject.to_string()));
    assert_eq!(status(&conflict, condition_type::RECONCILING).0, "False");
    assert_eq!(status(&conflict, condition_type::STALLED).0, "True");
    assert_eq!(status(&conflict, condition_type::CONFLICT).0, "True");
}

#[test]
fn what_a_pass_says_last_counts() {
    let mut conditions = Conditions::new(&[], Some(1), at(5));
    conditions.set(condition_type::RECONCILING, false, Reason::Reconciled, "nothing is left to do");
    conditions.set(condition_type::READY, true, Reason::RolledOut, "it runs");
    conditions.set(condition_type::RECONCILING, true, Reason::Redirected, "an edit is not known to be done");
    let all = conditions.into_vec();
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(status(&all, condition_type::RECONCILING), ("True".into(), Reason::Redirected.to_string()));
}

#[test]
fn what_a_pass_says_nothing_about_stays() {
    let mut others = Conditions::new(&[], Some(1), at(5));
    others.set(
        condition_type::LICENSE_APPLIED,
        ConditionStatus::Unknown,
        Reason::Pending,
        "no license is asked for",
    );
    let others = others.into_vec();
    let after = pass(&others, &ActResult::default(), 9);
    assert_eq!(status(&after, condition_type::LICENSE_APPLIED), ("Unknown".into(), "Pending".into()));
    assert_eq!(pass(&after, &ActResult::default(), 10), after);
}

#[test]
fn times_alone_say_nothing() {
    let status = |time: &str, hash: &str| {
        serde_json::json!({"url": "x", "entitlementsLastChecked": time, "licenseLastAppliedHash": hash,
            "conditions": [{"type": "Ready", "lastTransitionTime": time}]})
    };
    assert_eq!(timeless(status("1", "a")), timeless(status("2", "a")));
    assert_ne!(timeless(status("1", "a")), timeless(status("1", "b")));
}

#[test]
fn only_a_transition_is_told() {
    let well = pass(&[], &ActResult::default(), 1);
    let bad = pass(&well, &in_the_way(), 2);
    assert_eq!(transitions(&[], &well).len(), 1);
    assert_eq!(transitions(&well, &well), []);
    let events = transitions(&well, &bad);
    assert!(events[0].warning && events[0].reason == Reason::ForeignObject);
    assert!(!transitions(&bad, &pass(&bad, &ActResult::default(), 3))[0].warning);
}

#[test]
fn a_new_object_on_its_way_is_no_news() {
    let rolling = |before: &[Condition]| {
        let mut conditions = Conditions::new(before, Some(1), at(1));
        let message = "rolling out".to_owned();
        let verdict =
            Verdict { ready: false, progress: Progress::Working, reason: Reason::Progressing, message };
        conditions.set_common(&ActResult::default(), verdict);
        conditions.into_vec()
    };
    assert_eq!(transitions(&[], &rolling(&[])), []);
    let well = pass(&[], &ActResult::default(), 1);
    let events = transitions(&well, &rolling(&well));
    assert!(events.len() == 1 && !events[0].warning);
}

/// `Ready` with this reason: True if it is that of a rollout that is complete.
fn ready_with(reason: Reason) -> Vec<Condition> {
    let mut conditions = Conditions::new(&[], Some(1), at(1));
    conditions.set(condition_type::READY, reason == Reason::RolledOut, reason, "m");
    conditions.into_vec()
}

#[test]
fn ordinary_progress_is_no_warning_and_waiting_is_no_event() {
    use Reason::{
        AwaitingControlPlane, AwaitingEntitlements, Creating, Deleting, NotEntitled, Pending, Progressing,
        Recording, Registering, RolledOut, Rotating, Updating,
    };
    // A whole life: what each step tells. None: nothing.
    for life in [
        &[
            (AwaitingControlPlane, None),
            (AwaitingEntitlements, None),
            (Creating, Some(false)),
            (Recording, None),
            (Pending, None),
            (Progressing, None),
            (RolledOut, Some(false)),
            (Rotating, Some(false)),
            (Progressing, None),
            (RolledOut, Some(false)),
            (NotEntitled, Some(true)),
            (Progressing, Some(false)),
            (RolledOut, Some(false)),
            (AwaitingControlPlane, Some(false)),
            (Deleting, Some(false)),
        ][..],
        &[
            (Registering, Some(false)),
            (RolledOut, Some(false)),
            (Updating, Some(false)),
            (Deleting, Some(false)),
        ],
        &[(NotEntitled, Some(true)), (Pending, Some(false)), (RolledOut, Some(false))],
    ] {
        let mut before = Vec::new();
        for (reason, expected) in life {
            let after = ready_with(*reason);
            let told: Vec<_> = transitions(&before, &after).into_iter().map(|event| event.warning).collect();
            assert_eq!(told, Vec::from_iter(*expected), "{reason}");
            assert_eq!(transitions(&after, &after), []);
            before = after;
        }
    }
}

#[test]
fn one_cause_in_two_conditions_is_told_once() {
    let mut conditions = Conditions::new(&[], Some(1), at(1));
    conditions.set(condition_type::READY, false, Reason::Unauthenticated, "the token is refused");
    conditions.set(
        condition_type::OPERATOR_ACCESS_READY,
        false,
        Reason::Unauthenticated,
        "the token is refused",
    );
    conditions.set(condition_type::LICENSE_APPLIED, false, Reason::Unauthenticated, "another sentence");
    let told = transitions(&[], &conditions.into_vec());
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn bad_news_of_a_part_is_told_once_and_so_is_its_end() {
    let with = |state: ConditionStatus, reason: Reason| {
        let mut conditions = Conditions::new(&[], Some(1), at(1));
        conditions.set(condition_type::WORKSPACE_ACCESS, state, reason, "m");
        conditions.into_vec()
    };
    let (fine, bad) =
        (with(ConditionStatus::True, Reason::Granted), with(ConditionStatus::False, Reason::ConsentMissing));
    assert_eq!(transitions(&[], &fine), []);
    assert!(transitions(&fine, &bad)[0].warning);
    assert_eq!(transitions(&bad, &bad), []);
    assert!(!transitions(&bad, &fine)[0].warning);
    assert_eq!(transitions(&[], &with(ConditionStatus::False, Reason::Disabled)), []);
}

#[test]
fn what_the_api_server_refuses_waits_for_a_person() {
    let failure = Blocker::new(Reason::Invalid, "no");
    let refused = pass(&[], &ActResult { failures: vec![failure], ..ActResult::default() }, 1);
    assert_eq!(status(&refused, condition_type::STALLED), ("True".into(), "Invalid".into()));
    assert_eq!(status(&refused, condition_type::RECONCILING).0, "False");
    assert_eq!(status(&refused, condition_type::READY), ("False".into(), "Invalid".into()));
}

#[test]
fn what_was_cleared_is_gone() {
    let mut conditions = Conditions::new(&[], None, at(1));
    conditions.set(condition_type::PAUSED, true, Reason::Annotated, "m");
    let before = conditions.into_vec();
    let mut conditions = Conditions::new(&before, None, at(2));
    conditions.clear(condition_type::PAUSED);
    assert_eq!(conditions.into_vec(), []);
}

#[test]
fn a_message_that_a_server_chose_is_cut() {
    let mut conditions = Conditions::new(&[], None, at(1));
    conditions.set(
        condition_type::ENTITLEMENTS_HEALTHY,
        false,
        Reason::Errors,
        "ä".repeat(MAX_CONDITION_BYTES),
    );
    conditions.set(condition_type::READY, true, Reason::RolledOut, "short");
    let all = conditions.into_vec();
    assert!(all[0].message.len() <= MAX_CONDITION_BYTES && all[0].message.ends_with('…'));
    assert_eq!(all[1].message, "short");
}
