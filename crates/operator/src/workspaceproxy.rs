//! CoderWorkspaceProxy: a proxy, its registration in coderd, and the pods that run it.
//!
//! A reconcile observes, decides, acts and writes the status. It calls coderd, after everything that needs no coderd is done,
//! and shares the wide queue of the pools.
//!
//! An address in a spec is called only if it is that of a control plane of the same namespace, or if
//! `--allowed-coder-urls` lists it. Otherwise not even a request without a credential is sent, so that a spec cannot make
//! the operator probe the network.

pub(crate) mod registration;

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
};

use coder_k8s_api::{
    CoderControlPlane, CoderWorkspaceProxy, CredentialBinding, ProxyBootstrap, Reason,
    condition::condition_type, names::finalizer as name,
};
use coder_k8s_coderd::Server;
use coder_k8s_core::{
    license_gate::{Feature, LicenseGate},
    names, object,
    outcome::{ActResult, Blocker, Retry},
    pod,
    provisioner::pods_url,
    service, sources,
    target::{CoderdTarget, Credentials, CredentialsKind, SecretDataRef},
    workload::PodCredential,
    workspaceproxy::{
        self, Children, Desired, Observed, Outcome, TOKEN, addresses, build_deployment,
        registration::{Decision, Health, NextStep, RegistrationRecord, health},
    },
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey, queue::Action};
use kube::ResourceExt;
use tokio::time::Instant;

use self::registration::RegistrationReconciler;
use crate::{
    coderd::{
        blocker_at, later, license_gate, retry_of,
        targets::{self, Connections, is_allowed},
    },
    controller::{
        Context,
        children::{self, apply},
    },
    intervals::UNHEALTHY_FACTOR,
};

/// Reconciles one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.current(&ctx.caches.workspace_proxies, &key).await {
        Ok(object) => object,
        Err(requeue) => return requeue,
    };
    if object::is_paused(&*object) {
        let status = workspaceproxy::paused(&object, ctx.now());
        return ctx.finish(&key, &*object, &status, ActResult::default(), started).await;
    }
    let Some((observed, registration)) = observe(&key, object, &ctx).await else {
        return Action::AwaitChange;
    };
    let desired = workspaceproxy::decide(&observed);
    let done = match act(&observed, desired.as_ref(), registration, &ctx).await {
        ControlFlow::Continue(done) => done,
        ControlFlow::Break(requeue) => return requeue,
    };
    let Done { outcome, decision, health, retry, bindings } = done;
    let mut status = workspaceproxy::status(&observed, &outcome, &decision, health.as_ref(), ctx.now());
    status.workload.credential_bindings = bindings;
    status.workload.cleanup_start_time = ctx.cleanup_start(&key, &*observed.object);
    let next = ctx.finish(&key, &*observed.object, &status, outcome.done, started).await;
    let is_unhealthy = health.is_some_and(|health| health.status != "ok");
    let factor = if is_unhealthy && observed.object.spec.replicas > 0 { UNHEALTHY_FACTOR } else { 1.0 };
    let again = [decision.again, observed.gate.as_ref().and_then(|gate| gate.again)];
    ctx.dependents.requeue(&key, next, decision.next.continues(), factor, again, retry)
}

/// Observes the object, its children, the coderd that it registers with, what it refers to, and the Secrets with its token.
/// None: the object was never stored.
///
/// Children and the control plane come from caches; Secrets with tokens are read live. coderd is asked here only for what no
/// control plane publishes: its identity and its entitlements. The registration is queried later, when a decision needs it.
async fn observe(
    key: &ObjectKey,
    object: Arc<CoderWorkspaceProxy>,
    ctx: &Arc<Context>,
) -> Option<(Observed, RegistrationReconciler)> {
    let verify_due = ctx.dependents.is_due(key, &*object, condition_type::REGISTERED);
    let target = find_target(key, &object, verify_due, ctx).await;
    let inspected = addresses(&object).inspected(&object.spec.pod);
    let desired = sources::needed(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    let observed = Observed {
        children: cached_children(key, &object, ctx),
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

fn cached_children(key: &ObjectKey, object: &CoderWorkspaceProxy, ctx: &Context) -> Children {
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
struct ProxyTarget {
    /// The control plane that the object names.
    control_plane: Option<Arc<CoderControlPlane>>,
    /// Whether the license covers proxies. None: nothing is to be registered.
    gate: Option<LicenseGate>,
    /// Whether there is a token to register with. None: nothing is to be registered.
    credentials: Option<Result<(), Blocker>>,
    /// The coderd, or why there is none.
    target: Result<CoderdTarget, Blocker>,
    /// When to retry the identification that failed. None: none failed.
    retry: Option<Retry>,
    /// The servers that were identified on the way.
    connections: Connections,
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
        let credentials = targets::operator_token(name, plane.as_deref())?;
        targets::check_token(&credentials, Reason::OperatorTokenSecretUnavailable, &key.namespace, ctx)
            .await?;
        Ok(credentials)
    };
    let credentials = credentials.await;
    let usable = workspaceproxy::control_plane(name, plane.as_deref());
    let target = usable.and_then(|plane| {
        let deployment_id = plane.status.as_ref().and_then(|status| status.deployment_id.clone());
        let (control_plane, url) = (name.to_owned(), pods_url(plane));
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
        targets::check_token(&credentials, Reason::CredentialsSecretUnavailable, &key.namespace, ctx).await;
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
    let was_entitled =
        conditions.into_iter().any(|c| c.type_ == condition_type::ENTITLED && c.status == "True");
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

/// What the effects brought, as far as the status and the requeue depend on it.
struct Done {
    outcome: Outcome,
    /// The last decision about the registration.
    decision: Decision,
    /// The health of the proxy as coderd reports it. None: coderd was not asked.
    health: Option<Health>,
    /// When to retry the call to coderd that failed. None: none failed.
    retry: Option<Retry>,
    /// The deployments that accepted the object's own credentials.
    bindings: Vec<CredentialBinding>,
}

/// Performs all effects, in order: children, then the registration in coderd, then the Deployment if the token changed, then
/// the finalizer. One that fails is noted and does not stop the others. coderd is called last, so that a server that hangs
/// delays no child.
///
/// Breaks with the requeue if the object itself was written, so that what was observed is outdated.
async fn act(
    observed: &Observed,
    desired: Option<&Desired>,
    mut registration: RegistrationReconciler,
    ctx: &Arc<Context>,
) -> ControlFlow<Action, Done> {
    let owner = match desired {
        Some(Desired { accounts, service, exposure, budget, .. }) => children::owner_of_parts(
            &registration.owner,
            names::proxy_child(&observed.object.name_any()),
            accounts,
            Some(service),
            Some(exposure),
            budget.as_ref(),
        ),
        None => registration.owner.clone(),
    };
    // With the token that the pods have so far: scaling and updates do not wait for coderd.
    let mut outcome =
        apply_children(observed, desired, &owner, registration.present_pod_credential.as_ref(), ctx).await;
    let decision = registration.run().await;
    let (retry, bindings) = (registration.retry, registration.bindings());
    if registration.object_written {
        let requeue = retry.map(|retry| ctx.dependents.failed(&registration.object_key, retry));
        return ControlFlow::Break(requeue.unwrap_or_else(|| ctx.requeue_own_write()));
    }
    if decision.pod_credential != registration.present_pod_credential {
        roll_out(observed, &owner, decision.pod_credential.as_ref(), ctx, &mut outcome).await;
    }
    if remove_finalizer(observed, &decision, ctx, &mut outcome).await {
        return ControlFlow::Break(ctx.requeue_own_write());
    }
    let health = health(&registration.observed);
    ControlFlow::Continue(Done { outcome, decision, health, retry, bindings })
}

/// Creates, updates and removes the children.
async fn apply_children(
    observed: &Observed,
    desired: Option<&Desired>,
    owner: &Owner,
    pod_credential: Option<&PodCredential>,
    ctx: &Context,
) -> Outcome {
    let cached = &observed.children;
    let mut outcome = Outcome { deployment: cached.deployment.clone(), ..Outcome::default() };
    let Some(desired) = desired else { return outcome };
    children::apply_accounts(&desired.accounts, owner, ctx, &mut outcome.done).await;
    let service = apply(ctx, owner, desired.service.clone(), cached.service.clone(), &mut outcome.done).await;
    outcome.service = service.is_some();
    // The Service has an address of the cluster's IP family, which is that of the pods too. If it cannot be read, the
    // Deployment keeps its family.
    let present_family = || cached.deployment.as_deref().is_some_and(pod::is_ipv6);
    outcome.ipv6 = service.as_deref().map_or_else(present_family, service::is_ipv6);
    roll_out(observed, owner, pod_credential, ctx, &mut outcome).await;
    let (ingress, route) = (cached.ingress.clone(), cached.route.clone());
    outcome.exposure =
        children::expose(&desired.exposure, ingress, route, owner, ctx, &mut outcome.done).await;
    children::apply_budget(ctx, owner, desired.budget.as_ref(), cached.budget.clone(), &mut outcome.done)
        .await;
    children::remove_obsolete_accounts(&desired.accounts, owner, ctx, &mut outcome.done).await;
    outcome
}

/// Applies the Deployment. There is none before the proxy has a token, and a new one waits for the license. An existing one
/// keeps running without a license.
async fn roll_out(
    observed: &Observed,
    owner: &Owner,
    pod_credential: Option<&PodCredential>,
    ctx: &Context,
    outcome: &mut Outcome,
) {
    let may_begin = outcome.deployment.is_some() || observed.gate.as_ref().is_none_or(LicenseGate::may_begin);
    let Some(pod_credential) =
        pod_credential.filter(|_| may_begin && !object::is_deleting(&*observed.object))
    else {
        return;
    };
    let Some(sources) = children::readable(&observed.sources, &mut outcome.done) else { return };
    let Some(desired) = build_deployment(observed, sources, pod_credential, outcome.ipv6) else { return };
    let cached = outcome.deployment.take();
    outcome.deployment =
        children::roll_out(ctx, owner, desired, cached, &mut outcome.done, &mut outcome.pod_message).await;
}

/// Removes the finalizer once nothing is left in coderd. Returns whether the object was written.
async fn remove_finalizer(
    observed: &Observed,
    decision: &Decision,
    ctx: &Context,
    outcome: &mut Outcome,
) -> bool {
    if decision.next != NextStep::RemoveFinalizer {
        return false;
    }
    let set =
        children::set_finalizer(&*observed.object, name::WORKSPACE_PROXY, false, ctx, &mut outcome.done)
            .await;
    set.break_value() == Some(children::FinalizerWrite::Yes)
}
