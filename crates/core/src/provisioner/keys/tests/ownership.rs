//! Whose a key is, and what happens to names that others have.

use coder_k8s_api::CoderProvisioner;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::{credential::NameConflict, object};

/// A pool whose announced key bears a name that coderd lists.
fn announced_and_listed(listed: ListedKey) -> ObservedKeys {
    let mut observed = knows(new(), KeyProof::Refused, vec![listed]);
    observed.record.pending = Some(pending("pool"));
    observed
}

#[test]
fn a_key_of_an_earlier_attempt_is_deleted_and_made_again() {
    let observed = announced_and_listed(listed("k1", "pool"));
    assert!(matches!(step(&observed), Effect::Delete { id, name, .. } if id == "k1" && name == "pool"));
}

#[test]
fn a_key_that_lacks_one_sign_of_being_ours_is_never_touched() {
    let ours = listed("k1", "pool");
    for (what, not_ours) in [
        ("other tags", ListedKey { key: FoundKey { tags: tags("us"), ..ours.key.clone() }, ..ours.clone() }),
        ("older than the announcement", ListedKey { created: Some(at(NOW - 3600)), ..ours.clone() }),
        ("of unknown age", ListedKey { created: None, ..ours.clone() }),
        ("in use", ListedKey { was_used: true, ..ours.clone() }),
    ] {
        let observed = announced_and_listed(not_ours);
        let decision = decide(&observed, at(NOW));
        let NextStep::WriteStatus(record) = decision.next else { panic!("{what}: {:?}", decision.next) };
        assert_eq!(record.pending.as_ref().unwrap().credential.name, spare(), "{what}");
        assert!(decision.events[0].message.contains("provisioner key pool (k1)"), "{what}");
    }
}

#[test]
fn clocks_that_are_minutes_apart_hide_no_key_of_ours() {
    let observed = announced_and_listed(ListedKey { created: Some(at(NOW - 120)), ..listed("k1", "pool") });
    assert!(matches!(step(&observed), Effect::Delete { .. }));
}

#[test]
fn a_taken_name_is_evaded_if_it_was_ours_to_choose_and_a_conflict_if_not() {
    let mut observed = knows(new(), KeyProof::Refused, vec![listed("theirs", "pool")]);
    assert_eq!(recorded(&observed).pending.unwrap().credential.name, spare());
    observed.desired.name = base(Some("Pool"));
    assert_eq!(stalls(&observed), Reason::KeyConflict);
}

#[test]
fn a_key_that_somebody_replaced_is_theirs() {
    let mut observed = knows(
        ObservedKeys { verify_due: true, ..running() },
        KeyProof::Refused,
        vec![listed("theirs", "pool")],
    );
    assert_eq!(recorded(&observed).pending.unwrap().credential.name, spare());
    observed.desired.name = base(Some("pool"));
    assert_eq!(stalls(&observed), Reason::KeyConflict);
}

#[test]
fn a_chosen_name_that_our_own_key_has_is_no_conflict() {
    let mut observed = running();
    observed.desired.name = base(Some("pool"));
    observed.desired.tags = tags("us");
    assert_eq!(recorded(&verified(observed)).pending.unwrap().credential.name, spare());
}

#[test]
fn a_name_on_the_record_is_not_given_twice() {
    let mut observed = running();
    observed.desired.tags = tags("us");
    observed.record.stale.push(stale(None, &spare()));
    let third = base(None).candidates().nth(2);
    assert_eq!(recorded(&verified(observed)).pending.map(|pending| pending.credential.name), third);
}

#[test]
fn of_two_that_claim_a_name_the_older_wins_and_the_other_touches_nothing() {
    let pool = |created, uid: &str| {
        let spec = serde_json::json!({"controlPlaneRef": {"name": "coder"}});
        let mut pool = CoderProvisioner::new("pool", serde_json::from_value(spec).unwrap());
        pool.metadata.creation_timestamp = Some(Time(at(created)));
        pool.metadata.uid = Some(uid.into());
        pool
    };
    let with = |given: Option<&str>, other: CoderProvisioner| {
        let mut observed = knows(new(), KeyProof::Refused, Vec::new());
        observed.desired.name = base(given);
        observed.name_conflict =
            object::is_before(&other, &pool(10, "b")).then(|| NameConflict::Neighbour("other".into()));
        observed
    };
    assert_eq!(stalls(&with(Some("pool"), pool(5, "x"))), Reason::KeyConflict);
    assert_eq!(stalls(&with(Some("pool"), pool(10, "a"))), Reason::KeyConflict, "made in the same second");
    assert_eq!(recorded(&with(Some("pool"), pool(20, "a"))).pending.unwrap().credential.name, "pool");
    assert_eq!(
        recorded(&with(None, pool(5, "x"))).pending.unwrap().credential.name,
        spare(),
        "ours to choose"
    );
    let mut holder = ObservedKeys { verify_due: true, ..with(Some("pool"), pool(5, "x")) };
    holder.record = running().record;
    holder.secrets = running().secrets;
    holder.workload = running().workload;
    assert_eq!(next(&verified(holder)), NextStep::Done, "what it has it keeps");
}

#[test]
fn a_claim_from_another_namespace_blocks_nobody_and_is_not_told() {
    let with = |given: Option<&str>| {
        let mut observed = knows(new(), KeyProof::Refused, Vec::new());
        observed.desired.name = base(given);
        observed.name_conflict = Some(NameConflict::Elsewhere);
        observed
    };
    assert_eq!(
        recorded(&with(Some("pool"))).pending.unwrap().credential.name,
        "pool",
        "coderd says it is free"
    );
    assert_eq!(recorded(&with(None)).pending.unwrap().credential.name, spare(), "ours to choose");
}

#[test]
fn an_edit_into_a_conflict_keeps_the_key_that_works() {
    let mut observed = verified(running());
    observed.desired.name = base(Some("team"));
    observed.listings.insert(here(), Listing::Known(vec![listed("k1", "pool"), listed("theirs", "team")]));
    let decision = decide(&observed, at(NOW));
    assert_eq!((decision.next, decision.verdict.reason), (NextStep::Done, Reason::KeyConflict));
    assert_eq!(decision.pod_credential.unwrap().checksum, "sum-k1");
}

#[test]
fn a_key_that_only_the_annotations_know_is_recorded_before_they_are_overwritten() {
    let mut observed = knows(new(), KeyProof::Refused, vec![listed("k1", "pool")]);
    observed.secrets.insert(secret_at("s"), secret("k1", "pool"));
    let record = recorded(&observed);
    assert_eq!(record.stale[0].credential.id.as_deref(), Some("k1"));
    observed.record = record;
    assert_eq!(recorded(&observed).pending.unwrap().credential.name, spare());
}
