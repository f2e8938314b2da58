use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn installed(uuid: &str) -> LicenseStatus {
    LicenseStatus { id: Some(1), uuid: Some(uuid.into()), ..LicenseStatus::default() }
}

fn list(ours: Option<&str>, all: &[&str]) -> LicenseList {
    let all = all.iter().zip(1..).map(|(uuid, id)| InstalledLicense { id, uuid: (*uuid).into() }).collect();
    LicenseList { ours: ours.map(installed), uploaded_at: None, all }
}

fn observed(record: LicenseRecord, found: LicenseList) -> ObservedLicense {
    ObservedLicense {
        server_version: "v1".into(),
        remove_replaced: false,
        was_applied: false,
        record,
        secret: Some(Ok(Some(LicenseText { hash: "h".into(), is_recognisable: true }))),
        list: Some(Ok(found)),
        sent: None,
        removed: None,
    }
}

fn recorded(uuid: &str) -> LicenseRecord {
    LicenseRecord { hash: Some("h".into()), uuid: Some(uuid.into()), refused: None }
}

fn report(observed: &ObservedLicense) -> LicenseReport {
    match decide(observed, NOW) {
        Step::Done(report) => report,
        step => panic!("{step:?}"),
    }
}

fn ends_applied(observed: &ObservedLicense) -> bool {
    matches!(report(observed).license, Some(LicenseVerdict::Applied { .. }))
}

#[test]
fn blanks_around_a_license_do_not_count() {
    let known = "27c1063bcd5d770162ac2d23000e21037534893e0b060251c72f964ebbcbbaf5";
    assert_eq!(hash("license-jwt-initial"), known);
    assert_eq!(hash(" license-jwt-initial\n"), known);
}

#[test]
fn secret_and_list_are_asked_for_in_order() {
    let nothing =
        ObservedLicense { secret: None, list: None, ..observed(LicenseRecord::default(), list(None, &[])) };
    assert_eq!(decide(&nothing, NOW), Step::Ask(LicenseQuery::Secret));
    let read = ObservedLicense { list: None, ..observed(LicenseRecord::default(), list(None, &[])) };
    assert_eq!(decide(&read, NOW), Step::Ask(LicenseQuery::List));
    let unasked = ObservedLicense { secret: Some(Ok(None)), ..nothing };
    assert_eq!(report(&unasked), LicenseReport::default(), "no license is asked for: coderd is not asked");
}

#[test]
fn a_license_is_sent_only_when_the_list_does_not_show_it() {
    let send = Step::Act(LicenseEffect::Send);
    assert_eq!(decide(&observed(LicenseRecord::default(), list(None, &[])), NOW), send);
    let other = observed(recorded("a"), list(None, &["other"]));
    assert_eq!(decide(&other, NOW), send, "any license is not this license");
    assert!(
        ends_applied(&observed(LicenseRecord::default(), list(Some("a"), &["a"]))),
        "an upload nobody recorded"
    );
}

#[test]
fn a_replaced_license_is_removed_only_when_asked_for_and_only_after_its_successor_is_there() {
    let with = |remove_replaced, ours: Option<&str>, all: &[&str]| ObservedLicense {
        remove_replaced,
        ..observed(recorded("a"), list(ours, all))
    };
    assert_eq!(decide(&with(true, None, &["a"]), NOW), Step::Act(LicenseEffect::Send));
    assert!(ends_applied(&with(false, Some("b"), &["a", "b"])));
    let old = InstalledLicense { id: 1, uuid: "a".into() };
    assert_eq!(decide(&with(true, Some("b"), &["a", "b", "c"]), NOW), Step::Act(LicenseEffect::Remove(old)));
    assert!(ends_applied(&with(true, Some("b"), &["b", "c"])), "somebody else's license stays");
}

#[test]
fn a_removal_that_fails_is_remembered_and_retried() {
    let failing = ObservedLicense {
        remove_replaced: true,
        removed: Some(Err(Blocker::new(Reason::ServerError, "503"))),
        ..observed(recorded("a"), list(Some("b"), &["a", "b"]))
    };
    let LicenseReport { license, retry, .. } = report(&failing);
    let Some(LicenseVerdict::Applied { installed: Some(installed), .. }) = license else {
        panic!("{license:?}")
    };
    assert_eq!((installed.replaces.as_deref(), retry), (Some("a"), Some(Retry::Backoff)));
    let removed = ObservedLicense { removed: Some(Ok(())), ..failing };
    let Some(LicenseVerdict::Applied { installed: Some(installed), .. }) = report(&removed).license else {
        panic!()
    };
    assert_eq!(installed.replaces, None);
}

#[test]
fn a_value_that_a_server_rejected_is_not_sent_to_it_again() {
    let refused = LicenseRecord { refused: Some(rejection_id("h", "v1")), ..LicenseRecord::default() };
    let rejected = observed(refused, list(None, &[]));
    assert!(report(&rejected).keeps);
    let upgraded = ObservedLicense { server_version: "v2".into(), ..rejected.clone() };
    assert_eq!(decide(&upgraded, NOW), Step::Act(LicenseEffect::Send));
    let text = LicenseText { hash: "i".into(), is_recognisable: true };
    let edited = ObservedLicense { secret: Some(Ok(Some(text))), ..rejected };
    assert_eq!(decide(&edited, NOW), Step::Act(LicenseEffect::Send));
}

#[test]
fn a_text_that_cannot_be_recognised_is_trusted_while_coderd_holds_any_license() {
    let text = LicenseText { hash: "h".into(), is_recognisable: false };
    let with = |all: &[&str]| ObservedLicense {
        secret: Some(Ok(Some(text.clone()))),
        ..observed(recorded("a"), list(None, all))
    };
    assert!(ends_applied(&with(&["x"])));
    assert_eq!(decide(&with(&[]), NOW), Step::Act(LicenseEffect::Send), "the database was reset");
}

#[test]
fn a_license_that_somebody_else_sends_at_the_same_moment_is_recognised() {
    let duplicate = Some(Err(Blocker::new(Reason::Duplicate, "exists")));
    let found = ObservedLicense {
        sent: duplicate.clone(),
        ..observed(LicenseRecord::default(), list(Some("a"), &["a"]))
    };
    let Some(LicenseVerdict::Applied { accepted, installed, .. }) = report(&found).license else { panic!() };
    assert_eq!((accepted, installed.and_then(|one| one.uuid)), (Some(NOW), Some("a".into())));
    let text = LicenseText { hash: "h".into(), is_recognisable: false };
    let hidden = ObservedLicense {
        secret: Some(Ok(Some(text))),
        sent: duplicate,
        ..observed(LicenseRecord::default(), list(None, &[]))
    };
    assert!(ends_applied(&hidden), "it is in no list that shows claims");
}

#[test]
fn a_license_that_coderd_says_it_has_and_does_not_list_is_not_applied() {
    let contradicted = ObservedLicense {
        sent: Some(Err(Blocker::new(Reason::Duplicate, "exists"))),
        ..observed(recorded("old"), list(None, &["old"]))
    };
    let report = report(&contradicted);
    let Some(LicenseVerdict::Blocker(blocker)) = report.license else { panic!("{:?}", report.license) };
    assert_eq!((blocker.reason, report.retry), (Reason::Duplicate, Some(Retry::Backoff)));
    assert!(blocker.message.starts_with("waiting for coderd to list the license"), "{}", blocker.message);
}

#[test]
fn each_failure_has_its_meaning_for_license_and_token() {
    let blocker = |reason| Blocker::new(reason, "no");
    // (what failed, applied before, license verdict kept, access, retried)
    for (reason, was_applied, keeps, access, retried) in [
        (Reason::ServerError, true, true, Some("degraded"), true),
        (Reason::ServerError, false, false, None, true),
        (Reason::Unauthenticated, true, true, Some("refused"), false),
        (Reason::Unauthenticated, false, false, Some("refused"), false),
        (Reason::Forbidden, true, true, Some("degraded"), false),
        (Reason::Forbidden, false, false, None, false),
        (Reason::Redirected, true, true, Some("refused"), false),
        (Reason::InvalidLicense, false, false, None, false),
        (Reason::NotSupported, true, false, None, false),
    ] {
        let failing = ObservedLicense {
            was_applied,
            list: Some(Err(blocker(reason))),
            ..observed(recorded("a"), LicenseList::default())
        };
        let report = report(&failing);
        let found = report.access.as_ref().map(|access| match access {
            AccessVerdict::Degraded(_) => "degraded",
            AccessVerdict::Refused(_) => "refused",
            AccessVerdict::Ready | AccessVerdict::Overdue(_) => "works",
        });
        let told = (report.keeps, found, report.retry.is_some());
        assert_eq!(told, (keeps, access, retried), "{reason} {was_applied}");
        let is_refused = matches!(report.license, Some(LicenseVerdict::Refused { .. }));
        assert_eq!(is_refused, matches!(reason, Reason::InvalidLicense | Reason::NotSupported), "{reason}");
    }
}

#[test]
fn an_unreadable_secret_is_retried_and_a_missing_one_waits() {
    for (blocker, retry) in [
        (Blocker::new(Reason::Error, "timeout"), Some(Retry::Backoff)),
        (Blocker::until_change(Reason::SecretMissing, "absent"), None),
    ] {
        let failing = ObservedLicense {
            secret: Some(Err(blocker.clone())),
            ..observed(recorded("a"), list(None, &[]))
        };
        let LicenseReport { license, retry: told, .. } = report(&failing);
        assert_eq!((license, told), (Some(LicenseVerdict::Blocker(blocker)), retry));
    }
}

fn plane(condition: &str, verified: Option<&str>) -> CoderControlPlane {
    let spec = serde_json::json!({"licenseSecretRef": {"name": "license"}});
    let mut plane = CoderControlPlane::new("coder", serde_json::from_value(spec).unwrap());
    let condition = serde_json::json!({"type": condition_type::LICENSE_APPLIED, "status": condition, "reason": "Applied",
        "message": "", "lastTransitionTime": "2026-11-01T00:00:00Z"});
    let verified: Vec<_> = verified
        .map(|inputs| serde_json::json!({"type": condition_type::LICENSE_APPLIED, "inputs": inputs}))
        .into_iter()
        .collect();
    let status = serde_json::json!({"conditions": [condition], "verified": verified});
    plane.status = Some(serde_json::from_value(status).unwrap());
    plane
}

#[test]
fn a_license_is_pending_until_it_is_applied_or_refused_for_its_present_inputs() {
    let blocker = || Blocker::new(Reason::Pending, "");
    let applied =
        LicenseVerdict::Applied { hash: "h".into(), accepted: None, uploaded: None, installed: None };
    let refused = LicenseVerdict::Refused { blocker: blocker(), rejection_id: "m".into() };
    let said = |license: &LicenseVerdict, about: Option<&str>| CoderdReport {
        license: Some(license.clone()),
        license_inputs: about.map(str::to_owned),
        ..CoderdReport::default()
    };
    let present = PresentInputs { access: None, license: Some("now".into()) };
    let (none, unknown, other) = (plane("False", None), plane("True", None), plane("True", Some("before")));
    let same = plane("True", Some("now"));
    // The report, the status, whether the license is applied, and whether it is still to be applied.
    for (number, (report, object, is_applied, is_pending)) in [
        (CoderdReport::default(), &none, false, true),
        (CoderdReport::default(), &unknown, true, false),
        (CoderdReport::default(), &same, true, false),
        (CoderdReport::default(), &other, false, true),
        (said(&applied, None), &none, true, false),
        (said(&applied, Some("now")), &none, true, false),
        (said(&applied, Some("before")), &other, false, true),
        (said(&LicenseVerdict::Blocker(blocker()), Some("now")), &same, false, true),
        (said(&refused, Some("now")), &same, false, false),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(super::is_applied(&report, object, &present), is_applied, "row {number}");
        assert_eq!(super::is_outstanding(&report, object, &present), is_pending, "row {number}");
    }
    let mut without = none.clone();
    without.spec.license_secret_ref = None;
    assert!(super::is_applied(&CoderdReport::default(), &without, &present), "nothing is asked for");
    assert_eq!((secret_key(&none), secret_key(&without)), (Some(("license", "license")), None));
}

#[test]
fn what_this_process_learned_outweighs_the_record_on_the_status() {
    let mut object = plane("True", None);
    let status = object.status.as_mut().unwrap();
    status.license_last_applied_hash = Some("old".into());
    status.license = Some(LicenseStatus { refused: Some("rejection_id".into()), ..installed("a") });
    let of = |license: Option<LicenseVerdict>| {
        let report = CoderdReport { license, ..CoderdReport::default() };
        LicenseRecord::of(&report, &object)
    };
    let on_status = LicenseRecord {
        hash: Some("old".into()),
        uuid: Some("a".into()),
        refused: Some("rejection_id".into()),
    };
    assert_eq!(of(None), on_status);
    assert_eq!(of(Some(LicenseVerdict::Blocker(Blocker::new(Reason::Pending, "")))), on_status);
    let applied =
        |installed| LicenseVerdict::Applied { hash: "new".into(), accepted: None, uploaded: None, installed };
    let replaces = LicenseStatus { replaces: Some("a".into()), ..installed("b") };
    for (found, uuid) in [(None, "a"), (Some(installed("b")), "b"), (Some(replaces), "a")] {
        let expected = LicenseRecord { hash: Some("new".into()), uuid: Some(uuid.into()), refused: None };
        assert_eq!(of(Some(applied(found))), expected);
    }
    let refused =
        LicenseVerdict::Refused { blocker: Blocker::new(Reason::Pending, ""), rejection_id: "again".into() };
    assert_eq!(of(Some(refused)), LicenseRecord { refused: Some("again".into()), ..on_status });
}
