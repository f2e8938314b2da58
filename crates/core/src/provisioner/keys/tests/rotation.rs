//! What makes a new key, and what does not; and how one is made.

use super::*;

#[track_caller]
fn announced(seen: &Seen) -> Pending {
    recorded(seen).pending.expect("a key is announced")
}

#[test]
fn a_pool_at_rest_asks_nothing() {
    let decision = decide(&running(), at(NOW));
    assert_eq!(decision.next, Next::Rest);
    assert!(decision.finding.is_ready());
    assert_eq!(decision.run, running().workload.map(|workload| workload.run));
}

#[test]
fn a_verification_asks_what_the_material_is_and_nothing_else() {
    let mut seen = Seen { verify_due: true, ..running() };
    assert_eq!(next(&seen), Next::Look(Look::Proof(secret_at("s"))));
    seen.proofs.insert(secret_at("s"), Proof::Is(found("k1", "pool")));
    assert_eq!(next(&seen), Next::Rest);
}

#[test]
fn the_first_key_is_announced_before_it_is_made_and_only_under_a_free_name() {
    let mut seen = Seen { is_held: false, ..new() };
    assert_eq!(next(&seen), Next::Look(Look::Organization));
    seen.organization = Some(Ok(Some("org".into())));
    assert_eq!(next(&seen), Next::Look(Look::Keys(here())));
    seen.listings.insert(here(), Listing::Known(Vec::new()));
    assert_eq!(step(&seen), Step::Hold, "the object must not go without its key");
    seen.is_held = true;
    let record = recorded(&seen);
    assert_eq!(record.pending.as_ref().unwrap().name, "pool");
    assert_eq!(record.pending.as_ref().unwrap().reason, "FirstKey");
    seen.record = record;
    match step(&seen) {
        Step::Coderd(Act::Make { key, tags: sent, secret, version, marks }) => {
            assert_eq!((key.name, sent, secret), ("pool".into(), tags("eu"), secret_at("s")));
            assert_eq!((version, marks.id), (Version::Absent, None));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_made_key_is_proven_before_it_is_current_and_pods_change_over_after_that() {
    let mut seen = running();
    seen.record.pending = Some(Pending { id: Some("k2".into()), ..pending(&spare()) });
    seen.wanted.tags = tags("us");
    seen.record.pending.as_mut().unwrap().tags_hash = tags::hash(&tags("us"));
    let new = Found { tags: tags("us"), ..found("k2", &spare()) };
    seen.secrets.insert(secret_at("s"), secret("k2", &spare()));
    let before = decide(&seen, at(NOW));
    assert_eq!(before.next, Next::Look(Look::Proof(secret_at("s"))));
    assert_eq!(before.run.unwrap().checksum, "sum-k1", "unproven material is not rolled out");
    seen.proofs.insert(secret_at("s"), Proof::Is(new));
    seen.record = recorded(&seen);
    assert_eq!(seen.record.current.as_ref().unwrap().id.as_deref(), Some("k2"));
    assert_eq!(seen.record.pending, None);
    assert_eq!(seen.record.stale[0].key, key("k1", "pool"), "with where it is and what can delete it");
    assert_eq!(decide(&seen, at(NOW)).run.unwrap().checksum, "sum-k2");
}

#[test]
fn tags_organization_and_name_make_a_new_key() {
    let with = |edit: fn(&mut Wanted)| {
        let mut seen = running();
        edit(&mut seen.wanted);
        verified(seen)
    };
    let by_tags = announced(&with(|wanted| wanted.tags = tags("us")));
    assert_eq!((by_tags.reason.as_str(), by_tags.name), ("TagsChanged", spare()), "the old name is in use");
    let by_name = announced(&with(|wanted| wanted.name = base(Some("team"))));
    assert_eq!((by_name.reason.as_str(), by_name.name.as_str()), ("KeyNameChanged", "team"));
    let mut seen = with(|wanted| wanted.organization = "acme".into());
    seen.organization = Some(Ok(Some("org-2".into())));
    let at = At { organization: organization("acme", "org-2"), ..here() };
    assert_eq!(next(&seen), Next::Look(Look::Keys(at.clone())));
    seen.listings.insert(at, Listing::Known(Vec::new()));
    let by_organization = announced(&seen);
    assert_eq!(
        (by_organization.reason.as_str(), by_organization.name.as_str()),
        ("OrganizationChanged", "pool")
    );
}

#[test]
fn other_words_for_the_same_are_recorded_and_make_no_new_key() {
    let mut seen = running();
    seen.wanted.organization = "coder".into();
    let record = recorded(&verified(seen));
    assert_eq!(record.current.unwrap().organization, organization("coder", "org"));
    let mut seen = running();
    seen.wanted
        .tags
        .extend([("scope".to_owned(), "organization".to_owned()), ("owner".into(), String::new())]);
    let record = recorded(&verified(seen.clone()));
    assert_eq!((record.pending, record.stale), (None, Vec::new()));
    assert_eq!(record.current.unwrap().tags_hash, Some(tags::hash(&seen.wanted.tags)));
    let mut seen = Seen { verify_due: true, ..running() };
    seen.wanted.name = base(Some("Pool"));
    assert_eq!(next(&verified(seen)), Next::Rest, "coderd lower-cases names");
}

#[test]
fn a_hash_that_collides_hides_no_change_from_a_verification() {
    let mut seen = verified(Seen { verify_due: true, ..running() });
    let other = Found { tags: tags("us"), ..found("k1", "pool") };
    seen.proofs.insert(secret_at("s"), Proof::Is(other));
    assert_eq!(announced(&seen).reason, "TagsChanged");
}

#[test]
fn a_new_address_of_the_same_deployment_rolls_the_pods_and_keeps_the_key() {
    let mut seen = verified(running());
    let moved = Place { url: "https://coder".into(), ..place("coder") };
    seen.target = Ok(moved.clone());
    let record = recorded(&seen);
    assert_eq!((record.current.as_ref().unwrap().place.clone(), record.pending.clone()), (moved, None));
    seen.record = record;
    let decision = decide(&seen, at(NOW));
    assert_eq!((decision.next, decision.run.unwrap().url), (Next::Rest, "https://coder".into()));
}

#[test]
fn another_deployment_gets_a_key_of_its_own_and_never_sees_the_old_one() {
    let mut seen = running();
    seen.wanted.control_plane = "other".into();
    seen.target = Ok(place("other"));
    seen.organization = Some(Ok(Some("org-b".into())));
    let at_other = At { place: place("other"), organization: organization("default", "org-b") };
    assert_eq!(next(&seen), Next::Look(Look::Keys(at_other.clone())), "the material is not shown to it");
    seen.listings.insert(at_other, Listing::Known(Vec::new()));
    let announced = announced(&seen);
    assert_eq!((announced.reason.as_str(), announced.place), ("ControlPlaneChanged", place("other")));
    assert_eq!(decide(&seen, at(NOW)).run.unwrap().url, "http://coder", "pods stay where their key is");
}

#[test]
fn a_renamed_secret_or_data_key_is_a_copy() {
    for to in [secret_at("t"), SecretPlace { key: "daemon-key".into(), ..secret_at("s") }] {
        let mut seen = verified(running());
        seen.wanted.secret = to.clone();
        seen.secrets.insert(to.clone(), Secret::Absent);
        match step(&seen) {
            Step::Copy { from, to: into, marks: written, .. } => {
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
        (Secret::Absent, Proof::Refused, "SecretLost"),
        (empty, Proof::Refused, "SecretLost"),
        (secret("k1", "pool"), Proof::Refused, "KeyRefused"),
        (secret("k1", "pool"), Proof::Is(found("theirs", "elses")), "KeyRefused"),
    ] {
        let is_held = !matches!(reason, "SecretLost");
        let mut seen = Seen { verify_due: true, ..running() };
        seen.secrets.insert(secret_at("s"), secret);
        let mut seen = knows(seen, proof, vec![listed("k1", "pool"), listed("theirs", "elses")]);
        if !is_held {
            seen.proofs.clear();
        }
        let record = recorded(&seen);
        assert_eq!((record.pending.as_ref().unwrap().name.clone(), record.stale.len()), (spare(), 0));
        assert_eq!(record.pending.as_ref().unwrap().reason, reason);
        assert_eq!(record.current, Some(key("k1", "pool")));
    }
}

#[test]
fn a_key_that_somebody_deleted_is_made_anew() {
    let seen = knows(Seen { verify_due: true, ..running() }, Proof::Refused, Vec::new());
    assert_eq!(announced(&seen).reason, "KeyRefused");
}

#[test]
fn answers_that_are_not_definite_change_nothing() {
    let mut lost = Seen { verify_due: true, ..running() };
    lost.proofs.insert(secret_at("s"), Proof::Unknown(trouble()));
    let mut unlisted = knows(Seen { verify_due: true, ..running() }, Proof::Refused, Vec::new());
    unlisted.listings.insert(here(), Listing::Unknown(trouble()));
    let mut unread = Seen { verify_due: true, ..running() };
    unread.secrets.insert(secret_at("s"), Secret::Unknown(trouble()));
    let away = Seen { target: Err(trouble()), ..running() };
    let mut nowhere = new();
    nowhere.organization = Some(Err(trouble()));
    for (what, seen, stage) in [
        ("proof", lost, Stage::Unsure),
        ("list", unlisted, Stage::Unsure),
        ("Secret", unread, Stage::Unsure),
        ("target", away, Stage::Unsure),
        // A pool that has no key yet is no longer as ready as it was: it never was.
        ("organization", nowhere, Stage::Working),
    ] {
        let decision = decide(&seen, at(NOW));
        assert_eq!((decision.next, decision.finding.stage), (Next::Rest, stage), "{what}");
        assert_eq!(decision.run, seen.workload.map(|workload| workload.run), "{what}");
    }
}

#[test]
fn a_list_that_lacks_a_proven_key_is_not_believed() {
    let mut seen = verified(running());
    seen.wanted.tags = tags("us");
    seen.listings.insert(here(), Listing::Known(Vec::new()));
    let decision = decide(&seen, at(NOW));
    assert_eq!((decision.next, decision.finding.reason), (Next::Rest, "ListIncomplete"));
}

#[test]
fn where_coderd_cannot_be_asked_the_list_must_agree_with_the_annotations() {
    let mut seen =
        knows(Seen { verify_due: true, ..running() }, Proof::Unsupported, vec![listed("k1", "pool")]);
    assert_eq!(next(&seen), Next::Rest);
    seen.listings.insert(here(), Listing::Known(Vec::new()));
    let decision = decide(&seen, at(NOW));
    assert_eq!((decision.next, decision.finding.stage), (Next::Rest, Stage::Unsure), "never rotates on it");
}

#[test]
fn an_edit_that_is_taken_back_leaves_the_old_key_and_gets_rid_of_the_new_one() {
    let mut seen = running();
    seen.record.pending = Some(Pending { tags_hash: tags::hash(&tags("us")), ..pending(&spare()) });
    let made = Listed { key: Found { tags: tags("us"), ..found("k2", &spare()) }, ..listed("k2", &spare()) };
    let mut seen = knows(seen, Proof::Is(found("k1", "pool")), vec![listed("k1", "pool"), made]);
    seen.record = recorded(&seen);
    assert_eq!((seen.record.pending.clone(), seen.record.stale.len()), (None, 1));
    assert!(matches!(step(&seen), Step::Coderd(Act::Delete { id, .. }) if id == "k2"));
}

#[test]
fn an_edit_that_is_taken_back_after_the_material_was_stored_keeps_both_keys_for_now() {
    let mut seen = running();
    let half_way = Pending { id: Some("k2".into()), ..pending(&spare()) };
    seen.record.pending = Some(Pending { tags_hash: tags::hash(&tags("us")), ..half_way });
    seen.secrets.insert(secret_at("s"), secret("k2", &spare()));
    let made = Found { tags: tags("us"), ..found("k2", &spare()) };
    let others = vec![listed("k1", "pool"), Listed { key: made.clone(), ..listed("k2", &spare()) }];
    let mut seen = knows(seen, Proof::Is(made), others);
    seen.record = recorded(&seen);
    assert_eq!(seen.record.current.as_ref().unwrap().id.as_deref(), Some("k2"), "pods may hold it by now");
    seen.record = recorded(&seen);
    assert!(seen.record.pending.is_some(), "and one with the wanted tags is made");
    assert_eq!(seen.record.stale.len(), 1);
}

#[test]
fn while_the_gate_is_closed_no_key_is_made_and_pods_run_on() {
    let closed = Trouble { reason: "NotEntitled", message: "no license".into() };
    let seen = Seen { may_make: Err(closed.clone()), ..knows(new(), Proof::Refused, Vec::new()) };
    assert_eq!((next(&seen), decide(&seen, at(NOW)).finding.reason), (Next::Rest, "NotEntitled"));
    let mut seen = verified(Seen { may_make: Err(closed), ..running() });
    seen.wanted.tags = tags("us");
    let decision = decide(&seen, at(NOW));
    assert_eq!((decision.next, decision.run.unwrap().checksum), (Next::Rest, "sum-k1".into()));
}

#[test]
fn a_secret_that_cannot_be_written_is_found_before_a_key_is_made() {
    for (obstacle, reason) in
        [(Obstacle::Foreign("a=b".into()), "ForeignObject"), (Obstacle::Immutable, "SecretImmutable")]
    {
        let mut seen = knows(new(), Proof::Refused, Vec::new());
        seen.secrets.insert(secret_at("s"), Secret::Blocked(obstacle));
        assert_eq!(stalls(&seen), reason);
    }
}

#[test]
fn an_organization_that_coderd_does_not_know_waits_for_a_person() {
    let seen = Seen { organization: Some(Ok(None)), ..new() };
    assert_eq!(stalls(&seen), "OrganizationNotFound");
}
