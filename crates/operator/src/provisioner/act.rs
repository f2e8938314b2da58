//! All effects of a reconcile, in order: children, then the key in coderd, then the Deployment if the key changed, then the
//! finalizer. One that fails does not stop the others.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    object,
    outcome::Retry,
    provisioner::{
        self, Observed, Outcome, Plan,
        daemons::Health,
        deployment,
        keys::{Decision, NextStep, Run},
    },
    rollout::Rollout,
};
use coder_k8s_engine::{apply::Owner, queue::Action};

use super::{daemons, drain, keys::KeyReconciler, observe::Observation, scale_down};
use crate::{
    coderd::credential,
    controller::{
        Context, accounts,
        children::{self, apply, budget},
        finalizer, pods, workspaces,
    },
};

/// What the effects of a reconcile brought.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The last decision about the key.
    pub(super) decision: Decision,
    pub(super) health: Health,
    /// When to ask coderd again.
    pub(super) retry: Option<Retry>,
}

/// Performs the effects. Breaks with the requeue if the object itself was written, so that what was observed is outdated.
pub(super) async fn act(
    observation: &Observation,
    plan: &Plan,
    mut keys: KeyReconciler,
    ctx: &Arc<Context>,
) -> ControlFlow<Action, Done> {
    let observed = &observation.pool;
    // Pods are scaled and updated whatever coderd answers, with the key that they have so far.
    let mut outcome = apply_children(observed, plan, keys.state.first_run.as_ref(), ctx).await;
    let decision = match drain::first(observed, ctx, &mut outcome.done).await {
        Some(draining) => draining,
        None => credential::run_steps(&mut keys).await,
    };
    let retry = keys.state.retry;
    if keys.state.object_written {
        let requeue = retry.map(|retry| ctx.verify_schedule.failed(&keys.state.key, retry));
        return ControlFlow::Break(requeue.unwrap_or_else(|| ctx.requeue_own_write()));
    }
    if decision.run.as_ref() != keys.state.first_run.as_ref() {
        roll_out(observed, decision.run.as_ref(), ctx, &mut outcome).await;
    }
    outcome.grant_blockers.extend(observation.unknown_consent.iter().cloned());
    if set_finalizer(observed, plan, &decision, ctx, &mut outcome).await {
        return ControlFlow::Break(ctx.requeue_own_write());
    }
    let health = provisioner::daemons::judge(observed, outcome.deployment.as_deref(), &decision, ctx.now());
    daemons::restart_stopped(&health, observed, ctx).await;
    ControlFlow::Continue(Done { outcome, decision, health, retry })
}

/// Creates, updates and removes the children.
async fn apply_children(observed: &Observed, plan: &Plan, run: Option<&Run>, ctx: &Context) -> Outcome {
    let mut outcome = Outcome { deployment: observed.children.deployment.clone(), ..Outcome::default() };
    let Some(owner) = owner(observed) else { return outcome };
    if let Some(desired) = &plan.desired {
        accounts::make(&desired.accounts, &owner, ctx, &mut outcome.done).await;
    }
    workspaces::act(&plan.workspaces, &owner, ctx, &mut outcome.done, &mut outcome.grant_blockers).await;
    if let Some(desired) = &plan.desired {
        roll_out(observed, run, ctx, &mut outcome).await;
        let held = observed.children.budget.clone();
        budget(ctx, &owner, desired.budget.as_ref(), held, &mut outcome.done).await;
        accounts::clear(&desired.accounts, &owner, ctx, &mut outcome.done).await;
    }
    outcome
}

/// Writes the Deployment. A pool without a key, or the first one without a license, has none.
async fn roll_out(observed: &Observed, run: Option<&Run>, ctx: &Context, outcome: &mut Outcome) {
    let Some(owner) = owner(observed).filter(|_| !object::is_deleting(&*observed.object)) else { return };
    let begun = outcome.deployment.is_some();
    let Some(run) = run.filter(|_| begun || observed.gate.may_begin()) else { return };
    let sources = match &observed.sources {
        Ok(sources) => sources,
        Err(failure) => {
            if !outcome.done.failures.contains(failure) {
                outcome.done.failures.push(failure.clone());
            }
            return;
        }
    };
    let Some(desired) = deployment::build(observed, sources, run) else { return };
    let held = outcome.deployment.clone();
    scale_down::prepare(observed, &desired, held.as_deref(), ctx).await;
    outcome.deployment = apply(ctx, &owner, desired, held, &mut outcome.done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pod_message = pods::complaint(&ctx.client, &owner.namespace, &observed.selector()).await;
    }
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
    let held = object::has_finalizer(object, name::PROVISIONER);
    let desired = if object::is_deleting(object) {
        let free = decision.next == NextStep::RemoveFinalizer
            && outcome.grant_blockers.is_empty()
            && (!held || workspaces::nothing_left(&observed.grantee(), ctx, &mut outcome.done).await);
        !free
    } else {
        held || plan.reaches_outside
    };
    if desired && object::is_deleting(object) {
        return false;
    }
    let set = finalizer::set(object, name::PROVISIONER, desired, ctx, &mut outcome.done).await;
    set.break_value() == Some(finalizer::Written::Yes)
}

pub(super) fn owner(observed: &Observed) -> Option<Owner> {
    children::owner_of(&*observed.object, component::PROVISIONER)
}
