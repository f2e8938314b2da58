//! The object is going.

use super::*;

fn going(seen: Seen) -> Seen {
    Seen { going: Some(Going { overdue: false }), ..seen }
}

fn told(seen: &Seen) -> Vec<String> {
    let decision = decide(seen, at(NOW));
    assert_eq!(decision.next, Next::Release);
    decision.notes.into_iter().map(|note| note.message).collect()
}

#[test]
fn every_key_goes_before_the_object() {
    let mut seen = running();
    seen.record.pending = Some(pending("third"));
    seen.record.stale.push(stale(Some("k0"), "zero"));
    let mut all =
        vec![listed("k1", "pool"), listed("k0", "zero"), listed("k2", "third"), listed("theirs", "x")];
    let mut gone = Vec::new();
    for _ in 0..3 {
        let seen = going(knows(seen.clone(), Proof::Is(found("k1", "pool")), all.clone()));
        let Step::Coderd(Act::Delete { id, .. }) = step(&seen) else { panic!("something else") };
        all.retain(|listed| listed.key.id != id);
        gone.push(id);
    }
    gone.sort();
    assert_eq!(gone, ["k0", "k1", "k2"]);
    seen.record.pending = None;
    assert_eq!(told(&going(knows(seen, Proof::Refused, all))), Vec::<String>::new());
}

#[test]
fn it_works_without_a_control_plane_while_credentials_remain() {
    let seen = Seen { target: Err(trouble()), ..going(verified(running())) };
    assert!(matches!(step(&seen), Step::Coderd(Act::Delete { id, .. }) if id == "k1"));
}

#[test]
fn what_cannot_be_deleted_in_time_is_named() {
    let mut seen = going(running());
    seen.listings.insert(here(), Listing::Unknown(trouble()));
    assert_eq!(next(&seen), Next::Rest);
    seen.going = Some(Going { overdue: true });
    let told = told(&seen);
    assert!(
        told.len() == 1 && told[0].contains("provisioner key pool (k1) in organization org of http://coder")
    );
}

#[test]
fn what_nothing_is_left_to_delete_with_is_named_at_once() {
    let mut seen = going(running());
    seen.listings.insert(here(), Listing::Gone);
    assert_eq!(told(&seen).len(), 1);
}

#[test]
fn a_lost_status_is_found_again_first() {
    let lost = |seen: Seen| Seen { record: Record::default(), ..seen };
    let seen = going(lost(verified(running())));
    assert_eq!(recorded(&seen).stale[0].key.id.as_deref(), Some("k1"), "by the annotations");
    let mut seen = lost(running());
    let checksums = Some(["sum-k1".into(), "old-k1".into()]);
    seen.secrets.insert(secret_at("s"), Secret::Ours { version: "7".into(), holds: checksums, marks: None });
    let seen = going(verified(seen));
    assert_eq!(recorded(&seen).current.unwrap().id.as_deref(), Some("k1"), "by the material");
}

#[test]
fn an_announced_key_that_is_not_there_yet_is_waited_for() {
    let mut seen = new();
    seen.record.pending = Some(pending("pool"));
    let mut seen = going(knows(seen, Proof::Refused, Vec::new()));
    assert_eq!(next(&seen), Next::Rest);
    seen.record.pending.as_mut().unwrap().since = at(NOW - 300);
    assert_eq!(told(&seen), Vec::<String>::new());
}

#[test]
fn an_object_without_keys_just_goes() {
    assert_eq!(told(&going(new())), Vec::<String>::new());
}
