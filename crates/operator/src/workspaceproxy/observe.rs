//! All reads of a reconcile that precede its decisions, and the coderd that the proxy registers with: through a control
//! plane, or at the address of `bootstrap`.
//!
//! Children and the control plane come from caches; Secrets with tokens are read live. coderd is asked here only for what no
//! control plane publishes: its identity and its entitlements. The registration is queried later, when a decision needs it.
//!
//! An address in a spec is called only if it is that of a control plane of the same namespace, or if
//! `--allowed-coder-urls` lists it. Otherwise not even a request without a credential is sent, so that a spec cannot make
//! the operator probe the network.

use std::sync::{Arc, atomic::Ordering};

use coder_k8s_api::{CoderControlPlane, CoderWorkspaceProxy, ProxyBootstrap, Reason, condition::kind};
use coder_k8s_coderd::Server;
use coder_k8s_core::{
    license_gate::{Feature, LicenseGate},
    names, object,
    outcome::{Blocker, Retry},
    provisioner::daemon_url,
    sources,
    target::{CoderdTarget, Credentials, CredentialsKind, SecretDataRef},
    workspaceproxy::{self, Children, Observed, TOKEN, addresses, registration::RegistrationRecord},
};
use coder_k8s_engine::cache::ObjectKey;
use kube::ResourceExt;

use super::registration::{self, RegistrationReconciler};
use crate::{
    coderd::{
        blocker_at, credentials as tokens, later, license_gate, retry_of,
        targets::{self, Connections, is_allowed},
    },
    controller::Context,
};

/// Observes the object, its children, the coderd that it registers with, what it refers to, and the Secrets with its token.
/// None: the object was never stored.
pub(super) async fn observe(
    key: &ObjectKey,
    object: Arc<CoderWorkspaceProxy>,
    ctx: &Arc<Context>,
) -> Option<(Observed, RegistrationReconciler)> {
    let verify_due = ctx.verify_schedule.is_due(key, &*object, kind::REGISTERED);
    let target = find_target(key, &object, verify_due, ctx).await;
    let inspected = addresses(&object).inspected(&object.spec.pod);
    let desired = sources::desired(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    let observed = Observed {
        children: children(key, &object, ctx),
        control_plane: target.control_plane.clone(),
        object,
        sources,
        gateway_api: ctx.gateway_api.load(Ordering::SeqCst),
        gate: target.gate.clone(),
        credentials: target.credentials.clone(),
    };
    let registration = registration::begin(key, &observed, target, verify_due, ctx).await?;
    Some((observed, registration))
}

fn children(key: &ObjectKey, object: &CoderWorkspaceProxy, ctx: &Context) -> Children {
    let (caches, namespace, name) = (&ctx.caches, &key.namespace, names::proxy_child(&key.name));
    Children {
        deployment: caches.deployments.get(namespace, &name),
        service: caches.services.get(namespace, &name),
        ingress: caches.ingresses.get(namespace, &name),
        route: caches.routes.get(namespace, &name),
        budget: caches.budgets.get(namespace, &name),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
        ..Children::default()
    }
}

/// The coderd of a proxy, and what stands in the way of registering there.
pub(super) struct ProxyTarget {
    /// The control plane that the object names.
    pub(super) control_plane: Option<Arc<CoderControlPlane>>,
    /// Whether the license covers proxies. None: nothing is to be registered.
    pub(super) gate: Option<LicenseGate>,
    /// Whether there is a token to register with. None: nothing is to be registered.
    pub(super) credentials: Option<Result<(), Blocker>>,
    /// The coderd, or why there is none.
    pub(super) target: Result<CoderdTarget, Blocker>,
    /// When to retry the identification that failed. None: none failed.
    pub(super) retry: Option<Retry>,
    /// The servers that were identified on the way.
    pub(super) connections: Connections,
}

/// Finds the coderd that the spec names.
async fn find_target(
    key: &ObjectKey,
    object: &CoderWorkspaceProxy,
    verify_due: bool,
    ctx: &Context,
) -> ProxyTarget {
    // A deletion needs neither the license nor more than is on record, and has a deadline.
    let verify_due = verify_due && !object::is_deleting(object);
    if let Some(reference) = &object.spec.control_plane_ref {
        return through_plane(key, object, reference.name.as_str(), ctx).await;
    }
    if let Some(bootstrap) = &object.spec.bootstrap {
        return by_address(key, object, bootstrap, verify_due, ctx).await;
    }
    let message = "spec.proxySessionTokenSecretRef supplies the token".to_owned();
    ProxyTarget::blocked(Blocker::new(Reason::TokenGiven, message), connections(object, None))
}

impl ProxyTarget {
    /// No coderd, because of this.
    fn blocked(blocker: Blocker, connections: Connections) -> Self {
        let target = Err(blocker);
        Self { control_plane: None, gate: None, credentials: None, target, retry: None, connections }
    }
}

async fn through_plane(
    key: &ObjectKey,
    object: &CoderWorkspaceProxy,
    name: &str,
    ctx: &Context,
) -> ProxyTarget {
    let plane = ctx.caches.control_planes.get(&key.namespace, name);
    let gate = if object::is_deleting(object) {
        LicenseGate::open(Feature::Proxies)
    } else {
        license_gate::of_plane(Feature::Proxies, plane.as_deref(), ctx).await
    };
    let credentials = async {
        let credentials = tokens::operator_token(name, plane.as_deref())?;
        tokens::check(&credentials, Reason::OperatorTokenSecretUnavailable, &key.namespace, ctx).await?;
        Ok(credentials)
    };
    let credentials = credentials.await;
    let usable = workspaceproxy::control_plane(name, plane.as_deref());
    let target = usable.and_then(|plane| {
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
    let connections = connections(object, None);
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
    let data_key = reference.key.as_ref().map_or(TOKEN, AsRef::as_ref).to_owned();
    let secret = Some(SecretDataRef { name: reference.name.to_string(), key: data_key });
    let credentials = Credentials { kind: CredentialsKind::Bootstrap, secret };
    let url = bootstrap.coder_url.to_string();
    let mut found = ProxyTarget::blocked(refusal(&url), connections(object, Some(bootstrap)));
    if !is_allowed(&url, &key.namespace, ctx) {
        found.gate = Some(LicenseGate::unknown(format!(
            "the operator may not call {url}: add it to --allowed-coder-urls"
        )));
        found.credentials = Some(Err(refusal(&url)));
        return found;
    }
    let checked =
        tokens::check(&credentials, Reason::CredentialsSecretUnavailable, &key.namespace, ctx).await;
    found.credentials = Some(checked);
    let server = match targets::bootstrap_server(bootstrap, &key.namespace, ctx).await {
        Ok(server) => server,
        Err(blocker) => {
            found.gate = Some(LicenseGate::unknown(blocker.message.clone()));
            found.target = Err(blocker);
            return found;
        }
    };
    found.gate = Some(license(object, &server, verify_due).await);
    let identity = identity(object, &url, &server, verify_due, &mut found).await;
    found.target = identity.map(|id| CoderdTarget {
        control_plane: String::new(),
        url,
        deployment_id: Some(id),
        credentials: Some(credentials),
    });
    found
}

/// Connections without a server. `bootstrap` is that of the spec.
fn connections(object: &CoderWorkspaceProxy, bootstrap: Option<&ProxyBootstrap>) -> Connections {
    let record = object.status.as_ref().map(RegistrationRecord::of).unwrap_or_default();
    Connections::new(object, record.current.as_ref().map(|current| &current.target), bootstrap)
}

fn refusal(url: &str) -> Blocker {
    let message = format!(
        "credentials are not sent to {url}: it is not a control plane of this namespace: add it to --allowed-coder-urls of \
         the operator"
    );
    Blocker::new(Reason::UrlNotAllowed, message)
}

/// Whether the license covers proxies. No control plane publishes that for an address, so that coderd is asked at each
/// verification; in between the condition on status counts.
async fn license(object: &CoderWorkspaceProxy, server: &Server, verify_due: bool) -> LicenseGate {
    let conditions = object.status.iter().flat_map(|status| &status.workload.conditions);
    let was_entitled = conditions.into_iter().any(|c| c.type_ == kind::ENTITLED && c.status == "True");
    if (was_entitled && !verify_due) || object::is_deleting(object) {
        return LicenseGate::open(Feature::Proxies);
    }
    license_gate::of_server(Feature::Proxies, server).await
}

/// The ID of the deployment that answers at the address. Between verifications it is the recorded one.
async fn identity(
    object: &CoderWorkspaceProxy,
    url: &str,
    server: &Server,
    verify_due: bool,
    found: &mut ProxyTarget,
) -> Result<String, Blocker> {
    let status = object.status.as_ref().filter(|status| status.coder_url.as_deref() == Some(url));
    if let Some(known) = status.and_then(|status| status.deployment_id.clone()).filter(|_| !verify_due) {
        return Ok(known);
    }
    match found.connections.identify(url.to_owned(), server).await {
        Ok(server) => Ok(server.deployment_id().to_owned()),
        Err(error) => {
            found.retry = Some(later(found.retry, retry_of(&error)));
            Err(blocker_at(&error, "bootstrap.coderURL"))
        }
    }
}
