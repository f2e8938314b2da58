//! All effects of a pass that need no coderd, in order. One that fails does not stop the others.

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    object,
    provisioner::{
        Outcome, Plan, Seen, deployment,
        keys::{Decision, Next, Run},
    },
    rollout::Rollout,
};
use coder_k8s_engine::gate::Owner;

use super::shrink;
use crate::controller::{
    Context, accounts,
    children::{self, apply, budget},
    finalizer, pods, workspaces,
};

/// Carries the plan out.
pub(super) async fn act(seen: &Seen, plan: &Plan, run: Option<&Run>, ctx: &Context) -> Outcome {
    let mut outcome = Outcome { deployment: seen.children.deployment.clone(), ..Outcome::default() };
    let Some(owner) = owner(seen) else { return outcome };
    if let Some(wanted) = &plan.wanted {
        accounts::make(&wanted.accounts, &owner, ctx, &mut outcome.done).await;
    }
    workspaces::act(&plan.workspaces, &owner, ctx, &mut outcome.done, &mut outcome.ungranted).await;
    if let Some(wanted) = &plan.wanted {
        roll_out(seen, run, ctx, &mut outcome).await;
        let held = seen.children.budget.clone();
        budget(ctx, &owner, wanted.budget.as_ref(), held, &mut outcome.done).await;
        accounts::clear(&wanted.accounts, &owner, ctx, &mut outcome.done).await;
    }
    outcome
}

/// Writes the Deployment. A pool without a key, or the first one without a license, has none.
pub(super) async fn roll_out(seen: &Seen, run: Option<&Run>, ctx: &Context, outcome: &mut Outcome) {
    let Some(owner) = owner(seen).filter(|_| !object::is_going(&*seen.object)) else { return };
    let begun = outcome.deployment.is_some();
    let Some(run) = run.filter(|_| begun || seen.gate.may_begin()) else { return };
    let sources = match &seen.sources {
        Ok(sources) => sources,
        Err(failure) => {
            if !outcome.done.failures.contains(failure) {
                outcome.done.failures.push(failure.clone());
            }
            return;
        }
    };
    let Some(desired) = deployment::build(seen, sources, run) else { return };
    let held = outcome.deployment.clone();
    shrink::prepare(seen, &desired, held.as_deref(), ctx).await;
    outcome.deployment = apply(ctx, &owner, desired, held, &mut outcome.done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pods_say = pods::complaint(&ctx.client, &owner.namespace, &seen.selector()).await;
    }
}

/// Lets an object go of which nothing is left outside. Returns whether it was written.
pub(super) async fn release(
    seen: &Seen,
    plan: &Plan,
    decision: &Decision,
    ctx: &Context,
    outcome: &mut Outcome,
) -> bool {
    let object = &*seen.object;
    let held = object::is_held(object, name::PROVISIONER);
    let wanted = if object::is_going(object) {
        let free = decision.next == Next::Release
            && outcome.ungranted.is_empty()
            && (!held || workspaces::nothing_left(&seen.grantee(), ctx, &mut outcome.done).await);
        !free
    } else {
        held || plan.reaches_outside
    };
    if wanted && object::is_going(object) {
        return false;
    }
    let set = finalizer::set(object, name::PROVISIONER, wanted, ctx, &mut outcome.done).await;
    set.break_value() == Some(finalizer::Written::Yes)
}

pub(super) fn owner(seen: &Seen) -> Option<Owner> {
    children::owner_of(&*seen.object, component::PROVISIONER)
}
