use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn blocker() -> Blocker {
    Blocker::new(Reason::ServerError, "503")
}

fn accepted() -> TokenCheck {
    TokenCheck::Accepted { user_id: "u".into() }
}

#[expect(clippy::unnecessary_wraps, reason = "it is the value of a field")]
fn ours(has_token: bool, in_place: bool) -> Option<Result<TokenSecret, Blocker>> {
    Some(Ok(TokenSecret::Ours { has_token, in_place }))
}

fn token_record(renew_after: i64) -> OperatorTokenStatus {
    OperatorTokenStatus {
        method: AccessMethod::Postgres,
        user_id: Some("u".into()),
        expires: Some(Time(at(900))),
        renew_after: Some(Time(at(renew_after))),
        replaces: None,
    }
}

fn unasked(method: AccessMethod) -> ObservedToken {
    ObservedToken { method, ..ObservedToken::default() }
}

/// A token that is on record, in its Secret, and due for renewal at 600.
fn steady() -> ObservedToken {
    ObservedToken {
        is_recorded: true,
        user_id: token_record(600).user_id,
        record: Some(token_record(600)),
        secret: ours(true, true),
        check: Some(accepted()),
        rights: Some(Ok(true)),
        ..unasked(AccessMethod::Postgres)
    }
}

fn step(observed: &ObservedToken) -> TokenStep {
    decide(observed, at(100))
}

fn report(observed: &ObservedToken) -> TokenReport {
    match step(observed) {
        Step::Done(report) => report,
        step => panic!("{step:?}"),
    }
}

const RENEW: TokenEffect = TokenEffect::Create { renews: true, is_refused: false };
const CREATE: TokenEffect = TokenEffect::Create { renews: false, is_refused: false };

#[test]
fn a_token_in_order_costs_questions_and_nothing_else() {
    let fresh = ObservedToken { secret: None, check: None, rights: None, ..steady() };
    assert_eq!(step(&fresh), Step::Ask(TokenQuery::Secret));
    let read = ObservedToken { secret: ours(true, true), ..fresh };
    assert_eq!(step(&read), Step::Ask(TokenQuery::Check));
    let checked = ObservedToken { check: Some(accepted()), ..read };
    assert_eq!(step(&checked), Step::Ask(TokenQuery::Rights));
    let report = report(&steady());
    assert_eq!(
        (report.access, report.is_usable, report.token_record),
        (Some(AccessVerdict::Ready), true, None)
    );
    // The first user is a person: its rights are not looked at.
    let person = ObservedToken { rights: None, method: AccessMethod::FirstUser, ..steady() };
    assert!(matches!(step(&person), Step::Done(_)));
}

#[test]
fn nothing_is_created_before_it_is_announced() {
    let new = ObservedToken { secret: ours(false, true), ..unasked(AccessMethod::Postgres) };
    assert_eq!(step(&new), Step::Ask(TokenQuery::Source));
    let open = ObservedToken { source: Some(Ok(())), ..new.clone() };
    let announced = report(&open);
    assert!(announced.awaits_record && announced.token_record.is_some() && !announced.is_usable);
    let closed = ObservedToken {
        source: Some(Err(Blocker::until_change(Reason::DatabaseUrlMissing, "none"))),
        ..new.clone()
    };
    let refused = report(&closed);
    assert!(matches!(refused.access, Some(AccessVerdict::Refused(_))) && refused.token_record.is_none());
    assert_eq!(refused.retry, None, "only a change helps");
    assert_eq!(step(&ObservedToken { is_recorded: true, ..new }), Step::Act(CREATE));
}

#[test]
fn a_token_that_expires_creates_its_successor_and_goes_on_working() {
    let due = ObservedToken { record: Some(token_record(100)), ..steady() };
    assert_eq!(step(&due), Step::Act(RENEW));
    let failing = ObservedToken { created: Some(Err(blocker())), ..due.clone() };
    let told = report(&failing);
    assert!(matches!(told.access, Some(AccessVerdict::Overdue(_))) && told.is_usable && told.retry.is_some());
    // Not on record: recorded first, and the old one is used meanwhile.
    let unrecorded = ObservedToken { is_recorded: false, record: None, source: Some(Ok(())), ..steady() };
    let told = report(&unrecorded);
    assert!(told.awaits_record && told.is_usable && told.access == Some(AccessVerdict::Ready));
}

#[test]
fn a_created_token_is_proven_before_the_others_go() {
    let created = CreatedToken { expires: at(900), renew_after: at(600), is_only_one: false };
    let made =
        ObservedToken { record: Some(token_record(100)), created: Some(Ok(created.clone())), ..steady() };
    assert_eq!(step(&made), Step::Ask(TokenQuery::Proof));
    let unknown = ObservedToken { proof: Some(TokenCheck::Unknown(blocker())), ..made.clone() };
    assert!(matches!(report(&unknown).access, Some(AccessVerdict::Degraded(_))), "nothing is removed");
    let proven = ObservedToken { proof: Some(accepted()), ..made.clone() };
    assert_eq!(step(&proven), Step::Act(TokenEffect::RemoveOthers));
    let settled = ObservedToken { others_removed: Some(Ok(())), ..proven };
    assert_eq!(report(&settled).token_record, Some(token_record(600)));
    let alone = CreatedToken { is_only_one: true, ..created };
    let alone = ObservedToken { created: Some(Ok(alone)), proof: Some(accepted()), ..made };
    assert_eq!(report(&alone).token_record, Some(token_record(600)));
}

#[test]
fn a_token_is_created_only_while_the_record_is_due_so_that_an_interrupted_exchange_is_resumed() {
    let refused = Some(TokenCheck::Refused(blocker()));
    for (lacking, still_works) in [
        (ObservedToken { check: refused, ..steady() }, false),
        (ObservedToken { secret: ours(false, false), ..steady() }, false),
        (ObservedToken { rights: Some(Ok(false)), ..steady() }, true),
    ] {
        let announced = report(&lacking);
        let announcement = OperatorTokenStatus { expires: None, renew_after: None, ..token_record(600) };
        assert_eq!((announced.awaits_record, announced.token_record), (true, Some(announcement)));
        assert_eq!(announced.is_usable, still_works);
    }
    // Interrupted after the creation: coderd accepts the new token, and the others are still to be removed.
    let interrupted = ObservedToken { record: None, ..steady() };
    assert_eq!(step(&interrupted), Step::Act(RENEW));
}

#[test]
fn a_token_that_works_again_creates_its_successor_without_a_password() {
    let again = ObservedToken { record: None, method: AccessMethod::FirstUser, ..steady() };
    assert_eq!(step(&again), Step::Act(RENEW));
    for stranger in [None, Some("somebody".to_owned())] {
        let of_another = ObservedToken { user_id: stranger, ..again.clone() };
        assert_eq!(step(&of_another), Step::Act(CREATE), "the Secret holds the token of another user");
    }
}

#[test]
fn a_refused_token_is_replaced_and_what_is_refused_again_after_a_delay() {
    let refused = ObservedToken { check: Some(TokenCheck::Refused(blocker())), record: None, ..steady() };
    assert_eq!(step(&refused), Step::Act(TokenEffect::Create { renews: false, is_refused: true }));
    let created = CreatedToken { expires: at(900), renew_after: at(600), is_only_one: true };
    let again = ObservedToken {
        created: Some(Ok(created)),
        proof: Some(TokenCheck::Refused(blocker())),
        ..refused.clone()
    };
    let told = report(&again);
    assert!(told.blocks_license && told.retry == Some(Retry::Backoff));
    let Some(AccessVerdict::Refused(why)) = &told.access else { panic!() };
    assert_eq!(why.reason, Reason::TokenRefused);
    let delay = Duration::from_secs(8);
    let meanwhile = report(&ObservedToken { creation_delay: Some(delay), ..refused });
    assert_eq!(meanwhile.access, told.access, "conditions do not flap");
    assert_eq!((meanwhile.retry, meanwhile.is_usable), (Some(Retry::After(delay)), false));
}

#[test]
fn a_token_that_works_is_used_while_its_successor_waits() {
    let delay = Duration::from_secs(8);
    let due = ObservedToken { record: Some(token_record(100)), creation_delay: Some(delay), ..steady() };
    let told = report(&due);
    assert_eq!((told.access, told.retry, told.is_usable), (None, Some(Retry::After(delay)), true));
}

#[test]
fn an_answer_that_is_not_definite_changes_nothing() {
    for observed in [
        ObservedToken { check: Some(TokenCheck::Unknown(blocker())), ..steady() },
        ObservedToken { rights: Some(Err(blocker())), ..steady() },
    ] {
        let told = report(&observed);
        assert!(matches!(told.access, Some(AccessVerdict::Degraded(_))) && told.token_record.is_none());
        assert_eq!(told.retry, Some(Retry::Backoff));
    }
    let redirected = Blocker::new(Reason::Redirected, "elsewhere");
    let observed = ObservedToken { check: Some(TokenCheck::Unknown(redirected)), ..steady() };
    assert!(
        matches!(report(&observed).access, Some(AccessVerdict::Refused(_))),
        "a person must say where to"
    );
}

#[test]
fn a_token_under_an_earlier_name_is_moved() {
    let moved = ObservedToken { secret: ours(true, false), ..steady() };
    assert_eq!(step(&moved), Step::Act(TokenEffect::Store));
    let failing = ObservedToken { stored: Some(Err(blocker())), ..moved.clone() };
    assert!(matches!(report(&failing).access, Some(AccessVerdict::Overdue(_))));
    assert_eq!(report(&ObservedToken { stored: Some(Ok(())), ..moved }).access, Some(AccessVerdict::Ready));
}

#[test]
fn a_foreign_secret_is_neither_read_nor_written() {
    let foreign = ObservedToken { secret: Some(Ok(TokenSecret::Foreign { name: "s".into() })), ..steady() };
    let Some(AccessVerdict::Refused(why)) = report(&foreign).access else { panic!() };
    assert_eq!(why.reason, Reason::ForeignObject);
}

#[test]
fn a_replaced_token_is_revoked_only_after_its_successor_works() {
    let old = ReplacedToken { method: AccessMethod::FirstUser, user_id: Some("p".into()) };
    let replacing = ObservedToken { replaced: vec![old.clone()], ..steady() };
    assert_eq!(step(&replacing), Step::Act(TokenEffect::RevokeReplaced(old.clone())));
    let refused = ObservedToken { check: Some(TokenCheck::Refused(blocker())), ..replacing.clone() };
    assert!(!matches!(step(&refused), Step::Act(TokenEffect::RevokeReplaced(_))));
    let revoked = ObservedToken { replaced_revoked: vec![Ok(())], ..replacing.clone() };
    assert_eq!(report(&revoked).token_record, Some(token_record(600)), "the record no longer names it");
    let later = ObservedToken { replaced_revoked: vec![Err(blocker())], ..replacing.clone() };
    let told = report(&later);
    assert!(told.retry == Some(Retry::Backoff) && told.is_usable && told.events.is_empty());
    let never = Blocker::until_change(Reason::DatabaseUrlMissing, "gone");
    let abandoned = report(&ObservedToken { replaced_revoked: vec![Err(never)], ..replacing });
    assert_eq!(abandoned.events.len(), 1);
    assert_eq!(abandoned.token_record, Some(token_record(600)));
}

#[test]
fn a_supplied_token_is_checked_and_never_created() {
    let supplied = ObservedToken { secret: ours(true, true), ..unasked(AccessMethod::TokenSecret) };
    assert_eq!(step(&supplied), Step::Ask(TokenQuery::Check));
    let refused = ObservedToken { check: Some(TokenCheck::Refused(blocker())), ..supplied.clone() };
    assert!(matches!(report(&refused).access, Some(AccessVerdict::Refused(_))));
    let missing = Blocker::until_change(Reason::SecretMissing, "absent");
    let told = report(&ObservedToken { secret: Some(Err(missing)), ..supplied.clone() });
    assert!(matches!(told.access, Some(AccessVerdict::Refused(_))) && !told.blocks_license);
    let told = report(&ObservedToken { secret: Some(Err(blocker())), ..supplied.clone() });
    assert_eq!((told.access, told.retry), (None, Some(Retry::Backoff)), "unreadable is not refused");
    // It takes over from a token of ours.
    let old = ReplacedToken { method: AccessMethod::Postgres, user_id: None };
    let takes_over = ObservedToken { replaced: vec![old], check: Some(accepted()), ..supplied };
    assert!(matches!(step(&takes_over), Step::Act(TokenEffect::RevokeReplaced(_))));
    let told = report(&ObservedToken { replaced_revoked: vec![Ok(())], ..takes_over });
    assert_eq!((told.revocation, told.token_record), (Some(Revocation::Done), None));
}

#[test]
fn two_replaced_tokens_are_both_revoked_before_the_record_goes() {
    let old = |method| ReplacedToken { method, user_id: None };
    let both = vec![old(AccessMethod::Postgres), old(AccessMethod::FirstUser)];
    let supplied = ObservedToken {
        secret: ours(true, true),
        check: Some(accepted()),
        replaced: both.clone(),
        ..unasked(AccessMethod::TokenSecret)
    };
    let never = || Blocker::until_change(Reason::DatabaseUrlMissing, "gone");
    for (outcomes, next) in
        [(vec![], 0), (vec![Ok(())], 1), (vec![Err(blocker())], 1), (vec![Err(never())], 1)]
    {
        let observed = ObservedToken { replaced_revoked: outcomes, ..supplied.clone() };
        assert_eq!(step(&observed), Step::Act(TokenEffect::RevokeReplaced(both[next].clone())));
    }
    for (outcomes, is_done, events) in [
        (vec![Ok(()), Ok(())], true, 0),
        (vec![Err(never()), Ok(())], true, 1),
        (vec![Err(never()), Err(never())], true, 2),
        (vec![Err(blocker()), Ok(())], false, 0),
        (vec![Err(never()), Err(blocker())], false, 0),
    ] {
        let report = report(&ObservedToken { replaced_revoked: outcomes.clone(), ..supplied.clone() });
        let found =
            (report.revocation == Some(Revocation::Done), report.events.len(), report.retry.is_some());
        assert_eq!(found, (is_done, events, !is_done), "{outcomes:?}");
        assert!(report.is_usable);
    }
}

#[test]
fn a_text_that_cannot_be_a_token_counts_as_none() {
    let garbage = TokenCheck::Refused(Blocker::until_change(Reason::BadToken, "newline"));
    let minted = ObservedToken { check: Some(garbage.clone()), record: None, ..steady() };
    assert_eq!(step(&minted), Step::Act(CREATE), "not a replacement of a refused token");
    let supplied = ObservedToken {
        secret: ours(true, true),
        check: Some(garbage),
        ..unasked(AccessMethod::TokenSecret)
    };
    let told = report(&supplied);
    assert!(matches!(told.access, Some(AccessVerdict::Refused(_))) && !told.blocks_license);
}

#[test]
fn a_user_without_every_right_gets_them_with_a_new_token() {
    let lacking = ObservedToken { rights: Some(Ok(false)), ..steady() };
    let announced = report(&lacking);
    assert!(announced.awaits_record && announced.is_usable);
    let announced = ObservedToken { record: None, ..lacking };
    assert_eq!(step(&announced), Step::Act(RENEW));
    let failing = ObservedToken { created: Some(Err(blocker())), ..announced };
    assert!(matches!(report(&failing).access, Some(AccessVerdict::Overdue(_))), "the token still works");
}
