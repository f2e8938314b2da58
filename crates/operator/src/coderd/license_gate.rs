//! Clients of the coderd of a control plane, and the credentials and licenses that pools and proxies use there.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason, SecretKeyRef};
use coder_k8s_coderd::{Client, Error, ErrorKind, Target};
use coder_k8s_core::{
    controlplane::access_url,
    license_gate::{self, EntitlementAnswer, Feature, LicenseGate, Published},
    outcome::{Blocker, Retry},
    target::{Credentials, CredentialsKind, SecretDataRef},
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
pub(crate) async fn client(plane: &CoderControlPlane, ctx: &Context) -> Result<Client, Blocker> {
    let (ca, namespace) = (plane.spec.operator_access.ca_secret_ref.as_ref(), plane.namespace());
    let client = anonymous(url(plane), ca, &namespace.unwrap_or_default(), ctx).await;
    client.map_err(|message| Blocker::new(Reason::ControlPlaneUnavailable, message))
}

/// A client without a credential of the coderd at an address, whose certificate a CA in a Secret may vouch for.
pub(crate) async fn anonymous(
    url: String,
    ca: Option<&SecretKeyRef>,
    namespace: &str,
    ctx: &Context,
) -> Result<Client, String> {
    let ca = match ca {
        None => None,
        Some(reference) => match authority(reference, namespace, ctx).await {
            Ok(Some(pem)) => Some(pem),
            Ok(None) => return Err(format!("{}, the CA of coderd, is not there", authority_at(reference))),
            Err(error) => return Err(error.to_string()),
        },
    };
    let target = Target { url, ca, token: None };
    ctx.connector.to(&target).map_err(|bad| format!("coderd cannot be called: {bad}"))
}

/// The certificate authority in a Secret. None: it is not there.
pub(crate) async fn authority(
    reference: &SecretKeyRef,
    namespace: &str,
    ctx: &Context,
) -> Result<Option<Vec<u8>>, secret::Error> {
    let held = secret::read(&ctx.client, namespace, reference.name.as_str()).await?;
    Ok(held.and_then(|held| held.value(authority_key(reference)).map(<[u8]>::to_vec)))
}

/// Where a certificate authority should be, for people.
pub(crate) fn authority_at(reference: &SecretKeyRef) -> String {
    format!("Secret {} with the key {}", reference.name, authority_key(reference))
}

fn authority_key(reference: &SecretKeyRef) -> &str {
    reference.key.as_ref().map_or("ca.crt", AsRef::as_ref)
}

/// Where a pool's credentials are: its own, else the control plane's.
pub(crate) fn credentials(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
) -> Result<Credentials, Blocker> {
    if let Some(bootstrap) = &object.spec.bootstrap {
        let reference = &bootstrap.credentials_secret_ref;
        let key = reference.key.as_ref().map_or("token", AsRef::as_ref).to_owned();
        let secret = Some(SecretDataRef { name: reference.name.to_string(), key });
        return Ok(Credentials { kind: CredentialsKind::Bootstrap, secret });
    }
    operator_token(object.spec.control_plane_ref.name.as_str(), plane)
}

/// Where the operator's token of a control plane is.
pub(crate) fn operator_token(name: &str, plane: Option<&CoderControlPlane>) -> Result<Credentials, Blocker> {
    let status = plane.and_then(|plane| plane.status.as_ref());
    if status.is_none_or(|status| status.operator_access_ready != Some(true)) {
        let message = format!("waiting for status.operatorAccessReady=true on CoderControlPlane {name}");
        return Err(Blocker::new(Reason::OperatorAccessNotReady, message));
    }
    match status.and_then(|status| status.operator_token_secret_ref.as_ref()) {
        None => {
            let message = format!("CoderControlPlane {name} names no Secret with its token");
            Err(Blocker::new(Reason::OperatorTokenSecretRefMissing, message))
        }
        Some(reference) if reference.name.trim().is_empty() => {
            let message = format!("CoderControlPlane {name} names a Secret with its token by an empty name");
            Err(Blocker::new(Reason::OperatorTokenSecretRefInvalid, message))
        }
        Some(reference) => {
            let key = reference.key.clone().filter(|key| !key.is_empty());
            let key = key.unwrap_or_else(|| "token".to_owned());
            let secret = Some(SecretDataRef { name: reference.name.clone(), key });
            Ok(Credentials { kind: CredentialsKind::Operator, secret })
        }
    }
}

/// When to try again after an error, and what was decided so far: not before anybody who asked to be left alone is ready.
pub(crate) fn later(so_far: Option<Retry>, error: &Error) -> Retry {
    let retry = match error.retry() {
        coder_k8s_coderd::Retry::After(wait) => Retry::After(wait),
        coder_k8s_coderd::Retry::OnChange | coder_k8s_coderd::Retry::Backoff => Retry::Backoff,
    };
    match (so_far, retry) {
        (Some(Retry::After(one)), Retry::After(two)) => Retry::After(one.max(two)),
        (Some(Retry::After(wait)), _) => Retry::After(wait),
        (_, retry) => retry,
    }
}

/// What an error says, the same from try to try.
pub(crate) fn blocker(error: &Error) -> Blocker {
    Blocker::new(error.reason(), error.to_string())
}

/// Whether the license covers a feature. The control plane asks for all who need it.
pub(crate) async fn gate(feature: Feature, plane: Option<&CoderControlPlane>, ctx: &Context) -> LicenseGate {
    let published = published(feature, plane);
    let asked = async {
        let Some(plane) = plane else {
            return EntitlementAnswer::Failed("the control plane does not exist".to_owned());
        };
        match client(plane, ctx).await {
            Ok(client) => ask(feature, &client).await,
            Err(blocker) => EntitlementAnswer::Failed(blocker.message),
        }
    };
    match license_gate::decide(feature, &published, None, ctx.now()) {
        license_gate::GateDecision::Know(gate) => gate,
        license_gate::GateDecision::Ask => answered(feature, &published, &asked.await, ctx),
    }
}

/// The gate, given what coderd itself says.
pub(crate) fn answered(
    feature: Feature,
    published: &Published,
    answer: &EntitlementAnswer,
    ctx: &Context,
) -> LicenseGate {
    match license_gate::decide(feature, published, Some(answer), ctx.now()) {
        license_gate::GateDecision::Know(gate) => gate,
        license_gate::GateDecision::Ask => LicenseGate::unknown("coderd was not asked"),
    }
}

/// What the status of a control plane says of a feature.
fn published(feature: Feature, plane: Option<&CoderControlPlane>) -> Published {
    let status = plane.and_then(|plane| plane.status.as_ref());
    let entitlement = match feature {
        Feature::Provisioners => {
            status.and_then(|status| status.external_provisioner_daemons_entitlement.clone())
        }
        // Only what is granted is listed.
        Feature::Proxies => {
            status.filter(|status| status.entitlements_last_checked.is_some()).map(|status| {
                let features = status.entitlements.as_ref().map(|entitlements| &entitlements.features);
                let granted = features.and_then(|features| features.get(feature.name())).cloned();
                granted.unwrap_or_else(|| "not_entitled".to_owned())
            })
        }
    };
    Published {
        entitlement,
        checked: status.and_then(|status| status.entitlements_last_checked.as_ref()).map(|time| time.0),
        kept: plane.is_some_and(|plane| !plane.spec.operator_access.disabled),
    }
}

/// Asks coderd itself. Anybody may.
pub(crate) async fn ask(feature: Feature, client: &Client) -> EntitlementAnswer {
    match client.entitlements().await {
        Ok(all) => {
            let feature = all.features.get(feature.name());
            EntitlementAnswer::Entitlement(feature.map(|feature| feature.entitlement.as_str().to_owned()))
        }
        Err(error) => match error.kind {
            ErrorKind::NotSupported => EntitlementAnswer::NotSupported,
            ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. } => EntitlementAnswer::Forbidden,
            _ => EntitlementAnswer::Failed(error.to_string()),
        },
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
            (json!({}), Reason::OperatorAccessNotReady),
            (json!({"operatorAccessReady": false}), Reason::OperatorAccessNotReady),
            (json!({"operatorAccessReady": true}), Reason::OperatorTokenSecretRefMissing),
            (
                json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": " "}}),
                Reason::OperatorTokenSecretRefInvalid,
            ),
        ] {
            let blocker = credentials(&pool(&json!({})), Some(&plane(status))).unwrap_err();
            assert_eq!(blocker.reason, reason);
        }
        let blocker = credentials(&pool(&json!({})), None).unwrap_err();
        assert!(blocker.message.contains("status.operatorAccessReady=true"));
    }

    #[test]
    fn the_key_of_a_token_is_token_unless_it_is_named() {
        for (key, expected) in [(json!(null), "token"), (json!(""), "token"), (json!("other"), "other")] {
            let status =
                json!({"operatorAccessReady": true, "operatorTokenSecretRef": {"name": "t", "key": key}});
            let found = credentials(&pool(&json!({})), Some(&plane(status))).unwrap();
            assert_eq!(found.secret, Some(SecretDataRef { name: "t".into(), key: expected.into() }));
        }
    }

    #[test]
    fn credentials_of_its_own_are_used_alone() {
        let own = pool(&json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}}));
        let found = credentials(&own, None).unwrap();
        assert_eq!(found.kind, CredentialsKind::Bootstrap);
        assert_eq!(found.secret, Some(SecretDataRef { name: "mine".into(), key: "token".into() }));
    }
}
