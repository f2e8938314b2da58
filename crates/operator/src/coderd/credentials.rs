//! Which Secret holds the session token that an object uses in coderd.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason};
use coder_k8s_core::{
    outcome::Blocker,
    target::{Credentials, CredentialsKind, SecretDataRef},
};
use secrecy::SecretString;

use super::targets;
use crate::controller::Context;

/// The key of a token where neither spec nor status names one.
pub(crate) const DEFAULT_TOKEN_KEY: &str = "token";

/// Where a pool's credentials are: its own, else the control plane's.
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

/// Where the operator token of a control plane is.
pub(crate) fn operator_token(name: &str, plane: Option<&CoderControlPlane>) -> Result<Credentials, Blocker> {
    let status = plane.and_then(|plane| plane.status.as_ref());
    if status.is_none_or(|status| status.operator_access_ready != Some(true)) {
        let message = format!("waiting for status.operatorAccessReady=true on CoderControlPlane {name}");
        return Err(Blocker::new(Reason::OperatorAccessNotReady, message));
    }
    match status.and_then(|status| status.operator_token_secret_ref.as_ref()) {
        None => {
            let message = format!("status.operatorTokenSecretRef of CoderControlPlane {name} is not set");
            Err(Blocker::new(Reason::OperatorTokenSecretRefMissing, message))
        }
        Some(reference) if reference.name.trim().is_empty() => {
            let message =
                format!("status.operatorTokenSecretRef of CoderControlPlane {name} has an empty name");
            Err(Blocker::new(Reason::OperatorTokenSecretRefInvalid, message))
        }
        Some(reference) => {
            let secret = Some(SecretDataRef::of(reference, DEFAULT_TOKEN_KEY));
            Ok(Credentials { kind: CredentialsKind::Operator, secret })
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

/// Whether credentials are in their Secret. `reason` says so if they are not.
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

/// A token is not in its Secret.
pub(crate) fn missing(reason: Reason, secret: &SecretDataRef) -> Blocker {
    let message =
        format!("Secret {} does not exist, or its key {} is missing or empty", secret.name, secret.key);
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
        for (status, reason) in [
            (json!({}), Reason::OperatorAccessNotReady),
            (json!({"operatorAccessReady": false}), Reason::OperatorAccessNotReady),
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
        assert!(blocker.message.contains("status.operatorAccessReady=true"));
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
