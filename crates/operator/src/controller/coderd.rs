//! Clients of the coderd of a control plane, and the credentials that pools use there.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner};
use coder_k8s_coderd::{Client, Target};
use coder_k8s_core::{
    controlplane::access_url,
    provisioner::keys::{Credentials, CredentialsKind, SecretPlace, Trouble},
};
use coder_k8s_engine::secret;
use kube::ResourceExt;

use super::Context;

/// The address at which the operator calls the coderd of a control plane.
pub(crate) fn url(plane: &CoderControlPlane) -> String {
    let access = &plane.spec.operator_access;
    match (&access.api_url, &access.ca_secret_ref) {
        (Some(url), _) => url.to_string(),
        (None, Some(_)) => access_url::https_url(plane),
        (None, None) => access_url::http_url(plane),
    }
}

/// A client without a credential.
pub(crate) async fn client(plane: &CoderControlPlane, ctx: &Context) -> Result<Client, Trouble> {
    let trouble = |message: String| Trouble { reason: "ControlPlaneUnavailable", message };
    let mut ca = None;
    if let Some(reference) = &plane.spec.operator_access.ca_secret_ref {
        let data_key = reference.key.as_ref().map_or("ca.crt", AsRef::as_ref);
        let namespace = plane.namespace().unwrap_or_default();
        let read = secret::read(&ctx.client, &namespace, reference.name.as_str()).await;
        let held = read.map_err(|error| trouble(error.to_string()))?;
        ca = held.and_then(|held| held.value(data_key).map(<[u8]>::to_vec));
        if ca.is_none() {
            let name = &reference.name;
            return Err(trouble(format!(
                "Secret {name} with the key {data_key}, the CA of coderd, is not there"
            )));
        }
    }
    let target = Target { url: url(plane), ca, token: None };
    ctx.connector.to(&target).map_err(|bad| trouble(format!("coderd cannot be called: {bad}")))
}

/// Where a pool's credentials are: its own, else the control plane's.
pub(crate) fn credentials(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
) -> Result<Credentials, Trouble> {
    if let Some(bootstrap) = &object.spec.bootstrap {
        let reference = &bootstrap.credentials_secret_ref;
        let key = reference.key.as_ref().map_or("token", AsRef::as_ref).to_owned();
        let secret = Some(SecretPlace { name: reference.name.to_string(), key });
        return Ok(Credentials { kind: CredentialsKind::Bootstrap, secret });
    }
    let name = &object.spec.control_plane_ref.name;
    let status = plane.and_then(|plane| plane.status.as_ref());
    if status.is_none_or(|status| status.operator_access_ready != Some(true)) {
        let message = format!("waiting for status.operatorAccessReady=true on CoderControlPlane {name}");
        return Err(Trouble { reason: "OperatorAccessNotReady", message });
    }
    match status.and_then(|status| status.operator_token_secret_ref.as_ref()) {
        None => {
            let message = format!("CoderControlPlane {name} names no Secret with its token");
            Err(Trouble { reason: "OperatorTokenSecretRefMissing", message })
        }
        Some(reference) if reference.name.trim().is_empty() => {
            let message = format!("CoderControlPlane {name} names a Secret with its token by an empty name");
            Err(Trouble { reason: "OperatorTokenSecretRefInvalid", message })
        }
        Some(reference) => {
            let key = reference.key.clone().filter(|key| !key.is_empty());
            let key = key.unwrap_or_else(|| "token".to_owned());
            let secret = Some(SecretPlace { name: reference.name.clone(), key });
            Ok(Credentials { kind: CredentialsKind::Operator, secret })
        }
    }
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
            (json!({}), "OperatorAccessNotReady"),
            (json!({"operatorAccessReady": false}), "OperatorAccessNotReady"),
            (json!({"operatorAccessReady": true}), "OperatorTokenSecretRefMissing"),
            (
                json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": " "}}),
                "OperatorTokenSecretRefInvalid",
            ),
        ] {
            let trouble = credentials(&pool(&json!({})), Some(&plane(status))).unwrap_err();
            assert_eq!(trouble.reason, reason);
        }
        let trouble = credentials(&pool(&json!({})), None).unwrap_err();
        assert!(trouble.message.contains("status.operatorAccessReady=true"));
    }

    #[test]
    fn the_key_of_a_token_is_token_unless_it_is_named() {
        for (key, expected) in [(json!(null), "token"), (json!(""), "token"), (json!("other"), "other")] {
            let status =
                json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": "t", "key": key}});
            let found = credentials(&pool(&json!({})), Some(&plane(status))).unwrap();
            assert_eq!(found.secret, Some(SecretPlace { name: "t".into(), key: expected.into() }));
        }
    }

    #[test]
    fn credentials_of_its_own_are_used_alone() {
        let own = pool(&json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}}));
        let found = credentials(&own, None).unwrap();
        assert_eq!(found.kind, CredentialsKind::Bootstrap);
        assert_eq!(found.secret, Some(SecretPlace { name: "mine".into(), key: "token".into() }));
    }
}
