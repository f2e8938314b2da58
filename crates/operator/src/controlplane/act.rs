//! All effects of a pass, in order. One that fails does not stop the others.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::names::{component, finalizer as name};
use coder_k8s_core::{
    controlplane::{self, Desired, Observed, Outcome, Plan, coderd::access},
    object,
    outcome::ActResult,
    pod,
    rollout::Rollout,
    service,
};
use coder_k8s_engine::{apply::Owner, failure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use crate::controller::{
    Context, accounts,
    children::{self, apply, budget},
    exposure, finalizer, pods, workspaces,
};

/// Carries the plan out.
pub(super) async fn act(observed: &Observed, plan: &Plan, ctx: &Context) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(owner) = children::owner_of(&*observed.object, component::CONTROL_PLANE) else { return outcome };
    if let Some(desired) = &plan.desired {
        // What will be outside must be known to need cleaning before it is there.
        if plan.finalizer && set_finalizer(observed, true, ctx, &mut outcome).await.is_break() {
            return outcome;
        }
        create(observed, desired, &owner, ctx, &mut outcome).await;
    }
    workspaces::act(&plan.workspaces, &owner, ctx, &mut outcome.done, &mut outcome.grant_blockers).await;
    if !plan.finalizer {
        let clean = !(observed.is_deleting() && access::needs_cleaning(&observed.object, &observed.coderd))
            && outcome.grant_blockers.is_empty()
            && (!object::has_finalizer(&*observed.object, name::CONTROL_PLANE)
                || workspaces::nothing_left(&observed.grantee(), ctx, &mut outcome.done).await);
        if clean {
            let _ = set_finalizer(observed, false, ctx, &mut outcome).await;
        }
    }
    outcome.done.foreign.extend(observed.coderd.foreign.clone());
    outcome
}

async fn set_finalizer(
    observed: &Observed,
    desired: bool,
    ctx: &Context,
    outcome: &mut Outcome,
) -> ControlFlow<()> {
    let set = finalizer::set(&*observed.object, name::CONTROL_PLANE, desired, ctx, &mut outcome.done).await;
    set.map_break(|written| outcome.object_written = written == finalizer::Written::Yes)
}

/// Makes the children be as wanted.
async fn create(observed: &Observed, desired: &Desired, owner: &Owner, ctx: &Context, outcome: &mut Outcome) {
    let held = &observed.children;
    let done = &mut outcome.done;
    accounts::make(&desired.accounts, owner, ctx, done).await;
    let service = apply(ctx, owner, desired.service.clone(), held.service.clone(), done).await;
    // The Service shows the family of the pods' addresses. Without one it stays what it was.
    let before = || held.deployment.as_deref().is_some_and(pod::is_ipv6);
    let ipv6 = service.as_deref().map_or_else(before, service::is_ipv6);
    outcome.deployment = roll_out(observed, desired, owner, ctx, ipv6, done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pod_message = pods::complaint(&ctx.client, &owner.namespace, &observed.selector()).await;
    }
    outcome.exposure =
        exposure::expose(&desired.exposure, held.ingress.clone(), held.route.clone(), owner, ctx, done).await;
    budget(ctx, owner, desired.budget.as_ref(), held.budget.clone(), done).await;
    accounts::clear(&desired.accounts, owner, ctx, done).await;
}

async fn roll_out(
    observed: &Observed,
    desired: &Desired,
    owner: &Owner,
    ctx: &Context,
    ipv6: bool,
    done: &mut ActResult,
) -> Option<Arc<Deployment>> {
    let held = observed.children.deployment.clone();
    let sources = match &observed.sources {
        Ok(sources) => sources,
        Err(failure) => {
            // Without them the pods would be made once now and once more later. What runs goes on.
            done.failures.push(failure.clone());
            return held;
        }
    };
    if let Some(live) = held.as_deref().filter(|_| desired.hand_over_replicas)
        && let Err(error) = ctx.applier.hand_over_replicas(live).await
    {
        let what = format!("hand the scale of Deployment {} over", live.name_any());
        done.failures.push(failure::from_kube(&what, &error));
        return held;
    }
    apply(ctx, owner, controlplane::deployment::build(observed, sources, ipv6), held, done).await
}
