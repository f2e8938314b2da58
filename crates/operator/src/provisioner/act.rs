//! All effects of a pass that need no coderd, in order. One that fails does not stop the others.

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    object,
    provisioner::{
        Observed, Outcome, Plan, deployment,
        keys::{Decision, NextStep, Run},
    },
    rollout::Rollout,
};
use coder_k8s_engine::apply::Owner;

use super::scale_down;
use crate::controller::{
    Context, accounts,
    children::{self, apply, budget},
    finalizer, pods, workspaces,
};

/// Carries the plan out.
pub(super) async fn act(observed: &Observed, plan: &Plan, run: Option<&Run>, ctx: &Context) -> Outcome {
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
pub(super) async fn roll_out(observed: &Observed, run: Option<&Run>, ctx: &Context, outcome: &mut Outcome) {
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

/// Lets an object go of which nothing is left outside. Returns whether it was written.
pub(super) async fn release(
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
