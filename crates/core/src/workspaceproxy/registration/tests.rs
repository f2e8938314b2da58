//! Proxies as they may be found, and what is decided about them.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::*;
use crate::{
    credential::NameConflict,
    object::Deletion,
    outcome::Blocker,
    target::{CoderdTarget, Credentials, CredentialsKind, Obstacle, SecretDataRef, Version},
    workload::{PodCredential, Workload},
};

/// The time of every decision.
const NOW: i64 = 1_000_000;
const ID: &str = "11111111-1111-1111-1111-111111111111";
const OTHER: &str = "22222222-2222-2222-2222-222222222222";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn place(name: &str) -> CoderdTarget {
    let secret = SecretDataRef { name: format!("{name}-token"), key: "token".into() };
    CoderdTarget {
        control_plane: name.into(),
        url: format!("http://{name}"),
        deployment_id: Some(format!("deployment-{name}")),
        credentials: Some(Credentials { kind: CredentialsKind::Operator, secret: Some(secret) }),
    }
}

fn secret_at(name: &str) -> SecretDataRef {
    SecretDataRef { name: name.into(), key: "token".into() }
}

fn listed(id: &str, name: &str) -> ListedProxy {
    ListedProxy {
        id: id.into(),
        name: name.into(),
        display_name: "Europe".into(),
        icon: "/icon.png".into(),
        created: Some(at(NOW - 5)),
        version: "v2".into(),
        health: "ok".into(),
    }
}

fn marks(id: &str) -> RegistrationMarks {
    RegistrationMarks { id: id.into(), name: "eu".into(), deployment_id: Some("deployment-coder".into()) }
}

fn secret(id: &str) -> Secret {
    let token = TokenFacts { checksum: format!("sum-{id}"), id: Some(id.into()) };
    Secret::Ours { version: "7".into(), holds: Some(token), marks: Some(marks(id)) }
}

fn registration(id: &str) -> RegistrationRef {
    RegistrationRef::new(Some(id.into()), "eu".into(), place("coder"))
}

fn pending(id: Option<&str>) -> RegistrationIntent {
    let credential = RegistrationRef::new(id.map(Into::into), "eu".into(), place("coder"));
    RegistrationIntent { credential, reason: "why".into(), since: at(NOW - 10) }
}

fn run(id: &str) -> PodCredential {
    PodCredential { secret: secret_at("s"), checksum: format!("sum-{id}"), url: "http://primary".into() }
}

/// Nothing was begun; everything may.
fn fresh() -> ObservedRegistration {
    ObservedRegistration {
        desired: Some(DesiredRegistration {
            control_plane: "coder".into(),
            name: "eu".into(),
            display_name: None,
            icon: None,
            secret: secret_at("s"),
        }),
        record: RegistrationRecord::default(),
        has_finalizer: true,
        verify_due: true,
        may_make: Ok(()),
        target: Ok(place("coder")),
        secrets: [(secret_at("s"), Secret::Absent)].into(),
        workload: None,
        name_conflict: None,
        late_effect_window: jiff::SignedDuration::from_mins(2),
        deletion: None,
        proofs: BTreeMap::new(),
        listings: [(place("coder"), Listing::Known(Vec::new()))].into(),
        tried: BTreeSet::new(),
        own: RegistrationContext { given: Err(blocker()), url: Some("http://primary".into()) },
    }
}

/// All is well, and seen to be.
fn well() -> ObservedRegistration {
    let mut observed = fresh();
    observed.record.current = Some(registration(ID));
    observed.record.secret = Some(secret_at("s"));
    observed.secrets = [(secret_at("s"), secret(ID))].into();
    observed.proofs = [(secret_at("s"), TokenProof::Is(()))].into();
    observed.listings = [(place("coder"), Listing::Known(vec![listed(ID, "eu")]))].into();
    observed.workload = Some(Workload { pod_credential: run(ID), is_rolled_out: true });
    observed
}

fn blocker() -> Blocker {
    Blocker::new(Reason::Unreachable, "no answer")
}

fn next(observed: &ObservedRegistration) -> NextStep {
    decide(observed, at(NOW)).next
}

fn step(observed: &ObservedRegistration) -> Effect {
    match next(observed) {
        NextStep::Act(step) => *step,
        other => panic!("{other:?}"),
    }
}

fn record(observed: &ObservedRegistration) -> RegistrationRecord {
    match next(observed) {
        NextStep::WriteStatus(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn verdict(observed: &ObservedRegistration) -> (CredentialProgress, Reason) {
    let decision = decide(observed, at(NOW));
    assert_eq!(decision.next, NextStep::Done);
    (decision.verdict.stage, decision.verdict.reason)
}

#[test]
fn a_free_name_is_announced_before_it_is_registered() {
    let mut observed = fresh();
    observed.has_finalizer = false;
    assert_eq!(step(&observed), Effect::AddFinalizer, "nothing is announced that could be left behind");
    observed.has_finalizer = true;
    let announced = record(&observed).pending.unwrap();
    let RegistrationRef { id, name, .. } = &announced.credential;
    assert_eq!((name.as_str(), id.as_ref(), announced.since), ("eu", None, at(NOW)));
    observed.record.pending = Some(announced);
    let Effect::Make { pending, settings, version, .. } = step(&observed) else { panic!() };
    assert_eq!(pending.credential.id, None);
    assert_eq!((settings.display_name.as_str(), settings.icon.as_str()), ("eu", "/emojis/1f5fa.png"));
    assert_eq!(version, Version::Absent);
}

#[test]
fn nothing_is_asked_or_made_without_license_and_credentials() {
    let mut observed = fresh();
    observed.listings.clear();
    observed.may_make = Err(Blocker::new(Reason::NotEntitled, "no"));
    assert_eq!(verdict(&observed), (CredentialProgress::Working, Reason::NotEntitled));
    observed.record.pending = Some(pending(None));
    observed.listings = fresh().listings;
    assert_eq!(verdict(&observed), (CredentialProgress::Working, Reason::NotEntitled));
}

#[test]
fn what_was_made_after_its_announcement_is_ours_and_nothing_else() {
    for (created, version, ours) in
        [(NOW - 9, "", true), (NOW - 250, "", true), (NOW - 9, "v2", false), (NOW - 1000, "", false)]
    {
        let mut observed = fresh();
        observed.record.pending = Some(pending(None));
        let made = ListedProxy { created: Some(at(created)), version: version.into(), ..listed(ID, "EU") };
        observed.listings = [(place("coder"), Listing::Known(vec![made]))].into();
        let after = record(&observed);
        assert_eq!(after.pending, None, "{created} {version}");
        assert_eq!(
            after.current.and_then(|current| current.id),
            ours.then(|| ID.to_owned()),
            "{created} {version}"
        );
    }
}

#[test]
fn a_registration_of_somebody_else_is_never_touched() {
    let mut observed = fresh();
    observed.listings = [(place("coder"), Listing::Known(vec![listed(OTHER, "EU")]))].into();
    assert_eq!(verdict(&observed), (CredentialProgress::Stalled, Reason::ProxyConflict));
    let mut observed = fresh();
    observed.name_conflict = Some(NameConflict::Neighbour("older".into()));
    assert_eq!(verdict(&observed), (CredentialProgress::Stalled, Reason::ProxyConflict));
    observed.name_conflict = Some(NameConflict::Elsewhere);
    observed.listings = [(place("coder"), Listing::Known(Vec::new()))].into();
    let next = decide(&observed, at(NOW)).next;
    assert!(matches!(next, NextStep::WriteStatus(_)), "a server can repeat any identity: {next:?}");
    let mut renamed = well();
    renamed.desired.as_mut().unwrap().name = "us".into();
    let both = vec![listed(ID, "eu"), listed(OTHER, "us")];
    renamed.listings = [(place("coder"), Listing::Known(both))].into();
    assert_eq!(verdict(&renamed), (CredentialProgress::Stalled, Reason::ProxyConflict));
}

#[test]
fn a_token_in_our_secret_tells_whose_the_registration_is() {
    let mut observed = well();
    observed.record = RegistrationRecord { secret: Some(secret_at("s")), ..RegistrationRecord::default() };
    let token = Some(TokenFacts { checksum: "sum".into(), id: Some(ID.into()) });
    observed.secrets =
        [(secret_at("s"), Secret::Ours { version: "7".into(), holds: token, marks: None })].into();
    assert_eq!(record(&observed).current, Some(registration(ID)), "as the Go operator leaves it");
    observed.record.current = Some(registration(ID));
    assert!(matches!(step(&observed), Effect::AnnotateSecret { .. }), "and is kept");
}

#[test]
fn names_and_icons_are_repaired_without_another_token() {
    let mut observed = well();
    let desired = observed.desired.as_mut().unwrap();
    (desired.name, desired.display_name) = ("us".into(), Some("America".into()));
    let Effect::Own(RegistrationEffect::Update { id, settings, .. }) = step(&observed) else { panic!() };
    let called = |name: &str, display_name: &str, icon: &str| ProxyProfile {
        name: name.into(),
        display_name: display_name.into(),
        icon: icon.into(),
    };
    assert_eq!((id.as_str(), settings), (ID, called("us", "America", "/icon.png")));
    let mut bare = well();
    let listing = ListedProxy { display_name: String::new(), icon: String::new(), ..listed(ID, "eu") };
    bare.listings = [(place("coder"), Listing::Known(vec![listing]))].into();
    let Effect::Own(RegistrationEffect::Update { settings, .. }) = step(&bare) else { panic!() };
    assert_eq!(settings, called("eu", "eu", "/emojis/1f5fa.png"), "else coderd would refuse every change");
}

#[test]
fn a_lost_or_dead_token_is_announced_and_made_again() {
    let lost = |secret: Secret| {
        let mut observed = well();
        observed.secrets = [(secret_at("s"), secret)].into();
        observed
    };
    let empty = Secret::Ours { version: "7".into(), holds: None, marks: Some(marks(ID)) };
    let mut dead = well();
    dead.proofs = [(secret_at("s"), TokenProof::Refused)].into();
    for (mut observed, reason) in [
        (lost(Secret::Absent), Reason::TokenLost),
        (lost(empty), Reason::TokenLost),
        (lost(secret(OTHER)), Reason::TokenLost),
        (dead, Reason::TokenRefused),
    ] {
        assert_eq!(decide(&observed, at(NOW)).verdict.in_place, Some(false), "said before anything is made");
        let announced = record(&observed).pending.unwrap();
        assert_eq!(
            (announced.credential.id.as_deref(), announced.reason.as_str()),
            (Some(ID), reason.as_str())
        );
        observed.record.pending = Some(announced);
        assert!(
            matches!(step(&observed), Effect::Make { pending, .. } if pending.credential.id.as_deref() == Some(ID))
        );
    }
}

#[test]
fn what_is_not_definite_makes_no_token() {
    let unlisted = |listing: Listing| {
        let mut observed = well();
        observed.listings = [(place("coder"), listing)].into();
        observed
    };
    let mut unproven = well();
    unproven.proofs = [(secret_at("s"), TokenProof::Unknown(blocker()))].into();
    let mut unread = well();
    unread.secrets = [(secret_at("s"), Secret::Unknown(blocker()))].into();
    let mut elsewhere = well();
    elsewhere.target = Err(blocker());
    for observed in
        [unlisted(Listing::Unknown(blocker())), unlisted(Listing::Gone), unproven, unread, elsewhere]
    {
        assert_eq!(verdict(&observed).0, CredentialProgress::Unsure, "{observed:?}");
        assert_eq!(decide(&observed, at(NOW)).pod_credential, Some(run(ID)), "what runs stays");
    }
    let mut unsupported = well();
    unsupported.proofs = [(secret_at("s"), TokenProof::Unsupported)].into();
    assert_eq!(verdict(&unsupported).0, CredentialProgress::Ready);
    let mut blocked = well();
    blocked.secrets = [(secret_at("s"), Secret::Blocked(Obstacle::Immutable))].into();
    assert_eq!(verdict(&blocked), (CredentialProgress::Stalled, Reason::SecretImmutable));
}

#[test]
fn a_token_that_works_needs_no_credentials() {
    let missing = Blocker::new(Reason::CredentialsSecretUnavailable, "not there");
    let mut observed = well();
    observed.may_make = Err(missing.clone());
    observed.record = RegistrationRecord::default();
    observed.listings = [(place("coder"), Listing::Unknown(missing))].into();
    observed.proofs.clear();
    assert_eq!(next(&observed), NextStep::Ask(Query::Proof(secret_at("s"))));
    observed.proofs = well().proofs;
    let after = record(&observed);
    assert_eq!(after.current, Some(registration(ID)));
    observed.record = after;
    assert_eq!(verdict(&observed), (CredentialProgress::Ready, Reason::Registered));
    observed.proofs = [(secret_at("s"), TokenProof::Refused)].into();
    assert_eq!(
        verdict(&observed),
        (CredentialProgress::Unsure, Reason::CredentialsSecretUnavailable),
        "another one cannot be made"
    );
}

#[test]
fn at_rest_nothing_is_asked() {
    let mut observed = well();
    (observed.verify_due, observed.listings, observed.proofs) = (false, BTreeMap::new(), BTreeMap::new());
    assert_eq!(verdict(&observed), (CredentialProgress::Ready, Reason::Registered));
    observed.verify_due = true;
    assert_eq!(next(&observed), NextStep::Ask(Query::Listing(place("coder"))));
    observed.listings = well().listings;
    assert_eq!(next(&observed), NextStep::Ask(Query::Proof(secret_at("s"))));
    assert_eq!(health(&well()).unwrap().status, "ok");
}

#[test]
fn a_registration_that_somebody_deleted_is_made_again() {
    let mut observed = well();
    observed.listings = fresh().listings;
    let after = record(&observed);
    assert_eq!((after.current, after.pending), (None, None));
    assert_eq!(decide(&observed, at(NOW)).verdict.in_place, Some(false), "its token is dead");
    observed.record.current = None;
    assert!(record(&observed).pending.is_some());
    assert_eq!(decide(&observed, at(NOW)).verdict.in_place, Some(false), "it still is");
    observed.target = Err(blocker());
    assert_eq!(decide(&observed, at(NOW)).verdict.in_place, None, "what was said stays");
}

#[test]
fn a_renamed_secret_is_copied_and_the_old_one_goes_when_nothing_reads_it() {
    let mut observed = well();
    observed.desired.as_mut().unwrap().secret = secret_at("new");
    observed.secrets.insert(secret_at("new"), Secret::Absent);
    assert!(matches!(step(&observed), Effect::CopySecret { version: Version::Absent, .. }));
    observed.secrets.insert(secret_at("new"), secret(ID));
    observed.proofs.insert(secret_at("new"), TokenProof::Is(()));
    assert_eq!(record(&observed).secret, Some(secret_at("new")));
    observed.record.secret = Some(secret_at("new"));
    let decision = decide(&observed, at(NOW));
    assert_eq!(
        (decision.next, decision.pod_credential.clone().unwrap().secret),
        (NextStep::Done, secret_at("new"))
    );
    observed.workload =
        Some(Workload { pod_credential: decision.pod_credential.unwrap(), is_rolled_out: true });
    assert!(matches!(step(&observed), Effect::RemoveSecret { secret, .. } if secret == secret_at("s")));
}

#[test]
fn another_deployment_means_another_registration_and_the_old_one_goes_last() {
    let mut observed = well();
    observed.target = Ok(place("other"));
    let after = record(&observed);
    assert_eq!((after.current, after.stale.len()), (None, 1));
    observed.record.current = None;
    observed.record.stale = after.stale;
    observed.listings.insert(place("other"), Listing::Known(Vec::new()));
    assert_eq!(record(&observed).pending.unwrap().credential.target, place("other"));
    observed.record.current = Some(RegistrationRef { target: place("other"), ..registration(OTHER) });
    let marks = RegistrationMarks { deployment_id: Some("deployment-other".into()), ..marks(OTHER) };
    let token = Some(TokenFacts { checksum: "new".into(), id: Some(OTHER.into()) });
    observed.secrets =
        [(secret_at("s"), Secret::Ours { version: "8".into(), holds: token, marks: Some(marks) })].into();
    observed.listings.insert(place("other"), Listing::Known(vec![listed(OTHER, "eu")]));
    let decision = decide(&observed, at(NOW));
    assert_eq!(decision.next, NextStep::Done, "pods run with the old one");
    observed.workload =
        Some(Workload { pod_credential: decision.pod_credential.unwrap(), is_rolled_out: true });
    assert!(matches!(step(&observed), Effect::Delete { id, .. } if id == ID));
    observed.listings.insert(place("coder"), Listing::Gone);
    let decision = decide(&observed, at(NOW));
    assert_eq!(decision.events[0].reason, Reason::ProxyAbandoned);
    assert!(matches!(decision.next, NextStep::WriteStatus(record) if record.stale.is_empty()));
}

#[test]
fn a_refused_address_stalls_and_asks_nothing() {
    let mut observed = fresh();
    observed.listings.clear();
    let refused = Blocker::new(Reason::UrlNotAllowed, "no");
    (observed.target, observed.may_make) = (Err(refused.clone()), Err(refused));
    assert_eq!(verdict(&observed), (CredentialProgress::Stalled, Reason::UrlNotAllowed));
    observed.record.current = Some(registration(ID));
    assert_eq!(verdict(&observed), (CredentialProgress::Stalled, Reason::UrlNotAllowed));
}

#[test]
fn a_token_that_a_person_supplies_needs_no_registration() {
    let mut observed = well();
    observed.desired = None;
    let place = secret_at("mine");
    let given = |id: &str| SuppliedToken {
        place: place.clone(),
        token: TokenFacts { checksum: "m".into(), id: Some(id.into()) },
    };
    observed.own.given = Ok(given(OTHER));
    let after = record(&observed);
    assert_eq!((after.current, after.stale.len(), after.secret), (None, 1, Some(place.clone())));
    observed.own.given = Ok(given(ID));
    let after = record(&observed);
    assert!(after.is_empty(), "the registration goes on with the token that was supplied");
    observed.record = after;
    observed.secrets.clear();
    assert_eq!(next(&observed), NextStep::RemoveFinalizer);
    observed.has_finalizer = false;
    assert_eq!(verdict(&observed), (CredentialProgress::Ready, Reason::TokenGiven));
    observed.own.given = Err(blocker());
    assert_eq!(decide(&observed, at(NOW)).pod_credential, Some(run(ID)), "what runs stays");
}

#[test]
fn on_deletion_everything_of_ours_goes_and_what_cannot_is_named() {
    let going = |overdue| {
        let mut observed = well();
        observed.deletion = Some(Deletion { overdue });
        observed
    };
    assert!(matches!(step(&going(false)), Effect::Delete { id, .. } if id == ID));
    let mut gone = going(false);
    gone.listings = fresh().listings;
    assert_eq!(next(&gone), NextStep::RemoveFinalizer);
    let mut silent = going(false);
    silent.listings = [(place("coder"), Listing::Unknown(blocker()))].into();
    assert_eq!(next(&silent), NextStep::Done);
    silent.deletion = Some(Deletion { overdue: true });
    let decision = decide(&silent, at(NOW));
    assert_eq!(decision.next, NextStep::RemoveFinalizer);
    assert!(decision.events[0].warning && decision.events[0].message.contains(ID));
    let mut announced = going(false);
    announced.record = RegistrationRecord { pending: Some(pending(None)), ..RegistrationRecord::default() };
    announced.secrets.clear();
    let half_made = ListedProxy { version: String::new(), ..listed(OTHER, "eu") };
    announced.listings = [(place("coder"), Listing::Known(vec![half_made]))].into();
    assert!(matches!(step(&announced), Effect::Delete { id, .. } if id == OTHER));
    let mut lost = going(false);
    lost.record = RegistrationRecord::default();
    assert_eq!(record(&lost).current.unwrap().id.as_deref(), Some(ID), "found again by the Secret");
}

#[test]
fn a_registration_that_was_given_up_is_adopted_when_the_spec_returns_to_it() {
    let mut observed = well();
    let (credential, since) = (observed.record.current.take().unwrap(), at(NOW - 5));
    observed.record.stale = vec![RetiredRegistration { credential, since, unused_since: None }];
    observed.secrets = [(secret_at("s"), Secret::Absent)].into();
    let after = record(&observed);
    assert_eq!((after.current, after.stale), (Some(registration(ID)), Vec::new()), "no conflict with itself");
}

#[test]
fn a_registration_that_may_still_be_made_is_waited_for() {
    let mut observed = fresh();
    observed.deletion = Some(Deletion { overdue: false });
    observed.record.pending = Some(pending(None));
    assert_eq!(next(&observed), NextStep::Done, "coderd may still carry out the request");
    observed.record.pending.as_mut().unwrap().since = at(NOW - 300);
    assert_eq!(next(&observed), NextStep::RemoveFinalizer);
}

#[test]
fn a_registration_in_another_deployment_that_only_annotations_know_is_recorded_before_they_are_overwritten() {
    let mut observed = well();
    observed.record = RegistrationRecord::default();
    observed.target = Ok(place("other"));
    observed.listings = [(place("other"), Listing::Known(Vec::new()))].into();
    let found = record(&observed);
    assert_eq!(found.stale[0].credential.id.as_deref(), Some(ID));
    assert_eq!(found.stale[0].credential.target.deployment_id.as_deref(), Some("deployment-coder"));
    observed.record = found;
    assert!(record(&observed).pending.is_some(), "and only then is another one announced");
}

#[test]
fn the_record_survives_the_status() {
    let record = RegistrationRecord {
        current: Some(registration(ID)),
        secret: Some(secret_at("s")),
        pending: Some(pending(Some(ID))),
        stale: vec![RetiredRegistration {
            credential: RegistrationRef::new(None, "old".into(), place("other")),
            since: at(NOW),
            unused_since: None,
        }],
    };
    let mut status = coder_k8s_api::CoderWorkspaceProxyStatus::default();
    record.write(&mut status);
    assert_eq!(RegistrationRecord::of(&status), record);
}

#[test]
fn a_token_shows_its_public_half_alone() {
    assert_eq!(token_id(&format!("{ID}:secret")).as_deref(), Some(ID));
    for text in ["", "secret", ":", "1234:secret", &format!("{ID}:")] {
        assert_eq!(token_id(text), None, "{text}");
    }
}

#[test]
fn whatever_fails_the_deletion_ends_by_its_deadline() {
    let observed = well();
    crate::cleanup::table::check(&observed, decide, at(NOW), ID);
    crate::cleanup::table::ends_at_once(&observed, decide, at(NOW), ID);
}
