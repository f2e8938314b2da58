//! Status that was lost, or written by the Go operator; and what of it is written back.

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
    let mut observed = running();
    observed.record = KeyRecord::of(&status);
    let checksums = Some(["sum-k1".into(), "old-k1".into()]);
    observed
        .secrets
        .insert(secret_at("s"), Secret::Ours { version: "7".into(), holds: checksums, marks: None });
    observed.workload.as_mut().unwrap().pod_credential.checksum = "old-k1".into();
    let mut observed = verified(observed);
    let record = recorded(&observed);
    assert_eq!(record, running().record, "what was missing is filled in");
    observed.record = record;
    assert_eq!(
        step(&observed),
        Effect::AnnotateSecret {
            secret: secret_at("s"),
            version: Version::Is("7".into()),
            marks: marks("k1", "pool")
        }
    );
    observed.secrets.insert(secret_at("s"), secret("k1", "pool"));
    let decision = decide(&observed, at(NOW));
    assert_eq!((decision.next, decision.pod_credential.unwrap().checksum), (NextStep::Done, "old-k1".into()));
}

#[test]
fn a_lost_status_is_found_again_without_a_new_key() {
    let observed = ObservedKeys { record: KeyRecord::default(), ..running() };
    assert_eq!(next(&observed), NextStep::Ask(Query::Proof(secret_at("s"))));
    let mut observed = verified(observed);
    observed.record = recorded(&observed);
    observed.record = recorded(&observed);
    assert_eq!(observed.record, running().record);
    assert_eq!(next(&observed), NextStep::Done);
}

#[test]
fn a_part_that_was_lost_is_filled_in() {
    let mut observed = running();
    let key = observed.record.current.as_mut().unwrap();
    (key.id, key.details.tags_hash, key.target.deployment_id) = (None, None, None);
    let mut observed = verified(observed);
    assert_eq!(decide(&observed, at(NOW)).verdict.in_place, None, "what was said stays");
    observed.record = recorded(&observed);
    while let NextStep::WriteStatus(record) = next(&observed) {
        assert_eq!(record.pending, None);
        observed.record = *record;
    }
    assert_eq!(observed.record, running().record);
}

#[test]
fn an_unmarked_secret_is_adopted_only_if_its_key_is_what_the_spec_asks_for() {
    let mut observed = ObservedKeys { record: KeyRecord::default(), ..running() };
    let checksums = Some(["sum-k9".into(), "old-k9".into()]);
    observed
        .secrets
        .insert(secret_at("s"), Secret::Ours { version: "7".into(), holds: checksums, marks: None });
    let all = vec![listed("k9", "elses")];
    let fits = knows(observed.clone(), KeyProof::Is(found("k9", "pool")), all.clone());
    assert_eq!(recorded(&fits).current.unwrap().id.as_deref(), Some("k9"));
    let observed = knows(observed, KeyProof::Is(found("k9", "elses")), all);
    let decision = decide(&observed, at(NOW));
    let NextStep::WriteStatus(record) = decision.next else { panic!("{:?}", decision.next) };
    assert_eq!((record.current, record.stale.len()), (None, 0));
    assert!(record.pending.is_some() && decision.events[0].message.contains("(k9)"), "it is left alone");
}

#[test]
fn a_record_survives_the_status() {
    let mut record = running().record;
    record.pending = Some(pending("next"));
    let bootstrap = Credentials { kind: CredentialsKind::Bootstrap, secret: Some(secret_at("token")) };
    let mut old = RetiredKey { unused_since: Some(at(NOW)), ..stale(Some("k0"), "zero") };
    old.credential.target.credentials = Some(bootstrap);
    record.stale = vec![old, stale(None, "half")];
    let mut status = CoderProvisionerStatus::default();
    record.write(&mut status);
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(KeyRecord::of(&serde_json::from_str(&text).unwrap()), record);
    KeyRecord::default().write(&mut status);
    assert_eq!(status, CoderProvisionerStatus::default());
}

#[test]
fn what_worked_stays_said_while_nobody_knows() {
    let mut conditions = Conditions::new(&[], Some(1), at(NOW));
    decide(&running(), at(NOW)).verdict.set_conditions(&mut conditions, &CONDITIONS);
    let before = conditions.into_vec();
    let away = ObservedKeys { target: Err(blocker()), ..running() };
    let mut conditions = Conditions::new(&before, Some(1), at(NOW));
    decide(&away, at(NOW)).verdict.set_conditions(&mut conditions, &CONDITIONS);
    assert_eq!(conditions.into_vec(), before);
    let mut conditions = Conditions::new(&[], Some(1), at(NOW));
    decide(&ObservedKeys { target: Err(blocker()), ..new() }, at(NOW))
        .verdict
        .set_conditions(&mut conditions, &CONDITIONS);
    assert_eq!(conditions.into_vec()[0].status, "False");
}
