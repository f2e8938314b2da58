//! What makes a new key, and what does not; and how one is made.

use super::*;

#[track_caller]
fn announced(observed: &ObservedKeys) -> KeyIntent {
    recorded(observed).pending.expect("a key is announced")
}

/// A key with these tags that was announced and made.
fn made(region: &str) -> KeyIntent {
    let credential = KeyRef { details: details(region), ..key("k2", &spare()) };
    KeyIntent { credential, ..pending(&spare()) }
}

#[test]
fn a_pool_at_rest_asks_nothing() {
    let decision = decide(&running(), at(NOW));
    assert_eq!(decision.next, NextStep::Done);
    assert!(decision.verdict.is_ready());
    assert_eq!(decision.pod_credential, running().workload.map(|workload| workload.pod_credential));
}

#[test]
fn a_verification_asks_what_the_material_is_and_nothing_else() {
    let mut observed = ObservedKeys { verify_due: true, ..running() };
    assert_eq!(next(&observed), NextStep::Ask(Query::Proof(secret_at("s"))));
    observed.proofs.insert(secret_at("s"), KeyProof::Is(found("k1", "pool")));
    assert_eq!(next(&observed), NextStep::Done);
}

#[test]
fn the_first_key_is_announced_before_it_is_made_and_only_under_a_free_name() {
    let mut observed = ObservedKeys { has_finalizer: false, ..new() };
    assert_eq!(step(&observed), Effect::AddFinalizer, "the object must not go without its key");
    observed.has_finalizer = true;
    assert_eq!(next(&observed), NextStep::Ask(Query::Own(KeyQuery::Organization)));
    observed.own.organization = Some(Ok(Some("org".into())));
    assert_eq!(next(&observed), NextStep::Ask(Query::Listing(here())));
    observed.listings.insert(here(), Listing::Known(Vec::new()));
    let record = recorded(&observed);
    assert_eq!(record.pending.as_ref().unwrap().credential.name, "pool");
    assert_eq!(record.pending.as_ref().unwrap().reason, Reason::FirstKey.as_str());
    observed.record = record;
    match step(&observed) {
        Effect::Make { pending: key, settings: sent, secret, version } => {
            assert_eq!((version, Keys::marks(&key.credential).id), (Version::Absent, None));
            assert_eq!((key.credential.name, sent, secret), ("pool".into(), tags("eu"), secret_at("s")));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_made_key_is_proven_before_it_is_current_and_pods_change_over_after_that() {
    let mut observed = running();
    observed.record.pending = Some(made("eu"));
    observed.desired.tags = tags("us");
    observed.record.pending.as_mut().unwrap().credential.details = details("us");
    let new = FoundKey { tags: tags("us"), ..found("k2", &spare()) };
    observed.secrets.insert(secret_at("s"), secret("k2", &spare()));
    let before = decide(&observed, at(NOW));
    assert_eq!(before.next, NextStep::Ask(Query::Proof(secret_at("s"))));
    assert_eq!(before.pod_credential.unwrap().checksum, "sum-k1", "unproven material is not rolled out");
    observed.proofs.insert(secret_at("s"), KeyProof::Is(new));
    assert_eq!(decide(&observed, at(NOW)).verdict.in_place, None, "the Secret always held a key that works");
    observed.record = recorded(&observed);
    assert_eq!(observed.record.current.as_ref().unwrap().id.as_deref(), Some("k2"));
    assert_eq!(observed.record.pending, None);
    assert_eq!(
        observed.record.stale[0].credential,
        key("k1", "pool"),
        "with where it is and what can delete it"
    );
    assert_eq!(decide(&observed, at(NOW)).pod_credential.unwrap().checksum, "sum-k2");
}

#[test]
fn tags_organization_and_name_make_a_new_key() {
    let with = |edit: fn(&mut DesiredKey)| {
        let mut observed = running();
        edit(&mut observed.desired);
        verified(observed)
    };
    let by_tags = announced(&with(|desired| desired.tags = tags("us")));
    assert_eq!(
        (by_tags.reason.as_str(), by_tags.credential.name),
        (Reason::TagsChanged.as_str(), spare()),
        "the old name is in use"
    );
    let by_name = announced(&with(|desired| desired.name = base(Some("team"))));
    assert_eq!(
        (by_name.reason.as_str(), by_name.credential.name.as_str()),
        (Reason::KeyNameChanged.as_str(), "team")
    );
    let mut observed = with(|desired| desired.organization = "acme".into());
    observed.own.organization = Some(Ok(Some("org-2".into())));
    let at = KeyScope { organization: organization("acme", "org-2"), ..here() };
    assert_eq!(next(&observed), NextStep::Ask(Query::Listing(at.clone())));
    observed.listings.insert(at, Listing::Known(Vec::new()));
    let by_organization = announced(&observed);
    assert_eq!(
        (by_organization.reason.as_str(), by_organization.credential.name.as_str()),
        (Reason::OrganizationChanged.as_str(), "pool")
    );
}

#[test]
fn other_words_for_the_same_are_recorded_and_make_no_new_key() {
    let mut observed = running();
    observed.desired.organization = "coder".into();
    let record = recorded(&verified(observed));
    assert_eq!(record.current.unwrap().details.organization, organization("coder", "org"));
    let mut observed = running();
    observed
        .desired
        .tags
        .extend([("scope".to_owned(), "organization".to_owned()), ("owner".into(), String::new())]);
    let record = recorded(&verified(observed.clone()));
    assert_eq!((record.pending, record.stale), (None, Vec::new()));
    assert_eq!(record.current.unwrap().details.tags_hash, Some(tags::hash(&observed.desired.tags)));
    let mut observed = ObservedKeys { verify_due: true, ..running() };
    observed.desired.name = base(Some("Pool"));
    assert_eq!(next(&verified(observed)), NextStep::Done, "coderd lower-cases names");
}

#[test]
fn a_hash_that_collides_hides_no_change_from_a_verification() {
    let mut observed = verified(ObservedKeys { verify_due: true, ..running() });
    let other = FoundKey { tags: tags("us"), ..found("k1", "pool") };
    observed.proofs.insert(secret_at("s"), KeyProof::Is(other));
    assert_eq!(announced(&observed).reason, Reason::TagsChanged.as_str());
}

#[test]
fn a_new_address_of_the_same_deployment_rolls_the_pods_and_keeps_the_key() {
    let mut observed = verified(running());
    let moved = CoderdTarget { url: "https://coder".into(), ..place("coder") };
    observed.target = Ok(moved.clone());
    let record = recorded(&observed);
    assert_eq!((record.current.as_ref().unwrap().target.clone(), record.pending.clone()), (moved, None));
    observed.record = record;
    let decision = decide(&observed, at(NOW));
    assert_eq!(
        (decision.next, decision.pod_credential.unwrap().url),
        (NextStep::Done, "https://coder".into())
    );
}

#[test]
fn another_deployment_gets_a_key_of_its_own_and_never_sees_the_old_one() {
    let mut observed = running();
    observed.desired.control_plane = "other".into();
    observed.target = Ok(place("other"));
    observed.own.organization = Some(Ok(Some("org-b".into())));
    let at_other = KeyScope { target: place("other"), organization: organization("default", "org-b") };
    assert_eq!(
        next(&observed),
        NextStep::Ask(Query::Listing(at_other.clone())),
        "the material is not shown to it"
    );
    observed.listings.insert(at_other, Listing::Known(Vec::new()));
    let announced = announced(&observed);
    assert_eq!(
        (announced.reason.as_str(), announced.credential.target),
        (Reason::ControlPlaneChanged.as_str(), place("other"))
    );
    assert_eq!(
        decide(&observed, at(NOW)).pod_credential.unwrap().url,
        "http://coder",
        "pods stay where their key is"
    );
}

#[test]
fn a_renamed_secret_or_data_key_is_a_copy() {
    for to in [secret_at("t"), SecretDataRef { key: "daemon-key".into(), ..secret_at("s") }] {
        let mut observed = verified(running());
        observed.desired.secret = to.clone();
        observed.secrets.insert(to.clone(), Secret::Absent);
        match step(&observed) {
            Effect::CopySecret { from, to: into, marks: written, .. } => {
                assert_eq!((from, into, written), (secret_at("s"), to, marks("k1", "pool")));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_secret_that_is_lost_or_damaged_is_replaced_and_its_key_stays_until_pods_have_changed_over() {
    let empty = Secret::Ours { version: "8".into(), holds: None, marks: Some(marks("k1", "pool")) };
    for (secret, proof, reason) in [
        (Secret::Absent, KeyProof::Refused, Reason::SecretLost),
        (empty, KeyProof::Refused, Reason::SecretLost),
        (secret("k1", "pool"), KeyProof::Refused, Reason::KeyRefused),
        (secret("k1", "pool"), KeyProof::Is(found("theirs", "elses")), Reason::KeyRefused),
    ] {
        let mut observed = ObservedKeys { verify_due: true, ..running() };
        observed.secrets.insert(secret_at("s"), secret);
        let mut observed = knows(observed, proof, vec![listed("k1", "pool"), listed("theirs", "elses")]);
        if reason == Reason::SecretLost {
            observed.proofs.clear();
        }
        assert_eq!(decide(&observed, at(NOW)).verdict.in_place, Some(false), "said before anything is made");
        let record = recorded(&observed);
        assert_eq!(
            (record.pending.as_ref().unwrap().credential.name.clone(), record.stale.len()),
            (spare(), 0)
        );
        assert_eq!(record.pending.as_ref().unwrap().reason, reason.as_str());
        assert_eq!(record.current, Some(key("k1", "pool")));
    }
}

#[test]
fn a_key_that_somebody_deleted_is_made_anew() {
    let observed = knows(ObservedKeys { verify_due: true, ..running() }, KeyProof::Refused, Vec::new());
    assert_eq!(announced(&observed).reason, Reason::KeyRefused.as_str());
}

#[test]
fn answers_that_are_not_definite_change_nothing() {
    let mut lost = ObservedKeys { verify_due: true, ..running() };
    lost.proofs.insert(secret_at("s"), KeyProof::Unknown(blocker()));
    let mut unlisted = knows(ObservedKeys { verify_due: true, ..running() }, KeyProof::Refused, Vec::new());
    unlisted.listings.insert(here(), Listing::Unknown(blocker()));
    let mut unread = ObservedKeys { verify_due: true, ..running() };
    unread.secrets.insert(secret_at("s"), Secret::Unknown(blocker()));
    let away = ObservedKeys { target: Err(blocker()), ..running() };
    let mut nowhere = new();
    nowhere.own.organization = Some(Err(blocker()));
    for (what, observed, stage) in [
        ("proof", lost, CredentialProgress::Unsure),
        ("list", unlisted, CredentialProgress::Unsure),
        ("Secret", unread, CredentialProgress::Unsure),
        ("target", away, CredentialProgress::Unsure),
        // A pool that has no key yet is no longer as ready as it was: it never was.
        ("organization", nowhere, CredentialProgress::Working),
    ] {
        let decision = decide(&observed, at(NOW));
        assert_eq!((decision.next, decision.verdict.stage), (NextStep::Done, stage), "{what}");
        assert_eq!(
            decision.pod_credential,
            observed.workload.map(|workload| workload.pod_credential),
            "{what}"
        );
    }
}

#[test]
fn a_list_that_lacks_a_proven_key_is_not_believed() {
    let mut observed = verified(running());
    observed.desired.tags = tags("us");
    observed.listings.insert(here(), Listing::Known(Vec::new()));
    let decision = decide(&observed, at(NOW));
    assert_eq!((decision.next, decision.verdict.reason), (NextStep::Done, Reason::ListIncomplete));
}

#[test]
fn where_coderd_cannot_be_asked_the_list_must_agree_with_the_annotations() {
    let mut observed = knows(
        ObservedKeys { verify_due: true, ..running() },
        KeyProof::Unsupported,
        vec![listed("k1", "pool")],
    );
    assert_eq!(next(&observed), NextStep::Done);
    observed.listings.insert(here(), Listing::Known(Vec::new()));
    let decision = decide(&observed, at(NOW));
    assert_eq!(
        (decision.next, decision.verdict.stage),
        (NextStep::Done, CredentialProgress::Unsure),
        "never rotates on it"
    );
}

#[test]
fn an_edit_that_is_taken_back_leaves_the_old_key_and_gets_rid_of_the_new_one() {
    let mut observed = running();
    observed.record.pending =
        Some(KeyIntent { credential: KeyRef { id: None, ..made("us").credential }, ..made("us") });
    let made =
        ListedKey { key: FoundKey { tags: tags("us"), ..found("k2", &spare()) }, ..listed("k2", &spare()) };
    let mut observed = knows(observed, KeyProof::Is(found("k1", "pool")), vec![listed("k1", "pool"), made]);
    observed.record = recorded(&observed);
    assert_eq!((observed.record.pending.clone(), observed.record.stale.len()), (None, 1));
    assert!(matches!(step(&observed), Effect::Delete { id, .. } if id == "k2"));
}

#[test]
fn an_edit_that_is_taken_back_after_the_material_was_stored_keeps_both_keys_for_now() {
    let mut observed = running();
    observed.record.pending = Some(made("us"));
    observed.secrets.insert(secret_at("s"), secret("k2", &spare()));
    let made = FoundKey { tags: tags("us"), ..found("k2", &spare()) };
    let others = vec![listed("k1", "pool"), ListedKey { key: made.clone(), ..listed("k2", &spare()) }];
    let mut observed = knows(observed, KeyProof::Is(made), others);
    observed.record = recorded(&observed);
    assert_eq!(
        observed.record.current.as_ref().unwrap().id.as_deref(),
        Some("k2"),
        "pods may hold it by now"
    );
    observed.record = recorded(&observed);
    assert!(observed.record.pending.is_some(), "and one with the wanted tags is made");
    assert_eq!(observed.record.stale.len(), 1);
}

#[test]
fn while_the_gate_is_closed_no_key_is_made_and_pods_run_on() {
    let closed = Blocker::new(Reason::NotEntitled, "no license");
    let observed =
        ObservedKeys { may_make: Err(closed.clone()), ..knows(new(), KeyProof::Refused, Vec::new()) };
    assert_eq!(
        (next(&observed), decide(&observed, at(NOW)).verdict.reason),
        (NextStep::Done, Reason::NotEntitled)
    );
    let mut observed = verified(ObservedKeys { may_make: Err(closed), ..running() });
    observed.desired.tags = tags("us");
    let decision = decide(&observed, at(NOW));
    assert_eq!((decision.next, decision.pod_credential.unwrap().checksum), (NextStep::Done, "sum-k1".into()));
}

#[test]
fn a_secret_that_cannot_be_written_is_found_before_a_key_is_made() {
    for (obstacle, reason) in [
        (Obstacle::Foreign("a=b".into()), Reason::ForeignObject),
        (Obstacle::Immutable, Reason::SecretImmutable),
    ] {
        let mut observed = knows(new(), KeyProof::Refused, Vec::new());
        observed.secrets.insert(secret_at("s"), Secret::Blocked(obstacle));
        assert_eq!(stalls(&observed), reason);
    }
}

#[test]
fn an_organization_that_coderd_does_not_know_waits_for_a_person() {
    let mut observed = new();
    observed.own.organization = Some(Ok(None));
    assert_eq!(stalls(&observed), Reason::OrganizationNotFound);
}
