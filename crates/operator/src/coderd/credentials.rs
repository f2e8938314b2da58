//! Finds and reads the session token that an object uses in coderd: its own from `bootstrap`, else the operator token of its
//! control plane.
//!
//! Secrets are read live, and a token is returned only to be attached to an identified server. Nothing here calls coderd.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason, condition::kind};
use coder_k8s_core::{
    outcome::Blocker,
    target::{Credentials, CredentialsKind, SecretDataRef},
};
use secrecy::SecretString;

use super::targets;
use crate::controller::Context;

/// The key in the Secret where neither spec nor status names one.
pub(crate) const DEFAULT_TOKEN_KEY: &str = "token";

/// Where the credentials of a pool are. Those of `bootstrap` are used alone, even if they do not work.
pub(crate) fn of_pool(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
) -> Result<Credentials, Blocker> {
    if let Some(bootstrap) = &object.spec.bootstrap {
        let reference = &bootstrap.credentials_secret_ref;
        let key = reference.key.as_ref().map_or(DEFAULT_TOKEN_KEY, AsRef::as_ref).to_owned();
        let secret = Some(SecretDataRef { name: reference.name.to_string(), key });
        return Ok(Credentials { kind: CredentialsKind::Bootstrap, secret });
    }
    operator_token(object.spec.control_plane_ref.name.as_str(), plane)
}

/// Where the operator token of a control plane is, by its status. The control plane must report it as usable.
pub(crate) fn operator_token(name: &str, plane: Option<&CoderControlPlane>) -> Result<Credentials, Blocker> {
    let status = plane.and_then(|plane| plane.status.as_ref());
    if status.is_none_or(|status| status.operator_access_ready != Some(true)) {
        return Err(no_access(name, plane));
    }
    match status.and_then(|status| status.operator_token_secret_ref.as_ref()) {
        None => {
            let message = format!(
                "status.operatorTokenSecretRef of CoderControlPlane {name} is not set; see its condition OperatorAccessReady"
            );
            Err(Blocker::new(Reason::OperatorTokenSecretRefMissing, message))
        }
        Some(reference) if reference.name.trim().is_empty() => {
            let message = format!(
                "status.operatorTokenSecretRef of CoderControlPlane {name} has an empty name; see its condition \
                 OperatorAccessReady"
            );
            Err(Blocker::new(Reason::OperatorTokenSecretRefInvalid, message))
        }
        Some(reference) => {
            let secret = Some(SecretDataRef::of(reference, DEFAULT_TOKEN_KEY));
            Ok(Credentials { kind: CredentialsKind::Operator, secret })
        }
    }
}

/// The blocker for a control plane without operator access. One that is about to get it is waited for; why another one has
/// none is told by its own condition.
fn no_access(name: &str, plane: Option<&CoderControlPlane>) -> Blocker {
    let conditions =
        plane.iter().filter_map(|plane| plane.status.as_ref()).flat_map(|status| &status.workload.conditions);
    let said = conditions.into_iter().find(|condition| condition.type_ == kind::OPERATOR_ACCESS_READY);
    let reason = said.and_then(Reason::of);
    match (plane, reason) {
        (Some(_), None | Some(Reason::Pending)) => {
            let message = format!(
                "waiting for operator access of CoderControlPlane {name} (status.operatorAccessReady)"
            );
            Blocker::new(Reason::AwaitingControlPlane, message)
        }
        (None, _) => {
            let message =
                format!("CoderControlPlane {name} does not exist, so there is no status.operatorAccessReady");
            Blocker::new(Reason::OperatorAccessNotReady, message)
        }
        (Some(_), Some(reason)) => {
            let message = format!(
                "CoderControlPlane {name} has no operator access (status.operatorAccessReady): {reason}; see its condition \
                 OperatorAccessReady"
            );
            Blocker::new(Reason::OperatorAccessNotReady, message)
        }
    }
}

/// The token in a Secret. None: the Secret or its key does not exist, or the value is empty.
pub(crate) async fn read(
    secret: &SecretDataRef,
    namespace: &str,
    ctx: &Context,
) -> Result<Option<SecretString>, Blocker> {
    let unreadable = |blocker: Blocker| Blocker::new(Reason::SecretUnreadable, blocker.message);
    let data = targets::read_secret(namespace, &secret.name, ctx).await.map_err(unreadable)?;
    Ok(data.and_then(|data| data.text(&secret.key)))
}

/// Whether the credentials are in their Secret. `reason` is that of the blocker if they are not, or cannot be read.
pub(crate) async fn check(
    credentials: &Credentials,
    reason: Reason,
    namespace: &str,
    ctx: &Context,
) -> Result<(), Blocker> {
    let Some(secret) = &credentials.secret else { return Ok(()) };
    let found = read(secret, namespace, ctx).await;
    match found.map_err(|blocker| Blocker { reason, ..blocker })? {
        Some(_) => Ok(()),
        None => Err(missing(reason, secret)),
    }
}

/// The blocker for a token that is not in its Secret.
pub(crate) fn missing(reason: Reason, secret: &SecretDataRef) -> Blocker {
    let message = format!(
        "Secret {} does not exist, or its key {} is missing or empty: create it",
        secret.name, secret.key
    );
    Blocker::new(reason, message)
}

#[cfg(test)]
mod tests {
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
            let blocker = of_pool(&pool(&json!({})), Some(&plane(status))).unwrap_err();
            assert_eq!(blocker.reason, reason);
        }
        let blocker = of_pool(&pool(&json!({})), None).unwrap_err();
        assert_eq!(blocker.reason, Reason::OperatorAccessNotReady);
        assert!(blocker.message.contains("CoderControlPlane coder does not exist"));
    }

    #[test]
    fn the_key_of_a_token_is_token_unless_it_is_named() {
        for (key, expected) in [(json!(null), "token"), (json!(""), "token"), (json!("other"), "other")] {
            let status =
                json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": "t", "key": key}});
            let found = of_pool(&pool(&json!({})), Some(&plane(status))).unwrap();
            assert_eq!(found.secret, Some(SecretDataRef { name: "t".into(), key: expected.into() }));
        }
    }

    #[test]
    fn credentials_of_its_own_are_used_alone() {
        let own = pool(&json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}}));
        let found = of_pool(&own, None).unwrap();
        assert_eq!(found.kind, CredentialsKind::Bootstrap);
        assert_eq!(found.secret, Some(SecretDataRef { name: "mine".into(), key: "token".into() }));
    }
}
