//! The object is being deleted.

use super::*;

fn going(observed: ObservedKeys) -> ObservedKeys {
    ObservedKeys { deletion: Some(Deletion { overdue: false }), ..observed }
}

fn notes(observed: &ObservedKeys) -> Vec<String> {
    let decision = decide(observed, at(NOW));
    assert_eq!(decision.next, NextStep::RemoveFinalizer);
    decision.events.into_iter().map(|note| note.message).collect()
}

#[test]
fn every_key_goes_before_the_object() {
    let mut observed = running();
    observed.record.pending = Some(pending("third"));
    observed.record.stale.push(stale(Some("k0"), "zero"));
    let mut all =
        vec![listed("k1", "pool"), listed("k0", "zero"), listed("k2", "third"), listed("theirs", "x")];
    let mut gone = Vec::new();
    for _ in 0..3 {
        let observed = going(knows(observed.clone(), KeyProof::Is(found("k1", "pool")), all.clone()));
        let Effect::Delete { id, .. } = step(&observed) else { panic!("something else") };
        all.retain(|listed| listed.key.id != id);
        gone.push(id);
    }
    gone.sort();
    assert_eq!(gone, ["k0", "k1", "k2"]);
    observed.record.pending = None;
    assert_eq!(notes(&going(knows(observed, KeyProof::Refused, all))), Vec::<String>::new());
}

#[test]
fn it_works_without_a_control_plane_while_credentials_remain() {
    let observed = ObservedKeys { target: Err(blocker()), ..going(verified(running())) };
    assert!(matches!(step(&observed), Effect::Delete { id, .. } if id == "k1"));
}

#[test]
fn what_cannot_be_deleted_in_time_is_named() {
    let mut observed = going(running());
    observed.listings.insert(here(), Listing::Unknown(blocker()));
    assert_eq!(next(&observed), NextStep::Done);
    observed.deletion = Some(Deletion { overdue: true });
    let notes = notes(&observed);
    assert!(
        notes.len() == 1
            && notes[0].contains("provisioner key pool (k1) in organization org of http://coder")
    );
}

#[test]
fn what_nothing_is_left_to_delete_with_is_named_at_once() {
    let mut observed = going(running());
    observed.listings.insert(here(), Listing::Gone);
    assert_eq!(notes(&observed).len(), 1);
}

#[test]
fn a_lost_status_is_found_again_first() {
    let lost = |observed: ObservedKeys| ObservedKeys { record: KeyRecord::default(), ..observed };
    let observed = going(lost(verified(running())));
    assert_eq!(recorded(&observed).stale[0].credential.id.as_deref(), Some("k1"), "by the annotations");
    let mut observed = lost(running());
    let checksums = Some(["sum-k1".into(), "old-k1".into()]);
    observed
        .secrets
        .insert(secret_at("s"), Secret::Ours { version: "7".into(), holds: checksums, marks: None });
    let observed = going(verified(observed));
    assert_eq!(recorded(&observed).current.unwrap().id.as_deref(), Some("k1"), "by the material");
}

#[test]
fn an_announced_key_that_is_not_there_yet_is_waited_for() {
    let mut observed = new();
    observed.record.pending = Some(pending("pool"));
    let mut observed = going(knows(observed, KeyProof::Refused, Vec::new()));
    assert_eq!(next(&observed), NextStep::Done);
    observed.record.pending.as_mut().unwrap().since = at(NOW - 300);
    assert_eq!(notes(&observed), Vec::<String>::new());
}

#[test]
fn an_object_without_keys_just_goes() {
    assert_eq!(notes(&going(new())), Vec::<String>::new());
}

#[test]
fn whatever_fails_the_deletion_ends_by_its_deadline() {
    let observed = verified(running());
    crate::cleanup::table::check(&observed, decide, at(NOW), "k1");
    crate::cleanup::table::ends_at_once(&observed, decide, at(NOW), "k1");
}

#[test]
fn a_key_that_cannot_be_deleted_keeps_no_other_from_being_deleted() {
    let mut observed = running();
    observed.record.stale.push(stale(Some("k0"), "zero"));
    let all = vec![listed("k0", "zero"), listed("k1", "pool")];
    let mut observed = going(knows(observed, KeyProof::Is(found("k1", "pool")), all));
    let Effect::Delete { id: first, .. } = step(&observed) else { panic!("something else") };
    observed.tried.insert(first.clone());
    let Effect::Delete { id: second, .. } = step(&observed) else { panic!("something else") };
    assert_ne!(first, second);
    observed.tried.insert(second);
    assert_eq!(next(&observed), NextStep::Done, "and both are tried again later");
    observed.deletion = Some(Deletion { overdue: true });
    assert_eq!(notes(&observed).len(), 2);
}

#[test]
fn without_the_finalizer_nothing_is_asked_or_announced() {
    let mut observed = ObservedKeys { has_finalizer: false, ..going(running()) };
    for overdue in [false, true] {
        observed.deletion = Some(Deletion { overdue });
        assert_eq!(notes(&observed), Vec::<String>::new());
    }
}
