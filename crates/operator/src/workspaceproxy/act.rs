//! All effects of a pass that need no coderd, in order. One that fails does not stop the others.

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    gate::Gate,
    object, pod,
    rollout::Rollout,
    service,
    workload::Run,
    workspaceproxy::{
        Outcome, Seen, Wanted, deployment,
        registration::{Decision, Next},
    },
};
use coder_k8s_engine::gate::Owner;

use crate::controller::{
    Context, accounts,
    children::{self, apply, budget},
    exposure, finalizer, pods,
};

/// Makes the children be as wanted.
pub(super) async fn act(seen: &Seen, wanted: Option<&Wanted>, run: Option<&Run>, ctx: &Context) -> Outcome {
    let held = &seen.children;
    let mut outcome = Outcome { deployment: held.deployment.clone(), ..Outcome::default() };
    let (Some(owner), Some(wanted)) = (owner(seen), wanted) else { return outcome };
    accounts::make(&wanted.accounts, &owner, ctx, &mut outcome.done).await;
    let service = apply(ctx, &owner, wanted.service.clone(), held.service.clone(), &mut outcome.done).await;
    outcome.service = service.is_some();
    // The Service shows the family of the pods' addresses. Without one it stays what it was.
    let before = || held.deployment.as_deref().is_some_and(pod::is_ipv6);
    outcome.ipv6 = service.as_deref().map_or_else(before, service::is_ipv6);
    roll_out(seen, run, ctx, &mut outcome).await;
    let (ingress, route) = (held.ingress.clone(), held.route.clone());
    outcome.exposure =
        exposure::expose(&wanted.exposure, ingress, route, &owner, ctx, &mut outcome.done).await;
    budget(ctx, &owner, wanted.budget.as_ref(), held.budget.clone(), &mut outcome.done).await;
    accounts::clear(&wanted.accounts, &owner, ctx, &mut outcome.done).await;
    outcome
}

/// Writes the Deployment. A proxy without a token, or the first one without a license, has none.
pub(super) async fn roll_out(seen: &Seen, run: Option<&Run>, ctx: &Context, outcome: &mut Outcome) {
    let Some(owner) = owner(seen).filter(|_| !object::is_going(&*seen.object)) else { return };
    let may_begin = outcome.deployment.is_some() || seen.gate.as_ref().is_none_or(Gate::may_begin);
    let Some(run) = run.filter(|_| may_begin) else { return };
    let sources = match &seen.sources {
        Ok(sources) => sources,
        Err(failure) => {
            if !outcome.done.failures.contains(failure) {
                outcome.done.failures.push(failure.clone());
            }
            return;
        }
    };
    let Some(desired) = deployment::build(seen, sources, run, outcome.ipv6) else { return };
    let held = outcome.deployment.clone();
    outcome.deployment = apply(ctx, &owner, desired, held, &mut outcome.done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pods_say = pods::complaint(&ctx.client, &owner.namespace, &seen.selector()).await;
    }
}

/// Takes the finalizer off an object of which nothing is left outside. Returns whether it was written.
pub(super) async fn release(seen: &Seen, decision: &Decision, ctx: &Context, outcome: &mut Outcome) -> bool {
    if decision.next != Next::Release {
        return false;
    }
    let set = finalizer::set(&*seen.object, name::WORKSPACE_PROXY, false, ctx, &mut outcome.done).await;
    set.break_value() == Some(finalizer::Written::Yes)
}

fn owner(seen: &Seen) -> Option<Owner> {
    children::owner_of(&*seen.object, component::WORKSPACE_PROXY)
}
