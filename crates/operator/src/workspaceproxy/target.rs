//! The coderd that a proxy registers with: where it is, which one it is, and whether it may be talked to.
//!
//! An address in an object is used with a credential only if it is that of a control plane of the same namespace, or if
//! whoever runs the operator allowed it. Otherwise not even an empty request goes there.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderWorkspaceProxy, ProxyBootstrap, Reason, condition::kind};
use coder_k8s_coderd::Server;
use coder_k8s_core::{
    license_gate::{Feature, LicenseGate, Published},
    outcome::{Blocker, Retry},
    provisioner::daemon_url,
    target::{CoderdTarget, Credentials, CredentialsKind, SecretDataRef},
    workspaceproxy::{self},
};
use coder_k8s_engine::cache::ObjectKey;

use crate::{
    coderd::{
        blocker_at, credentials as tokens, later, license_gate, retry_of,
        targets::{self, Connections, is_allowed},
    },
    controller::Context,
};

/// The coderd of a proxy.
pub(super) struct ProxyTarget {
    /// The control plane that the object names.
    pub(super) control_plane: Option<Arc<CoderControlPlane>>,
    /// Whether the license covers proxies. None: nothing is to be registered.
    pub(super) gate: Option<LicenseGate>,
    /// Whether there is a token to register with. None: nothing is to be registered.
    pub(super) credentials: Option<Result<(), Blocker>>,
    /// The coderd, or why there is none.
    pub(super) target: Result<CoderdTarget, Blocker>,
    /// When to try again what was not answered.
    pub(super) retry: Option<Retry>,
    /// The servers that were identified on the way.
    pub(super) connections: Connections,
}

/// Finds the coderd that the spec names.
pub(super) async fn find(
    key: &ObjectKey,
    object: &CoderWorkspaceProxy,
    verify_due: bool,
    ctx: &Context,
) -> ProxyTarget {
    if let Some(reference) = &object.spec.control_plane_ref {
        return through_plane(key, reference.name.as_str(), ctx).await;
    }
    if let Some(bootstrap) = &object.spec.bootstrap {
        return by_address(key, object, bootstrap, verify_due, ctx).await;
    }
    let message = "a person supplies the token".to_owned();
    let target = Err(Blocker::new(Reason::TokenGiven, message));
    let connections = Connections::new(&key.namespace, None);
    ProxyTarget { control_plane: None, gate: None, credentials: None, target, retry: None, connections }
}

async fn through_plane(key: &ObjectKey, name: &str, ctx: &Context) -> ProxyTarget {
    let plane = ctx.caches.control_planes.get(&key.namespace, name);
    let gate = license_gate::of_plane(Feature::Proxies, plane.as_deref(), ctx).await;
    let credentials = async {
        let credentials = tokens::operator_token(name, plane.as_deref())?;
        tokens::check(&credentials, Reason::OperatorTokenSecretUnavailable, &key.namespace, ctx).await?;
        Ok(credentials)
    };
    let credentials = credentials.await;
    let usable = workspaceproxy::control_plane(name, plane.as_deref());
    let unavailable = |message| Blocker::new(Reason::ControlPlaneUnavailable, message);
    let target = usable.map_err(unavailable).and_then(|plane| {
        let deployment_id = plane.status.as_ref().and_then(|status| status.deployment_id.clone());
        let (control_plane, url) = (name.to_owned(), daemon_url(plane));
        credentials.clone().map(|credentials| CoderdTarget {
            control_plane,
            url,
            deployment_id,
            credentials: Some(credentials),
        })
    });
    let (gate, credentials) = (Some(gate), Some(credentials.map(drop)));
    let connections = Connections::new(&key.namespace, None);
    ProxyTarget { control_plane: plane, gate, credentials, target, retry: None, connections }
}

async fn by_address(
    key: &ObjectKey,
    object: &CoderWorkspaceProxy,
    bootstrap: &ProxyBootstrap,
    verify_due: bool,
    ctx: &Context,
) -> ProxyTarget {
    let reference = &bootstrap.credentials_secret_ref;
    let data_key = reference.key.as_ref().map_or("token", AsRef::as_ref).to_owned();
    let secret = Some(SecretDataRef { name: reference.name.to_string(), key: data_key });
    let credentials = Credentials { kind: CredentialsKind::Bootstrap, secret };
    let url = bootstrap.coder_url.to_string();
    let mut found_target = ProxyTarget {
        control_plane: None,
        gate: None,
        credentials: None,
        target: Err(refusal(&url)),
        retry: None,
        connections: Connections::new(&key.namespace, Some(bootstrap)),
    };
    if !is_allowed(&url, &key.namespace, ctx) {
        found_target.gate =
            Some(LicenseGate::unknown(format!("{url} is not asked, because it is not allowed")));
        found_target.credentials = Some(Err(refusal(&url)));
        return found_target;
    }
    let checked =
        tokens::check(&credentials, Reason::CredentialsSecretUnavailable, &key.namespace, ctx).await;
    found_target.credentials = Some(checked);
    let server = match targets::bootstrap_server(bootstrap, &key.namespace, ctx).await {
        Ok(server) => server,
        Err(blocker) => {
            found_target.gate = Some(LicenseGate::unknown(blocker.message.clone()));
            found_target.target = Err(blocker);
            return found_target;
        }
    };
    found_target.gate = Some(license(object, &server, verify_due, ctx).await);
    let identity = identity(object, &url, &server, verify_due, &mut found_target).await;
    found_target.target = identity.and_then(|id| {
        let place = CoderdTarget {
            control_plane: String::new(),
            url,
            deployment_id: Some(id),
            credentials: Some(credentials),
        };
        is_the_same(object, &place).map(|()| place)
    });
    found_target
}

fn refusal(url: &str) -> Blocker {
    let message = format!(
        "credentials are not sent to {url}: it is not a control plane of this namespace, and --allowed-coder-urls of the \
         operator does not list it"
    );
    Blocker::new(Reason::UrlNotAllowed, message)
}

/// Whether the license covers proxies. Nobody asks for this one; at rest what was said stays.
async fn license(
    object: &CoderWorkspaceProxy,
    server: &Server,
    verify_due: bool,
    ctx: &Context,
) -> LicenseGate {
    let conditions = object.status.iter().flat_map(|status| &status.workload.conditions);
    let said = conditions.into_iter().any(|c| c.type_ == kind::ENTITLED && c.status == "True");
    if said && !verify_due {
        return LicenseGate::open(Feature::Proxies);
    }
    let answer = license_gate::answer(Feature::Proxies, server.entitlements().await);
    license_gate::answered(Feature::Proxies, &Published::default(), &answer, ctx)
}

/// Which deployment answers at the address. At rest it is the recorded one.
async fn identity(
    object: &CoderWorkspaceProxy,
    url: &str,
    server: &Server,
    verify_due: bool,
    found_target: &mut ProxyTarget,
) -> Result<String, Blocker> {
    let status = object.status.as_ref().filter(|status| status.coder_url.as_deref() == Some(url));
    if let Some(known) = status.and_then(|status| status.deployment_id.clone()).filter(|_| !verify_due) {
        return Ok(known);
    }
    match found_target.connections.identify(url.to_owned(), server).await {
        Ok(server) => Ok(server.deployment_id().to_owned()),
        Err(error) => {
            found_target.retry = Some(later(found_target.retry, retry_of(&error)));
            Err(blocker_at(&error, "bootstrap.coderURL"))
        }
    }
}

/// A credential belongs to one deployment and is sent to no other.
fn is_the_same(object: &CoderWorkspaceProxy, place: &CoderdTarget) -> Result<(), Blocker> {
    let Some(status) = object.status.as_ref() else { return Ok(()) };
    let known = status.deployment_id.as_ref().is_some_and(|id| Some(id) != place.deployment_id.as_ref());
    let same_way = status.coder_url.as_ref() == Some(&place.url)
        && Credentials::of(status.credentials_source.as_ref()) == place.credentials;
    if !(known && same_way) {
        return Ok(());
    }
    let message = format!(
        "another deployment answers at {} than the one that the proxy is registered in; the credentials were not sent: \
         put a token of this deployment into another Secret, and name that in bootstrap.credentialsSecretRef",
        place.url
    );
    Err(Blocker::new(Reason::DeploymentChanged, message))
}
