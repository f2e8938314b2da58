#![allow(clippy::needless_pass_by_value, reason = "what json! makes is given as it is")]

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::condition::Conditions;

fn plane(spec: Value, status: Value) -> CoderControlPlane {
    let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
        "metadata": {"name": "coder", "namespace": "ns", "finalizers": [finalizer::CONTROL_PLANE]},
        "spec": spec, "status": status});
    serde_json::from_value(object).unwrap()
}

fn with_url(access: Value) -> Value {
    json!({"extraEnv": [{"name": DATABASE_URL, "value": "postgres://db"}], "operatorAccess": access})
}

/// The status after a report, and reason of the condition.
fn status_after(object: &CoderControlPlane, report: &CoderdReport) -> (CoderControlPlaneStatus, String) {
    let before = object.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(&before.workload.conditions, Some(1), Timestamp::UNIX_EPOCH);
    let mut status = before.clone();
    set_conditions(object, report, &PresentInputs::default(), &mut conditions, &mut status);
    status.workload.conditions = conditions.into_vec();
    let said =
        status.workload.conditions.iter().find(|c| c.type_ == condition_type::OPERATOR_ACCESS_READY).unwrap();
    let reason = format!("{} {}", said.status, said.reason);
    (status, reason)
}

fn recorded(method: &str) -> Value {
    json!({"operatorToken": {"method": method}, "operatorAccessReady": true,
        "operatorTokenSecretRef": {"name": "coder-operator-token", "key": "token"}})
}

fn blocker() -> Blocker {
    Blocker::new(Reason::DatabaseUnreachable, "db:5432/coder cannot be reached")
}

#[test]
fn what_is_awaited_is_named_before_anything_was_tried() {
    let reason = |spec: Value| status_after(&plane(spec, json!({})), &CoderdReport::default()).1;
    assert_eq!(reason(json!({})), "False DatabaseURLMissing");
    assert_eq!(reason(with_url(json!({}))), "False Pending");
    assert_eq!(reason(json!({"envFrom": [{"secretRef": {"name": "s"}}]})), "False Pending");
    assert_eq!(
        reason(json!({"operatorAccess": {"method": "FirstUser", "firstUserSecretRef": {"name": "s"}}})),
        "False Pending"
    );
}

#[test]
fn a_passing_trouble_withdraws_nothing() {
    let object = plane(with_url(json!({})), recorded("Postgres"));
    let access = |access| CoderdReport { access: Some(access), ..CoderdReport::default() };
    let (status, reason) = status_after(&object, &access(AccessVerdict::Degraded(blocker())));
    assert_eq!(reason, "False DatabaseUnreachable");
    assert_eq!(status.operator_access_ready, Some(true));
    assert!(status.operator_token_secret_ref.is_some() && status.operator_token.is_some());
    let (status, reason) = status_after(&object, &access(AccessVerdict::Overdue(blocker())));
    assert_eq!((reason.as_str(), status.operator_access_ready), ("True RenewalFails", Some(true)));
    let (status, _) = status_after(&object, &access(AccessVerdict::Refused(blocker())));
    assert_eq!(status.operator_access_ready, None);
    assert!(status.operator_token.is_some(), "it may still be there");
}

#[test]
fn a_token_that_others_can_read_is_accepted_and_the_message_says_so() {
    let object = plane(with_url(json!({})), recorded("Postgres"));
    let message = |warnings: &[TransportWarning]| {
        let warnings = warnings.to_vec();
        let report = CoderdReport { access: Some(AccessVerdict::Ready), warnings, ..CoderdReport::default() };
        let (status, reason) = status_after(&object, &report);
        assert_eq!((reason.as_str(), status.operator_access_ready), ("True TokenAccepted", Some(true)));
        condition(&status, condition_type::OPERATOR_ACCESS_READY).unwrap().message.clone()
    };
    assert_eq!(message(&[]), "coderd accepts the operator token");
    let both = message(&[TransportWarning::PlainHttp, TransportWarning::UnverifiedDatabase]);
    assert!(both.contains("plain HTTP") && both.contains("sslmode=require"), "{both}");
}

#[test]
fn a_disabled_access_is_told_as_revoking_until_the_token_is_gone() {
    let object = plane(with_url(json!({"disabled": true})), recorded("Postgres"));
    let with = |revocation| CoderdReport { revocation, ..CoderdReport::default() };
    let (status, reason) = status_after(&object, &with(None));
    assert_eq!((reason.as_str(), status.operator_access_ready), ("False Revoking", None));
    let (status, reason) = status_after(&object, &with(Some(Revocation::Failing(blocker()))));
    assert_eq!(reason, "False DatabaseUnreachable");
    assert!(status.operator_token.is_some() && status.operator_token_secret_ref.is_some());
    let (status, reason) = status_after(&object, &with(Some(Revocation::Done)));
    assert_eq!(reason, "False Disabled");
    assert!(status.operator_token.is_none() && status.operator_token_secret_ref.is_none());
    // After a restart it stays said.
    let mut object = object;
    object.status = Some(status);
    assert_eq!(status_after(&object, &with(None)).1, "False Disabled");
}

#[test]
fn without_a_way_to_have_made_a_token_nothing_is_to_be_revoked() {
    for (spec, expected) in [
        (json!({"operatorAccess": {"disabled": true}}), true),
        (
            json!({"operatorAccess": {"disabled": true, "method": "FirstUser", "firstUserSecretRef": {"name": "s"}}}),
            true,
        ),
        (with_url(json!({"disabled": true})), false),
    ] {
        assert_eq!(is_revoked(&plane(spec.clone(), json!({}))), expected, "{spec}");
    }
}

#[test]
fn the_record_says_what_there_is_to_give_back() {
    let of = |spec: Value, status: Value| minted_token(&plane(spec, status)).map(|token| token.method);
    assert_eq!(of(json!({}), json!({})), None);
    assert_eq!(of(json!({}), recorded("FirstUser")), Some(AccessMethod::FirstUser));
    // What the Go operator recorded.
    let reference = |name: &str| json!({"operatorTokenSecretRef": {"name": name, "key": "token"}});
    assert_eq!(of(json!({}), reference("coder-operator-token")), Some(AccessMethod::Postgres));
    // What a person supplies is not ours to give back.
    let given = json!({"operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "mine"}}});
    assert_eq!(of(given.clone(), reference("mine")), None);
    let postgres = || ReplacedToken { method: AccessMethod::Postgres, user_id: None };
    assert_eq!(replaced_tokens(&plane(given, recorded("Postgres"))), [postgres()]);
    assert_eq!(replaced_tokens(&plane(json!({}), recorded("Postgres"))), []);
}

#[test]
fn a_change_of_method_replaces_the_tokens_of_all_other_methods() {
    use AccessMethod::{FirstUser, Postgres};
    let method = |method: &str| json!({"operatorAccess": {"method": method}});
    let record = |method: &str, replaced: &str| json!({"operatorToken": {"method": method, "replaces": {"method": replaced}}});
    for (spec, status, expected) in [
        ("FirstUser", recorded("Postgres"), vec![Postgres]),
        ("FirstUser", record("FirstUser", "Postgres"), vec![Postgres]),
        // Back to the first method before its token was revoked: it is the token in use.
        ("Postgres", record("FirstUser", "Postgres"), vec![FirstUser]),
        ("TokenSecret", record("FirstUser", "Postgres"), vec![Postgres, FirstUser]),
        ("TokenSecret", record("Postgres", "FirstUser"), vec![FirstUser, Postgres]),
    ] {
        let object = plane(method(spec), status.clone());
        let found: Vec<_> = replaced_tokens(&object).into_iter().map(|token| token.method).collect();
        assert_eq!(found, expected, "{spec} {status}");
    }
}

#[test]
fn a_token_of_the_go_operator_outlives_the_reference_that_records_it() {
    let given = json!({"operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "mine"}}});
    let go = json!({"operatorTokenSecretRef": {"name": "coder-operator-token", "key": "token"}});
    let report = CoderdReport {
        token: Some(coder_k8s_api::ReportedSecretRef { name: "mine".into(), key: Some("token".into()) }),
        ..CoderdReport::default()
    };
    let status = status_after(&plane(given, go), &report).0;
    assert_eq!(status.operator_token.map(|token| token.method), Some(AccessMethod::Postgres));
    assert_eq!(status.operator_token_secret_ref.map(|reference| reference.name).as_deref(), Some("mine"));
}

#[test]
fn a_token_is_made_only_once_it_is_recorded_and_the_object_cannot_vanish() {
    let object = plane(json!({}), recorded("Postgres"));
    assert!(may_create(&object));
    let mut loose = object.clone();
    loose.metadata.finalizers = None;
    assert!(!may_create(&loose));
    assert!(!may_create(&plane(json!({}), recorded("FirstUser"))), "recorded for another way");
    assert!(!may_create(&plane(json!({}), json!({}))));
}

#[test]
fn the_object_stays_until_the_token_is_gone_or_abandoned() {
    let object = plane(json!({}), recorded("Postgres"));
    let needs = |object: &CoderControlPlane, revocation| {
        needs_cleaning(object, &CoderdReport { revocation, ..CoderdReport::default() })
    };
    assert!(needs(&object, None));
    assert!(needs(&object, Some(Revocation::Failing(blocker()))));
    assert!(!needs(&object, Some(Revocation::Done)));
    assert!(!needs(&object, Some(Revocation::Abandoned)));
    assert!(!needs(&plane(json!({}), json!({})), None), "nothing was made");
    let intent =
        CoderdReport { token_record: Some(OperatorTokenStatus::default()), ..CoderdReport::default() };
    assert!(needs_cleaning(&plane(json!({}), json!({})), &intent), "it is about to be made");
}

#[test]
fn a_restart_says_nothing_new_about_the_same_spec() {
    let mut object = plane(with_url(json!({})), json!({}));
    object.metadata.generation = Some(1);
    let report = CoderdReport { access: Some(AccessVerdict::Refused(blocker())), ..CoderdReport::default() };
    let (status, reason) = status_after(&object, &report);
    assert_eq!(reason, "False DatabaseUnreachable");
    object.status = Some(status.clone());
    assert_eq!(status_after(&object, &CoderdReport::default()), (status, reason));
    // Another spec is another matter.
    object.metadata.generation = Some(2);
    assert_eq!(status_after(&object, &CoderdReport::default()).1, "False Pending");
}

#[test]
fn the_address_may_come_from_every_place_that_pods_read() {
    for (pod, expected) in [
        (json!({}), false),
        (json!({"extraEnv": [{"name": DATABASE_URL, "value": "postgres://db"}]}), true),
        (json!({"extraEnv": [{"name": DATABASE_URL, "value": " "}]}), false),
        (json!({"extraEnv": [{"name": DATABASE_URL}]}), false),
        (
            json!({"extraEnv": [{"name": DATABASE_URL, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            true,
        ),
        (json!({"envFrom": [{"secretRef": {"name": "s"}}]}), true),
        (json!({"envFrom": [{"prefix": "CODER_", "secretRef": {"name": "s"}}]}), true),
        (json!({"envFrom": [{"prefix": "OTHER_", "secretRef": {"name": "s"}}]}), false),
        // What is set by name wins over what a source brings, even if it is nothing.
        (
            json!({"extraEnv": [{"name": DATABASE_URL, "value": ""}], "envFrom": [{"secretRef": {"name": "s"}}]}),
            false,
        ),
    ] {
        let settings: PodSettings = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(may_have_database(&settings), expected, "{pod}");
    }
}
