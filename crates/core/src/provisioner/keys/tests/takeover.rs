//! Status that was lost, or written by the existing operator; and what of it is written back.

use coder_k8s_api::CoderProvisionerStatus;
use serde_json::json;

use super::*;
use crate::condition::Conditions;

#[test]
fn a_pool_of_the_existing_operator_keeps_its_key_and_its_pods() {
    let status: CoderProvisionerStatus = serde_json::from_value(json!({
        "controlPlaneRefName": "coder", "controlPlaneURL": "http://coder", "observedGeneration": 2,
        "organizationID": "org", "organizationName": "default", "phase": "Ready", "provisionerKeyID": "k1",
        "provisionerKeyName": "pool", "readyReplicas": 1, "secretRef": {"key": "key", "name": "s"},
        "tagsHash": "be9dde2b",
    }))
    .unwrap();
    let mut seen = running();
    seen.record = Record::of(&status);
    let checksums = Some(["sum-k1".into(), "old-k1".into()]);
    seen.secrets.insert(secret_at("s"), Secret::Ours { version: "7".into(), holds: checksums, marks: None });
    seen.workload.as_mut().unwrap().run.checksum = "old-k1".into();
    let mut seen = verified(seen);
    let record = recorded(&seen);
    assert_eq!(record, running().record, "what was missing is filled in");
    seen.record = record;
    assert_eq!(
        step(&seen),
        Step::Annotate {
            secret: secret_at("s"),
            version: Version::Is("7".into()),
            marks: marks("k1", "pool")
        }
    );
    seen.secrets.insert(secret_at("s"), secret("k1", "pool"));
    let decision = decide(&seen, at(NOW));
    assert_eq!((decision.next, decision.run.unwrap().checksum), (Next::Rest, "old-k1".into()));
}

#[test]
fn a_lost_status_is_found_again_without_a_new_key() {
    let seen = Seen { record: Record::default(), ..running() };
    assert_eq!(next(&seen), Next::Look(Look::Proof(secret_at("s"))));
    let mut seen = verified(seen);
    seen.record = recorded(&seen);
    seen.record = recorded(&seen);
    assert_eq!(seen.record, running().record);
    assert_eq!(next(&seen), Next::Rest);
}

#[test]
fn a_part_that_was_lost_is_filled_in() {
    let mut seen = running();
    let key = seen.record.current.as_mut().unwrap();
    (key.id, key.tags_hash, key.place.deployment_id) = (None, None, None);
    let mut seen = verified(seen);
    seen.record = recorded(&seen);
    while let Next::Record(record) = next(&seen) {
        assert_eq!(record.pending, None);
        seen.record = *record;
    }
    assert_eq!(seen.record, running().record);
}

#[test]
fn an_unmarked_secret_is_adopted_only_if_its_key_is_what_the_spec_asks_for() {
    let mut seen = Seen { record: Record::default(), ..running() };
    let checksums = Some(["sum-k9".into(), "old-k9".into()]);
    seen.secrets.insert(secret_at("s"), Secret::Ours { version: "7".into(), holds: checksums, marks: None });
    let all = vec![listed("k9", "elses")];
    let fits = knows(seen.clone(), Proof::Is(found("k9", "pool")), all.clone());
    assert_eq!(recorded(&fits).current.unwrap().id.as_deref(), Some("k9"));
    let seen = knows(seen, Proof::Is(found("k9", "elses")), all);
    let decision = decide(&seen, at(NOW));
    let Next::Record(record) = decision.next else { panic!("{:?}", decision.next) };
    assert_eq!((record.current, record.stale.len()), (None, 0));
    assert!(record.pending.is_some() && decision.notes[0].message.contains("(k9)"), "it is left alone");
}

#[test]
fn a_record_survives_the_status() {
    let mut record = running().record;
    record.pending = Some(pending("next"));
    let bootstrap = Credentials { kind: CredentialsKind::Bootstrap, secret: Some(secret_at("token")) };
    let mut old = Stale { unused_since: Some(at(NOW)), ..stale(Some("k0"), "zero") };
    old.key.place.credentials = Some(bootstrap);
    record.stale = vec![old, stale(None, "half")];
    let mut status = CoderProvisionerStatus::default();
    record.write(&mut status);
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(Record::of(&serde_json::from_str(&text).unwrap()), record);
    Record::default().write(&mut status);
    assert_eq!(status, CoderProvisionerStatus::default());
}

#[test]
fn what_worked_stays_said_while_nobody_knows() {
    let mut conditions = Conditions::new(&[], Some(1), at(NOW));
    decide(&running(), at(NOW)).finding.tell(&mut conditions, &TOLD);
    let before = conditions.into_vec();
    let away = Seen { target: Err(trouble()), ..running() };
    let mut conditions = Conditions::new(&before, Some(1), at(NOW));
    decide(&away, at(NOW)).finding.tell(&mut conditions, &TOLD);
    assert_eq!(conditions.into_vec(), before);
    let mut conditions = Conditions::new(&[], Some(1), at(NOW));
    decide(&Seen { target: Err(trouble()), ..new() }, at(NOW)).finding.tell(&mut conditions, &TOLD);
    assert_eq!(conditions.into_vec()[0].status, "False");
}
