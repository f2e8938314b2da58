//! All effects of a pass, in order. One that fails does not stop the others.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    controlplane::{self, Outcome, Plan, Seen, Wanted, coderd::access},
    object,
    outcome::Done,
    pod,
    rollout::Rollout,
    service,
};
use coder_k8s_engine::{failure, gate::Owner};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use crate::controller::{
    Context, accounts,
    children::{self, apply, budget},
    exposure, finalizer, pods, workspaces,
};

/// Carries the plan out.
pub(super) async fn act(seen: &Seen, plan: &Plan, ctx: &Context) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(owner) = children::owner_of(&*seen.object, component::CONTROL_PLANE) else { return outcome };
    if let Some(wanted) = &plan.wanted {
        // What will be outside must be known to need cleaning before it is there.
        if plan.finalizer && set_finalizer(seen, true, ctx, &mut outcome).await.is_break() {
            return outcome;
        }
        create(seen, wanted, &owner, ctx, &mut outcome).await;
    }
    workspaces::act(&plan.workspaces, &owner, ctx, &mut outcome.done, &mut outcome.ungranted).await;
    if !plan.finalizer {
        let clean = !(seen.is_going() && access::needs_cleaning(&seen.object, &seen.coderd))
            && outcome.ungranted.is_empty()
            && (!object::is_held(&*seen.object, name::CONTROL_PLANE)
                || workspaces::nothing_left(&seen.grantee(), ctx, &mut outcome.done).await);
        if clean {
            let _ = set_finalizer(seen, false, ctx, &mut outcome).await;
        }
    }
    outcome.done.foreign.extend(seen.coderd.foreign.clone());
    outcome
}

async fn set_finalizer(seen: &Seen, wanted: bool, ctx: &Context, outcome: &mut Outcome) -> ControlFlow<()> {
    let set = finalizer::set(&*seen.object, name::CONTROL_PLANE, wanted, ctx, &mut outcome.done).await;
    set.map_break(|written| outcome.touched = written == finalizer::Written::Yes)
}

/// Makes the children be as wanted.
async fn create(seen: &Seen, wanted: &Wanted, owner: &Owner, ctx: &Context, outcome: &mut Outcome) {
    let held = &seen.children;
    let done = &mut outcome.done;
    accounts::make(&wanted.accounts, owner, ctx, done).await;
    let service = apply(ctx, owner, wanted.service.clone(), held.service.clone(), done).await;
    // The Service shows the family of the pods' addresses. Without one it stays what it was.
    let before = || held.deployment.as_deref().is_some_and(pod::is_ipv6);
    let ipv6 = service.as_deref().map_or_else(before, service::is_ipv6);
    outcome.deployment = roll_out(seen, wanted, owner, ctx, ipv6, done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pods_say = pods::complaint(&ctx.client, &owner.namespace, &seen.selector()).await;
    }
    outcome.exposure =
        exposure::expose(&wanted.exposure, held.ingress.clone(), held.route.clone(), owner, ctx, done).await;
    budget(ctx, owner, wanted.budget.as_ref(), held.budget.clone(), done).await;
    accounts::clear(&wanted.accounts, owner, ctx, done).await;
}

async fn roll_out(
    seen: &Seen,
    wanted: &Wanted,
    owner: &Owner,
    ctx: &Context,
    ipv6: bool,
    done: &mut Done,
) -> Option<Arc<Deployment>> {
    let held = seen.children.deployment.clone();
    let sources = match &seen.sources {
        Ok(sources) => sources,
        Err(failure) => {
            // Without them the pods would be made once now and once more later. What runs goes on.
            done.failures.push(failure.clone());
            return held;
        }
    };
    if let Some(live) = held.as_deref().filter(|_| wanted.hand_over_replicas)
        && let Err(error) = ctx.gate.hand_over_replicas(live).await
    {
        let what = format!("hand the scale of Deployment {} over", live.name_any());
        done.failures.push(failure::judge(&what, &error));
        return held;
    }
    apply(ctx, owner, controlplane::deployment::build(seen, sources, ipv6), held, done).await
}
