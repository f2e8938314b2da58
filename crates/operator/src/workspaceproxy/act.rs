//! All effects of a reconcile, in order: children, then the registration in coderd, then the Deployment if the token
//! changed, then the finalizer. One that fails does not stop the others.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    license_gate::LicenseGate,
    object,
    outcome::Retry,
    pod,
    rollout::Rollout,
    service,
    workload::Run,
    workspaceproxy::{
        Desired, Observed, Outcome, deployment,
        registration::{Decision, Health, NextStep},
    },
};
use coder_k8s_engine::{apply::Owner, queue::Action};

use super::registration::RegistrationReconciler;
use crate::{
    coderd::credential,
    controller::{
        Context, accounts,
        children::{self, apply, budget},
        exposure, finalizer, pods,
    },
};

/// What the effects of a reconcile brought.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The last decision about the registration.
    pub(super) decision: Decision,
    /// How coderd sees the proxy. None: coderd was not asked.
    pub(super) health: Option<Health>,
    /// When to ask coderd again.
    pub(super) retry: Option<Retry>,
}

/// Performs the effects. Breaks with the requeue if the object itself was written, so that what was observed is outdated.
pub(super) async fn act(
    observed: &Observed,
    desired: Option<&Desired>,
    mut registration: RegistrationReconciler,
    ctx: &Arc<Context>,
) -> ControlFlow<Action, Done> {
    // Pods are scaled and updated whatever coderd answers, with the token that they have so far.
    let mut outcome = apply_children(observed, desired, registration.state.first_run.as_ref(), ctx).await;
    let decision = credential::run_steps(&mut registration).await;
    let retry = registration.state.retry;
    if registration.state.object_written {
        let requeue = retry.map(|retry| ctx.verify_schedule.failed(&registration.state.key, retry));
        return ControlFlow::Break(requeue.unwrap_or_else(|| ctx.requeue_own_write()));
    }
    if decision.run.as_ref() != registration.state.first_run.as_ref() {
        roll_out(observed, decision.run.as_ref(), ctx, &mut outcome).await;
    }
    if remove_finalizer(observed, &decision, ctx, &mut outcome).await {
        return ControlFlow::Break(ctx.requeue_own_write());
    }
    let health = registration.health();
    ControlFlow::Continue(Done { outcome, decision, health, retry })
}

/// Creates, updates and removes the children.
async fn apply_children(
    observed: &Observed,
    desired: Option<&Desired>,
    run: Option<&Run>,
    ctx: &Context,
) -> Outcome {
    let held = &observed.children;
    let mut outcome = Outcome { deployment: held.deployment.clone(), ..Outcome::default() };
    let (Some(owner), Some(desired)) = (owner(observed), desired) else { return outcome };
    accounts::make(&desired.accounts, &owner, ctx, &mut outcome.done).await;
    let service = apply(ctx, &owner, desired.service.clone(), held.service.clone(), &mut outcome.done).await;
    outcome.service = service.is_some();
    // The Service shows the family of the pods' addresses. Without one it stays what it was.
    let before = || held.deployment.as_deref().is_some_and(pod::is_ipv6);
    outcome.ipv6 = service.as_deref().map_or_else(before, service::is_ipv6);
    roll_out(observed, run, ctx, &mut outcome).await;
    let (ingress, route) = (held.ingress.clone(), held.route.clone());
    outcome.exposure =
        exposure::expose(&desired.exposure, ingress, route, &owner, ctx, &mut outcome.done).await;
    budget(ctx, &owner, desired.budget.as_ref(), held.budget.clone(), &mut outcome.done).await;
    accounts::clear(&desired.accounts, &owner, ctx, &mut outcome.done).await;
    outcome
}

/// Writes the Deployment. A proxy without a token, or the first one without a license, has none.
async fn roll_out(observed: &Observed, run: Option<&Run>, ctx: &Context, outcome: &mut Outcome) {
    let Some(owner) = owner(observed).filter(|_| !object::is_deleting(&*observed.object)) else { return };
    let may_begin = outcome.deployment.is_some() || observed.gate.as_ref().is_none_or(LicenseGate::may_begin);
    let Some(run) = run.filter(|_| may_begin) else { return };
    let sources = match &observed.sources {
        Ok(sources) => sources,
        Err(failure) => {
            if !outcome.done.failures.contains(failure) {
                outcome.done.failures.push(failure.clone());
            }
            return;
        }
    };
    let Some(desired) = deployment::build(observed, sources, run, outcome.ipv6) else { return };
    let held = outcome.deployment.clone();
    outcome.deployment = apply(ctx, &owner, desired, held, &mut outcome.done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pod_message = pods::complaint(&ctx.client, &owner.namespace, &observed.selector()).await;
    }
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

fn owner(observed: &Observed) -> Option<Owner> {
    children::owner_of(&*observed.object, component::WORKSPACE_PROXY)
}
