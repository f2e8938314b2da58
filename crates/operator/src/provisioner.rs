//! CoderProvisioner: a pool of provisioner daemons, its key in coderd, and the pods that run them.
//!
//! A reconcile observes, decides, acts and writes the status. It calls coderd, after everything that needs no coderd is done.
//! Reconciles of pools run in a queue of their own, wide enough that a server that hangs delays its own pools alone.

mod daemons;
pub(crate) mod keys;

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::{
    CoderControlPlane, CoderKind, CoderProvisioner, CredentialBinding, Reason, Tls,
    condition::condition_type,
    names::{component, finalizer as name},
};
use coder_k8s_core::{
    autoscaling::ScaleReason,
    object,
    outcome::{EventNote, Retry},
    provisioner::{
        self, Children, Desired, Observed, Outcome, Plan, build_deployment,
        daemons::DaemonHealth,
        keys::{Blocker, Decision, KeyRecord, NextStep, PodCredential},
        license_gate::{Feature, LicenseGate},
        names,
        scaling::ObservedScaling,
    },
    sources,
    target::CredentialsKind,
    workload::Rollout,
    workspace_access,
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey, client, queue::Action};
use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use self::keys::KeyReconciler;
use crate::{
    coderd::{
        license_gate,
        targets::{self, Connections},
    },
    controller::{Context, children, workspaces},
};

pub(crate) use self::daemons::{KnownGenerations, ListedPods, current_deployment, current_pods};

/// Reconciles one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.current(&ctx.caches.provisioners, &key).await {
        Ok(object) => object,
        Err(requeue) => return requeue,
    };
    if object::is_paused(&*object) {
        let (kind, component) = (workspace_access::GranteeKind::Provisioner, component::PROVISIONER);
        let (lost, blockers) = workspaces::review_paused(&key, &*object, kind, component, &ctx).await;
        let status = provisioner::paused(&object, &lost, &blockers, ctx.now());
        let done = workspaces::failures(blockers);
        return ctx.finish(&key, &*object, &status, done, started).await;
    }
    let Some((observed, keys)) = observe(&key, object, &ctx).await else {
        return Action::AwaitChange;
    };
    let plan = provisioner::decide(&observed.pool);
    // Boxed: children and grants are written side by side, which makes the future large.
    let done = match Box::pin(act(&observed, &plan, keys, &ctx)).await {
        ControlFlow::Continue(done) => done,
        ControlFlow::Break(requeue) => return requeue,
    };
    let Done { outcome, decision, health, retry, bindings } = done;
    let mut status = provisioner::status(&observed.pool, &plan, &outcome, &decision, &health, ctx.now());
    status.workload.credential_bindings = bindings;
    status.workload.cleanup_start_time = ctx.cleanup_start(&key, &*observed.pool.object);
    let next = ctx.finish(&key, &*observed.pool.object, &status, outcome.into_done(), started).await;
    ctx.daemon_poller.consider(&observed.pool.object, &health, ctx.now());
    let delays = [decision.again, observed.pool.gate.again, health.again()];
    ctx.dependents.requeue(&key, next, decision.next.continues(), 1.0, delays, retry)
}

struct Observation {
    pool: Observed,
    /// The namespaces whose consent could not be read.
    unknown_consent: workspaces::GrantBlockers,
}

/// Observes the object, its children, its control plane, what it refers to, and the Secrets with its keys. None: the object
/// was never stored.
///
/// Children and the control plane come from caches; Secrets with keys are read live. coderd is asked here only for what no
/// control plane publishes: its identity and its entitlements. Keys are queried later, when a decision needs them.
async fn observe(
    key: &ObjectKey,
    object: Arc<CoderProvisioner>,
    ctx: &Arc<Context>,
) -> Option<(Observation, KeyReconciler)> {
    let verify_due = ctx.dependents.is_due(key, &*object, condition_type::PROVISIONER_KEY_READY);
    let record = object.status.as_ref().map(KeyRecord::of).unwrap_or_default();
    let recorded = record.current.as_ref().map(|key| &key.target);
    let mut connections = Connections::new(&*object, recorded, None);
    let mut children = cached_children(key, &object, ctx);
    let plane = object.spec.control_plane_ref.name.as_str();
    let control_plane = ctx.caches.control_planes.get(&key.namespace, plane);
    let desired = sources::needed(&object.spec.pod, &Tls::default(), &[]);
    let uid = object.uid().unwrap_or_default();
    let mut sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    match daemons::current_deployment(key, &object, ctx).await {
        Ok(current) => children.deployment = current,
        // Nothing is rolled out then, as if a Secret of the pods could not be read.
        Err(error) => {
            let action = format!("read Deployment {}", names::deployment(&key.name));
            sources = Err(client::blocker(&action, &error));
        }
    }
    let (consent, unknown_consent) = workspaces::consent(key, &*object, &object.spec.rbac, ctx).await;
    // A deletion needs neither the license nor more than is on record, and has a deadline.
    let is_deleting = object::is_deleting(&*object);
    let identify = verify_due && !is_deleting;
    let deployment_id = identity(&object, control_plane.as_deref(), &mut connections, identify, ctx).await;
    let gate = if is_deleting {
        LicenseGate::open(Feature::Provisioners)
    } else {
        license_gate::of_plane(Feature::Provisioners, control_plane.as_deref(), ctx).await
    };
    let credentials = check_credentials(&object, control_plane.as_deref(), key, ctx).await;
    let daemons = daemons::observe(key, &object, children.deployment.as_deref(), ctx).await;
    let scaling = ObservedScaling::of(&object, ctx.daemon_poller.decision(&object), ctx.now());
    let pool = Observed {
        object,
        control_plane,
        deployment_id,
        children,
        sources,
        consent,
        grant_policy: ctx.policy.grants,
        gate,
        credentials,
        daemons,
        scaling,
    };
    let keys = keys::begin(key, &pool, connections, verify_due, ctx).await?;
    Some((Observation { pool, unknown_consent }, keys))
}

fn cached_children(key: &ObjectKey, object: &CoderProvisioner, ctx: &Context) -> Children {
    let (caches, namespace) = (&ctx.caches, &key.namespace);
    let deployment = names::deployment(&key.name);
    Children {
        deployment: caches.deployments.get(namespace, &deployment),
        budget: caches.budgets.get(namespace, &deployment),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
        rbac: workspaces::existing(workspace_access::GranteeKind::Provisioner, key, ctx),
        ..Children::default()
    }
}

/// The deployment ID of the control plane. As a rule the sync of the control plane publishes it. With operator access
/// disabled nobody does: then the pool asks coderd when it verifies, and otherwise uses its own record.
async fn identity(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
    connections: &mut Connections,
    verify_due: bool,
    ctx: &Context,
) -> Option<String> {
    let plane = plane?;
    if !plane.spec.operator_access.disabled {
        return plane.status.as_ref()?.deployment_id.clone();
    }
    let status = object.status.as_ref();
    let recorded = status
        .filter(|status| status.control_plane_ref_name.as_deref() == Some(&*plane.name_any()))
        .and_then(|status| status.deployment_id.clone());
    if recorded.is_some() && !verify_due {
        return recorded;
    }
    let server = connections.plane(plane, ctx).await.ok();
    server.map(|server| server.deployment_id().to_owned()).or(recorded)
}

/// Whether the session token that manages keys is in its Secret. Does not ask coderd whether it works.
async fn check_credentials(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
    key: &ObjectKey,
    ctx: &Context,
) -> Result<(), Blocker> {
    let credentials = targets::credentials_of_pool(object, plane)?;
    let reason = match credentials.kind {
        CredentialsKind::Bootstrap => Reason::BootstrapSecretUnavailable,
        CredentialsKind::Operator => Reason::OperatorTokenSecretUnavailable,
    };
    targets::check_token(&credentials, reason, &key.namespace, ctx).await
}

/// What the effects brought, as far as the status and the requeue depend on it.
struct Done {
    outcome: Outcome,
    /// The last decision about the key.
    decision: Decision,
    health: DaemonHealth,
    /// When to retry the call to coderd that failed. None: none failed.
    retry: Option<Retry>,
    /// The deployments that accepted the object's own credentials.
    bindings: Vec<CredentialBinding>,
}

/// Performs all effects, in order: children, then the key in coderd, then the Deployment if the key changed, then the
/// finalizer. One that fails is noted and does not stop the others. coderd is called last, so that a server that hangs delays
/// no child.
///
/// Breaks with the requeue if the object itself was written, so that what was observed is outdated.
async fn act(
    observation: &Observation,
    plan: &Plan,
    mut keys: KeyReconciler,
    ctx: &Arc<Context>,
) -> ControlFlow<Action, Done> {
    let observed = &observation.pool;
    let owner = match &plan.desired {
        Some(Desired { accounts, budget }) => {
            let name = provisioner::names::deployment(&observed.object.name_any());
            children::owner_of_parts(&keys.owner, name, accounts, None, None, budget.as_ref())
        }
        None => keys.owner.clone(),
    };
    // With the key that the pods have so far: scaling and updates do not wait for coderd.
    let mut outcome = apply_children(observed, plan, &owner, keys.present_pod_credential.as_ref(), ctx).await;
    let decision = match daemons::drain(observed, &owner, ctx, &mut outcome.done).await {
        Some(draining) => draining,
        None => keys.run().await,
    };
    let (retry, bindings) = (keys.retry, keys.bindings());
    if keys.object_written {
        let requeue = retry.map(|retry| ctx.dependents.failed(&keys.object_key, retry));
        return ControlFlow::Break(requeue.unwrap_or_else(|| ctx.requeue_own_write()));
    }
    if decision.pod_credential != keys.present_pod_credential {
        roll_out(observed, &owner, decision.pod_credential.as_ref(), ctx, &mut outcome).await;
    }
    outcome.grant_blockers.extend(observation.unknown_consent.iter().cloned());
    if set_finalizer(observed, plan, &decision, ctx, &mut outcome).await {
        return ControlFlow::Break(ctx.requeue_own_write());
    }
    let health = provisioner::daemons::judge(observed, outcome.deployment.as_deref(), &decision, ctx.now());
    daemons::restart_stopped(&health, observed, ctx).await;
    ControlFlow::Continue(Done { outcome, decision, health, retry, bindings })
}

/// Creates, updates and removes the children.
async fn apply_children(
    observed: &Observed,
    plan: &Plan,
    owner: &Owner,
    pod_credential: Option<&PodCredential>,
    ctx: &Context,
) -> Outcome {
    let mut outcome = Outcome { deployment: observed.children.deployment.clone(), ..Outcome::default() };
    let children = async {
        let Some(desired) = &plan.desired else { return };
        children::apply_accounts(&desired.accounts, owner, ctx, &mut outcome.done).await;
        roll_out(observed, owner, pod_credential, ctx, &mut outcome).await;
        let cached = observed.children.budget.clone();
        children::apply_budget(ctx, owner, desired.budget.as_ref(), cached, &mut outcome.done).await;
        children::remove_obsolete_accounts(&desired.accounts, owner, ctx, &mut outcome.done).await;
    };
    let ((), granted) = tokio::join!(children, workspaces::act(&plan.workspaces, owner, ctx));
    granted.add_to(&mut outcome.done, &mut outcome.grant_blockers);
    outcome
}

/// Applies the Deployment. There is none before the pool has a key, and a new one waits for the license. An existing one
/// keeps running without a license.
async fn roll_out(
    observed: &Observed,
    owner: &Owner,
    pod_credential: Option<&PodCredential>,
    ctx: &Context,
    outcome: &mut Outcome,
) {
    let may_begin = outcome.deployment.is_some() || observed.gate.may_begin();
    let Some(pod_credential) =
        pod_credential.filter(|_| may_begin && !object::is_deleting(&*observed.object))
    else {
        return;
    };
    let Some(sources) = children::readable(&observed.sources, &mut outcome.done) else { return };
    let Some(mut desired) = build_deployment(observed, sources, pod_credential) else { return };
    let cached = outcome.deployment.take();
    daemons::prepare_scale_down(observed, &mut desired, cached.as_deref(), ctx).await;
    let before = cached.as_deref().map(|cached| Rollout::of(Some(cached)).desired);
    let failures = outcome.done.failures.len();
    outcome.deployment =
        children::roll_out(ctx, owner, desired, cached, &mut outcome.done, &mut outcome.pod_message).await;
    let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object);
    if outcome.done.failures.len() > failures {
        ctx.known_generations.forget(&key);
    } else {
        ctx.known_generations.record(&key, outcome.deployment.as_deref());
    }
    let after = outcome.deployment.as_deref().map(|written| Rollout::of(Some(written)).desired);
    if let (Some(before), Some(after)) = (before, after) {
        announce_scaling(observed, before, after, ctx).await;
    }
}

/// Publishes an event if the pool is scaled and its replicas changed.
async fn announce_scaling(observed: &Observed, before: i32, after: i32, ctx: &Context) {
    let decision = observed.scaling.as_ref().and_then(ObservedScaling::decision);
    let Some(decision) = decision.filter(|_| before != after) else { return };
    let reason = if after > before { Reason::ScalingUp } else { Reason::ScalingDown };
    let is_said = [ScaleReason::ScalingUp, ScaleReason::ScalingDown].contains(&decision.reason)
        && i32::try_from(decision.desired) == Ok(after);
    let message = match &decision.message {
        message if is_said => message.clone(),
        message => format!("{after} daemons instead of {before}: {message}"),
    };
    tracing::info!(%reason, "{message}");
    let note = EventNote { warning: false, reason, message };
    ctx.events.publish(&observed.object.object_ref(&()), &note).await;
}

/// Adds the finalizer while something outside the namespace must be cleaned up, and removes it from a deleted object once
/// nothing is left. Returns whether the object was written.
async fn set_finalizer(
    observed: &Observed,
    plan: &Plan,
    decision: &Decision,
    ctx: &Context,
    outcome: &mut Outcome,
) -> bool {
    let object = &*observed.object;
    let has_finalizer = object::has_finalizer(object, name::PROVISIONER);
    let desired = if object::is_deleting(object) {
        decision.next != NextStep::RemoveFinalizer
            || (has_finalizer && !grants_are_gone(observed, ctx, outcome).await)
    } else {
        has_finalizer || plan.reaches_outside
    };
    // The API server refuses new finalizers on an object that is being deleted.
    if desired && object::is_deleting(object) {
        return false;
    }
    let set = children::set_finalizer(object, name::PROVISIONER, desired, ctx, &mut outcome.done).await;
    set.break_value() == Some(children::FinalizerWrite::Yes)
}

/// Whether nothing is left in other namespaces, or what is left is abandoned. Asked once nothing is left in coderd.
async fn grants_are_gone(observed: &Observed, ctx: &Context, outcome: &mut Outcome) -> bool {
    let (object, grantee) = (&*observed.object, observed.grantee());
    let Outcome { done, grant_blockers, .. } = outcome;
    let cleanup = ctx.cleanup(object, name::PROVISIONER);
    workspaces::is_cleaned_up(object, &grantee, cleanup, grant_blockers, ctx, done).await
}
