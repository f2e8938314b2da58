//! All effects of a reconcile, in order: children, then the registration in coderd, then the Deployment if the token
//! changed, then the finalizer.
//!
//! One that fails is noted and does not stop the others. coderd is called last, so that a server that hangs delays no child.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::{CredentialBinding, names::finalizer as name};
use coder_k8s_core::{
    license_gate::LicenseGate,
    names, object,
    outcome::Retry,
    pod, service,
    workload::Run,
    workspaceproxy::{
        Desired, Observed, Outcome, deployment,
        registration::{Decision, Health, NextStep, health},
    },
};
use coder_k8s_engine::{apply::Owner, queue::Action};
use kube::ResourceExt;

use super::registration::RegistrationReconciler;
use crate::controller::{
    Context,
    children::{self, apply},
    exposure, finalizer,
};

/// What the effects brought, as far as the status and the requeue depend on it.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The last decision about the registration.
    pub(super) decision: Decision,
    /// The health of the proxy as coderd reports it. None: coderd was not asked.
    pub(super) health: Option<Health>,
    /// When to retry the call to coderd that failed. None: none failed.
    pub(super) retry: Option<Retry>,
    /// The deployments that accepted the object's own credentials.
    pub(super) bindings: Vec<CredentialBinding>,
}

/// Performs the effects. Breaks with the requeue if the object itself was written, so that what was observed is outdated.
pub(super) async fn act(
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
    let mut outcome = apply_children(observed, desired, &owner, registration.first_run.as_ref(), ctx).await;
    let decision = registration.run().await;
    let (retry, bindings) = (registration.retry, registration.bindings());
    if registration.object_written {
        let requeue = retry.map(|retry| ctx.verify_schedule.failed(&registration.key, retry));
        return ControlFlow::Break(requeue.unwrap_or_else(|| ctx.requeue_own_write()));
    }
    if decision.run != registration.first_run {
        roll_out(observed, &owner, decision.run.as_ref(), ctx, &mut outcome).await;
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
    run: Option<&Run>,
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
    roll_out(observed, owner, run, ctx, &mut outcome).await;
    let (ingress, route) = (cached.ingress.clone(), cached.route.clone());
    outcome.exposure =
        exposure::expose(&desired.exposure, ingress, route, owner, ctx, &mut outcome.done).await;
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
    run: Option<&Run>,
    ctx: &Context,
    outcome: &mut Outcome,
) {
    let may_begin = outcome.deployment.is_some() || observed.gate.as_ref().is_none_or(LicenseGate::may_begin);
    let Some(run) = run.filter(|_| may_begin && !object::is_deleting(&*observed.object)) else { return };
    let Some(sources) = children::readable(&observed.sources, &mut outcome.done) else { return };
    let Some(desired) = deployment::build(observed, sources, run, outcome.ipv6) else { return };
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
    let set = finalizer::set(&*observed.object, name::WORKSPACE_PROXY, false, ctx, &mut outcome.done).await;
    set.break_value() == Some(finalizer::Written::Yes)
}
