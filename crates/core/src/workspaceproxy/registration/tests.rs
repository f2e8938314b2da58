//! One proxy as it may be found, and what is decided about it.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;
use crate::{
    object::Going,
    outcome::Trouble,
    place::{Credentials, CredentialsKind, Obstacle, Place, SecretPlace, Version},
    workload::{Run, Workload},
};

/// The time of every decision.
const NOW: i64 = 1_000_000;
const ID: &str = "11111111-1111-1111-1111-111111111111";
const OTHER: &str = "22222222-2222-2222-2222-222222222222";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn place(name: &str) -> Place {
    let secret = SecretPlace { name: format!("{name}-token"), key: "token".into() };
    Place {
        control_plane: name.into(),
        url: format!("http://{name}"),
        deployment_id: Some(format!("deployment-{name}")),
        credentials: Some(Credentials { kind: CredentialsKind::Operator, secret: Some(secret) }),
    }
}

fn secret_at(name: &str) -> SecretPlace {
    SecretPlace { name: name.into(), key: "token".into() }
}

fn listed(id: &str, name: &str) -> Listed {
    Listed {
        id: id.into(),
        name: name.into(),
        display_name: "Europe".into(),
        icon: "/icon.png".into(),
        created: Some(at(NOW - 5)),
        version: "v2".into(),
        health: "ok".into(),
    }
}

fn marks(id: &str) -> Marks {
    Marks { id: id.into(), name: "eu".into(), deployment_id: Some("deployment-coder".into()) }
}

fn secret(id: &str) -> Secret {
    let token = Token { checksum: format!("sum-{id}"), id: Some(id.into()) };
    Secret::Ours { version: "7".into(), holds: Some(token), marks: Some(marks(id)) }
}

fn registration(id: &str) -> Registration {
    Registration { id: id.into(), name: "eu".into(), place: place("coder") }
}

fn pending(id: Option<&str>) -> Pending {
    let (id, reason) = (id.map(Into::into), "why".into());
    Pending { name: "eu".into(), id, place: place("coder"), reason, since: at(NOW - 10) }
}

fn run(id: &str) -> Run {
    Run { secret: secret_at("s"), checksum: format!("sum-{id}"), url: "http://primary".into() }
}

/// Nothing was begun; everything may.
fn fresh() -> Seen {
    Seen {
        wanted: Some(Wanted {
            control_plane: "coder".into(),
            name: "eu".into(),
            display_name: None,
            icon: None,
            secret: secret_at("s"),
        }),
        given: Err(trouble()),
        record: Record::default(),
        is_held: true,
        verify_due: true,
        may_make: Ok(()),
        target: Ok(place("coder")),
        elder: None,
        url: Some("http://primary".into()),
        secrets: [(secret_at("s"), Secret::Absent)].into(),
        workload: None,
        going: None,
        proofs: BTreeMap::new(),
        listings: [(place("coder"), Listing::Known(Vec::new()))].into(),
    }
}

/// All is well, and seen to be.
fn well() -> Seen {
    let mut seen = fresh();
    seen.record.current = Some(registration(ID));
    seen.record.secret = Some(secret_at("s"));
    seen.secrets = [(secret_at("s"), secret(ID))].into();
    seen.proofs = [(secret_at("s"), Proof::Good)].into();
    seen.listings = [(place("coder"), Listing::Known(vec![listed(ID, "eu")]))].into();
    seen.workload = Some(Workload { run: run(ID), settled: true });
    seen
}

fn trouble() -> Trouble {
    Trouble { reason: "Unreachable", message: "no answer".into() }
}

fn next(seen: &Seen) -> Next {
    decide(seen, at(NOW)).next
}

fn step(seen: &Seen) -> Step {
    match next(seen) {
        Next::Do(step) => *step,
        other => panic!("{other:?}"),
    }
}

fn record(seen: &Seen) -> Record {
    match next(seen) {
        Next::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn finding(seen: &Seen) -> (Stage, &'static str) {
    let decision = decide(seen, at(NOW));
    assert_eq!(decision.next, Next::Rest);
    (decision.finding.stage, decision.finding.reason)
}

#[test]
fn a_free_name_is_announced_before_it_is_registered() {
    let mut seen = fresh();
    seen.is_held = false;
    assert_eq!(step(&seen), Step::Hold, "nothing is announced that could be left behind");
    seen.is_held = true;
    let announced = record(&seen).pending.unwrap();
    assert_eq!((announced.name.as_str(), announced.id.as_ref(), announced.since), ("eu", None, at(NOW)));
    seen.record.pending = Some(announced);
    let Step::Coderd(Act::Make { pending, settings, version, .. }) = step(&seen) else { panic!() };
    assert_eq!(pending.id, None);
    assert_eq!((settings.display_name.as_str(), settings.icon.as_str()), ("eu", "/emojis/1f5fa.png"));
    assert_eq!(version, Version::Absent);
}

#[test]
fn nothing_is_asked_or_made_without_license_and_credentials() {
    let mut seen = fresh();
    seen.listings.clear();
    seen.may_make = Err(Trouble { reason: "NotEntitled", message: "no".into() });
    assert_eq!(finding(&seen), (Stage::Working, "NotEntitled"));
    seen.record.pending = Some(pending(None));
    seen.listings = fresh().listings;
    assert_eq!(finding(&seen), (Stage::Working, "NotEntitled"));
}

#[test]
fn what_was_made_after_its_announcement_is_ours_and_nothing_else() {
    for (created, version, ours) in
        [(NOW - 9, "", true), (NOW - 250, "", true), (NOW - 9, "v2", false), (NOW - 1000, "", false)]
    {
        let mut seen = fresh();
        seen.record.pending = Some(pending(None));
        let made = Listed { created: Some(at(created)), version: version.into(), ..listed(ID, "EU") };
        seen.listings = [(place("coder"), Listing::Known(vec![made]))].into();
        let after = record(&seen);
        assert_eq!(after.pending, None, "{created} {version}");
        assert_eq!(
            after.current.map(|current| current.id),
            ours.then(|| ID.to_owned()),
            "{created} {version}"
        );
    }
}

#[test]
fn a_registration_of_somebody_else_is_never_touched() {
    let mut seen = fresh();
    seen.listings = [(place("coder"), Listing::Known(vec![listed(OTHER, "EU")]))].into();
    assert_eq!(finding(&seen), (Stage::Stalled, "ProxyConflict"));
    let mut seen = fresh();
    seen.elder = Some("ns/older".into());
    assert_eq!(finding(&seen), (Stage::Stalled, "ProxyConflict"));
    let mut renamed = well();
    renamed.wanted.as_mut().unwrap().name = "us".into();
    let both = vec![listed(ID, "eu"), listed(OTHER, "us")];
    renamed.listings = [(place("coder"), Listing::Known(both))].into();
    assert_eq!(finding(&renamed), (Stage::Stalled, "ProxyConflict"));
}

#[test]
fn a_token_in_our_secret_tells_whose_the_registration_is() {
    let mut seen = well();
    seen.record = Record { secret: Some(secret_at("s")), ..Record::default() };
    let token = Some(Token { checksum: "sum".into(), id: Some(ID.into()) });
    seen.secrets = [(secret_at("s"), Secret::Ours { version: "7".into(), holds: token, marks: None })].into();
    assert_eq!(record(&seen).current, Some(registration(ID)), "as the existing operator leaves it");
    seen.record.current = Some(registration(ID));
    assert!(matches!(step(&seen), Step::Annotate { .. }), "and is kept");
}

#[test]
fn names_and_icons_are_repaired_without_another_token() {
    let mut seen = well();
    let wanted = seen.wanted.as_mut().unwrap();
    (wanted.name, wanted.display_name) = ("us".into(), Some("America".into()));
    let Step::Coderd(Act::Update { id, settings, .. }) = step(&seen) else { panic!() };
    let called = |name: &str, display_name: &str, icon: &str| Settings {
        name: name.into(),
        display_name: display_name.into(),
        icon: icon.into(),
    };
    assert_eq!((id.as_str(), settings), (ID, called("us", "America", "/icon.png")));
    let mut bare = well();
    let listing = Listed { display_name: String::new(), icon: String::new(), ..listed(ID, "eu") };
    bare.listings = [(place("coder"), Listing::Known(vec![listing]))].into();
    let Step::Coderd(Act::Update { settings, .. }) = step(&bare) else { panic!() };
    assert_eq!(settings, called("eu", "eu", "/emojis/1f5fa.png"), "else coderd would refuse every change");
}

#[test]
fn a_lost_or_dead_token_is_announced_and_made_again() {
    let lost = |secret: Secret| {
        let mut seen = well();
        seen.secrets = [(secret_at("s"), secret)].into();
        seen
    };
    let empty = Secret::Ours { version: "7".into(), holds: None, marks: Some(marks(ID)) };
    let mut dead = well();
    dead.proofs = [(secret_at("s"), Proof::Refused)].into();
    for (mut seen, reason) in [
        (lost(Secret::Absent), "TokenLost"),
        (lost(empty), "TokenLost"),
        (lost(secret(OTHER)), "TokenLost"),
        (dead, "TokenRefused"),
    ] {
        let announced = record(&seen).pending.unwrap();
        assert_eq!((announced.id.as_deref(), announced.reason.as_str()), (Some(ID), reason));
        seen.record.pending = Some(announced);
        assert!(
            matches!(step(&seen), Step::Coderd(Act::Make { pending, .. }) if pending.id.as_deref() == Some(ID))
        );
    }
}

#[test]
fn what_is_not_definite_makes_no_token() {
    let unlisted = |listing: Listing| {
        let mut seen = well();
        seen.listings = [(place("coder"), listing)].into();
        seen
    };
    let mut unproven = well();
    unproven.proofs = [(secret_at("s"), Proof::Unknown(trouble()))].into();
    let mut unread = well();
    unread.secrets = [(secret_at("s"), Secret::Unknown(trouble()))].into();
    let mut elsewhere = well();
    elsewhere.target = Err(trouble());
    for seen in [unlisted(Listing::Unknown(trouble())), unlisted(Listing::Gone), unproven, unread, elsewhere]
    {
        assert_eq!(finding(&seen).0, Stage::Unsure, "{seen:?}");
        assert_eq!(decide(&seen, at(NOW)).run, Some(run(ID)), "what runs stays");
    }
    let mut unsupported = well();
    unsupported.proofs = [(secret_at("s"), Proof::Unsupported)].into();
    assert_eq!(finding(&unsupported).0, Stage::Ready);
    let mut blocked = well();
    blocked.secrets = [(secret_at("s"), Secret::Blocked(Obstacle::Immutable))].into();
    assert_eq!(finding(&blocked), (Stage::Stalled, "SecretImmutable"));
}

#[test]
fn a_token_that_works_needs_no_credentials() {
    let missing = Trouble { reason: CREDENTIALS_MISSING, message: "not there".into() };
    let mut seen = well();
    seen.may_make = Err(missing.clone());
    seen.record = Record::default();
    seen.listings = [(place("coder"), Listing::Unknown(missing))].into();
    seen.proofs.clear();
    assert_eq!(next(&seen), Next::Look(Look::Proof(secret_at("s"))));
    seen.proofs = well().proofs;
    let after = record(&seen);
    assert_eq!(after.current, Some(registration(ID)));
    seen.record = after;
    assert_eq!(finding(&seen), (Stage::Ready, "Registered"));
    seen.proofs = [(secret_at("s"), Proof::Refused)].into();
    assert_eq!(finding(&seen), (Stage::Unsure, CREDENTIALS_MISSING), "another one cannot be made");
}

#[test]
fn at_rest_nothing_is_asked() {
    let mut seen = well();
    (seen.verify_due, seen.listings, seen.proofs) = (false, BTreeMap::new(), BTreeMap::new());
    assert_eq!(finding(&seen), (Stage::Ready, "Registered"));
    seen.verify_due = true;
    assert_eq!(next(&seen), Next::Look(Look::Registrations(place("coder"))));
    seen.listings = well().listings;
    assert_eq!(next(&seen), Next::Look(Look::Proof(secret_at("s"))));
    assert_eq!(health(&well()).unwrap().status, "ok");
}

#[test]
fn a_registration_that_somebody_deleted_is_made_again() {
    let mut seen = well();
    seen.listings = fresh().listings;
    let after = record(&seen);
    assert_eq!((after.current, after.pending), (None, None));
    seen.record.current = None;
    assert!(record(&seen).pending.is_some());
}

#[test]
fn a_renamed_secret_is_copied_and_the_old_one_goes_when_nothing_reads_it() {
    let mut seen = well();
    seen.wanted.as_mut().unwrap().secret = secret_at("new");
    seen.secrets.insert(secret_at("new"), Secret::Absent);
    assert!(matches!(step(&seen), Step::Copy { version: Version::Absent, .. }));
    seen.secrets.insert(secret_at("new"), secret(ID));
    seen.proofs.insert(secret_at("new"), Proof::Good);
    assert_eq!(record(&seen).secret, Some(secret_at("new")));
    seen.record.secret = Some(secret_at("new"));
    let decision = decide(&seen, at(NOW));
    assert_eq!((decision.next, decision.run.clone().unwrap().secret), (Next::Rest, secret_at("new")));
    seen.workload = Some(Workload { run: decision.run.unwrap(), settled: true });
    assert!(matches!(step(&seen), Step::Remove { secret, .. } if secret == secret_at("s")));
}

#[test]
fn another_deployment_means_another_registration_and_the_old_one_goes_last() {
    let mut seen = well();
    seen.target = Ok(place("other"));
    let after = record(&seen);
    assert_eq!((after.current, after.stale.len()), (None, 1));
    seen.record.current = None;
    seen.record.stale = after.stale;
    seen.listings.insert(place("other"), Listing::Known(Vec::new()));
    assert_eq!(record(&seen).pending.unwrap().place, place("other"));
    seen.record.current = Some(Registration { place: place("other"), ..registration(OTHER) });
    let marks = Marks { deployment_id: Some("deployment-other".into()), ..marks(OTHER) };
    let token = Some(Token { checksum: "new".into(), id: Some(OTHER.into()) });
    seen.secrets =
        [(secret_at("s"), Secret::Ours { version: "8".into(), holds: token, marks: Some(marks) })].into();
    seen.listings.insert(place("other"), Listing::Known(vec![listed(OTHER, "eu")]));
    let decision = decide(&seen, at(NOW));
    assert_eq!(decision.next, Next::Rest, "pods run with the old one");
    seen.workload = Some(Workload { run: decision.run.unwrap(), settled: true });
    assert!(matches!(step(&seen), Step::Coderd(Act::Deregister { id, .. }) if id == ID));
    seen.listings.insert(place("coder"), Listing::Gone);
    let decision = decide(&seen, at(NOW));
    assert_eq!(decision.notes[0].reason, "ProxyAbandoned");
    assert!(matches!(decision.next, Next::Record(record) if record.stale.is_empty()));
}

#[test]
fn a_refused_address_stalls_and_asks_nothing() {
    let mut seen = fresh();
    seen.listings.clear();
    let refused = Trouble { reason: URL_NOT_ALLOWED, message: "no".into() };
    (seen.target, seen.may_make) = (Err(refused.clone()), Err(refused));
    assert_eq!(finding(&seen), (Stage::Stalled, URL_NOT_ALLOWED));
    seen.record.current = Some(registration(ID));
    assert_eq!(finding(&seen), (Stage::Stalled, URL_NOT_ALLOWED));
}

#[test]
fn a_token_that_a_person_supplies_needs_no_registration() {
    let mut seen = well();
    seen.wanted = None;
    let place = secret_at("mine");
    let given =
        |id: &str| Given { place: place.clone(), token: Token { checksum: "m".into(), id: Some(id.into()) } };
    seen.given = Ok(given(OTHER));
    let after = record(&seen);
    assert_eq!((after.current, after.stale.len(), after.secret), (None, 1, Some(place.clone())));
    seen.given = Ok(given(ID));
    let after = record(&seen);
    assert!(after.is_empty(), "the registration goes on with the token that was supplied");
    seen.record = after;
    seen.secrets.clear();
    assert_eq!(next(&seen), Next::Release);
    seen.is_held = false;
    assert_eq!(finding(&seen), (Stage::Ready, "TokenGiven"));
    seen.given = Err(trouble());
    assert_eq!(decide(&seen, at(NOW)).run, Some(run(ID)), "what runs stays");
}

#[test]
fn on_deletion_everything_of_ours_goes_and_what_cannot_is_named() {
    let going = |overdue| {
        let mut seen = well();
        seen.going = Some(Going { overdue });
        seen
    };
    assert!(matches!(step(&going(false)), Step::Coderd(Act::Deregister { id, .. }) if id == ID));
    let mut gone = going(false);
    gone.listings = fresh().listings;
    assert_eq!(next(&gone), Next::Release);
    let mut silent = going(false);
    silent.listings = [(place("coder"), Listing::Unknown(trouble()))].into();
    assert_eq!(next(&silent), Next::Rest);
    silent.going = Some(Going { overdue: true });
    let decision = decide(&silent, at(NOW));
    assert_eq!(decision.next, Next::Release);
    assert!(decision.notes[0].warning && decision.notes[0].message.contains(ID));
    let mut announced = going(false);
    announced.record = Record { pending: Some(pending(None)), ..Record::default() };
    announced.secrets.clear();
    let half_made = Listed { version: String::new(), ..listed(OTHER, "eu") };
    announced.listings = [(place("coder"), Listing::Known(vec![half_made]))].into();
    assert!(matches!(step(&announced), Step::Coderd(Act::Deregister { id, .. }) if id == OTHER));
    let mut lost = going(false);
    lost.record = Record::default();
    assert_eq!(record(&lost).current.unwrap().id, ID, "found again by the Secret");
}

#[test]
fn the_record_survives_the_status() {
    let record = Record {
        current: Some(registration(ID)),
        secret: Some(secret_at("s")),
        pending: Some(pending(Some(ID))),
        stale: vec![Stale { id: None, name: "old".into(), place: place("other"), since: at(NOW) }],
    };
    let mut status = coder_k8s_api::CoderWorkspaceProxyStatus::default();
    record.write(&mut status);
    assert_eq!(Record::of(&status), record);
}

#[test]
fn a_token_shows_its_public_half_alone() {
    assert_eq!(token_id(&format!("{ID}:secret")).as_deref(), Some(ID));
    for text in ["", "secret", ":", "1234:secret", &format!("{ID}:")] {
        assert_eq!(token_id(text), None, "{text}");
    }
}
