//! All effects of a pass that need no coderd, in order. One that fails does not stop the others.

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    license_gate::LicenseGate,
    object, pod,
    rollout::Rollout,
    service,
    workload::Run,
    workspaceproxy::{
        Desired, Observed, Outcome, deployment,
        registration::{Decision, NextStep},
    },
};
use coder_k8s_engine::apply::Owner;

use crate::controller::{
    Context, accounts,
    children::{self, apply, budget},
    exposure, finalizer, pods,
};

/// Makes the children be as wanted.
pub(super) async fn act(
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
pub(super) async fn roll_out(observed: &Observed, run: Option<&Run>, ctx: &Context, outcome: &mut Outcome) {
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

/// Takes the finalizer off an object of which nothing is left outside. Returns whether it was written.
pub(super) async fn release(
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
