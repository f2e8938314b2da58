//! Which token an object uses, and what is said of one that is missing.

use serde_json::{Value, json};

use super::*;

fn pool(more: &Value) -> CoderProvisioner {
    let mut spec = json!({"controlPlaneRef": {"name": "coder"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    CoderProvisioner::new("pool", serde_json::from_value(spec).unwrap())
}

fn plane(status: Value) -> CoderControlPlane {
    let mut plane = CoderControlPlane::new("coder", serde_json::from_value(json!({})).unwrap());
    plane.status = Some(serde_json::from_value(status).unwrap());
    plane
}

#[test]
fn what_is_missing_of_the_control_planes_token_has_a_reason() {
    let said = |reason: &str| {
        json!({"conditions": [{"type": "OperatorAccessReady", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-11-01T00:00:00Z"}]})
    };
    for (status, reason) in [
        (json!({}), Reason::AwaitingControlPlane),
        (json!({"operatorAccessReady": false}), Reason::AwaitingControlPlane),
        (said("Pending"), Reason::AwaitingControlPlane),
        (said("Unauthenticated"), Reason::OperatorAccessNotReady),
        (said("Disabled"), Reason::OperatorAccessNotReady),
        (json!({"operatorAccessReady": true}), Reason::OperatorTokenSecretRefMissing),
        (
            json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": " "}}),
            Reason::OperatorTokenSecretRefInvalid,
        ),
    ] {
        let blocker = credentials_of_pool(&pool(&json!({})), Some(&plane(status))).unwrap_err();
        assert_eq!(blocker.reason, reason);
    }
    let blocker = credentials_of_pool(&pool(&json!({})), None).unwrap_err();
    assert_eq!(blocker.reason, Reason::OperatorAccessNotReady);
    assert!(blocker.message.contains("CoderControlPlane coder does not exist"));
}

#[test]
fn the_key_of_a_token_is_token_unless_it_is_named() {
    for (key, expected) in [(json!(null), "token"), (json!(""), "token"), (json!("other"), "other")] {
        let status =
            json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": "t", "key": key}});
        let found = credentials_of_pool(&pool(&json!({})), Some(&plane(status))).unwrap();
        assert_eq!(found.secret, Some(SecretDataRef { name: "t".into(), key: expected.into() }));
    }
}

#[test]
fn credentials_of_its_own_are_used_alone() {
    let own = pool(&json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}}));
    let found = credentials_of_pool(&own, None).unwrap();
    assert_eq!(found.kind, CredentialsKind::Bootstrap);
    assert_eq!(found.secret, Some(SecretDataRef { name: "mine".into(), key: "token".into() }));
}
