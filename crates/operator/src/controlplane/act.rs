//! All effects of a reconcile, in order: finalizer, children, workspace access, removal of the finalizer.
//!
//! One that fails is noted and does not stop the others. Everything to do is in the plan of `core::controlplane`.

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
use coder_k8s_engine::{apply::Owner, client, queue::Action};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::observe::Observation;
use crate::controller::{
    Context,
    children::{self, apply},
    exposure, finalizer, pods, workspaces,
};

/// Performs the effects. Breaks with the requeue if the object itself was written, so that what was observed is outdated.
pub(super) async fn act(
    observation: &Observation,
    plan: &Plan,
    ctx: &Context,
) -> ControlFlow<Action, Outcome> {
    let mut outcome = perform(&observation.plane, plan, ctx).await;
    if outcome.object_written {
        return ControlFlow::Break(ctx.requeue_own_write());
    }
    outcome.grant_blockers.extend(observation.unknown_consent.iter().cloned());
    ControlFlow::Continue(outcome)
}

async fn perform(observed: &Observed, plan: &Plan, ctx: &Context) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(owner) = children::owner_of(&*observed.object, component::CONTROL_PLANE) else { return outcome };
    if let Some(desired) = &plan.desired {
        // Before anything is created outside the namespace, so that a deletion at any time cleans it up.
        if plan.finalizer && set_finalizer(observed, true, ctx, &mut outcome).await.is_break() {
            return outcome;
        }
        apply_children(observed, desired, &owner, ctx, &mut outcome).await;
    }
    workspaces::act(&plan.workspaces, &owner, ctx, &mut outcome.done, &mut outcome.grant_blockers).await;
    if !plan.finalizer && is_cleaned_up(observed, ctx, &mut outcome).await {
        let _ = set_finalizer(observed, false, ctx, &mut outcome).await;
    }
    outcome.done.foreign.extend(observed.coderd.foreign.clone());
    outcome
}

/// Whether nothing is left in coderd or in other namespaces, so that the finalizer can be removed. Other namespaces are
/// listed only if the object has the finalizer: without it there is nothing to remove.
async fn is_cleaned_up(observed: &Observed, ctx: &Context, outcome: &mut Outcome) -> bool {
    !(observed.is_deleting() && access::needs_cleaning(&observed.object, &observed.coderd))
        && outcome.grant_blockers.is_empty()
        && (!object::has_finalizer(&*observed.object, name::CONTROL_PLANE)
            || workspaces::all_removed(&observed.grantee(), ctx, &mut outcome.done).await)
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

/// Creates, updates and removes the children. The ServiceAccount and the Service come before the Deployment that needs them,
/// and an earlier ServiceAccount is removed after it.
async fn apply_children(
    observed: &Observed,
    desired: &Desired,
    owner: &Owner,
    ctx: &Context,
    outcome: &mut Outcome,
) {
    let cached = &observed.children;
    let done = &mut outcome.done;
    children::apply_accounts(&desired.accounts, owner, ctx, done).await;
    let service = apply(ctx, owner, desired.service.clone(), cached.service.clone(), done).await;
    // The API server gives the Service an address of the cluster's IP family, which is that of the pods too. If the Service
    // cannot be read, the Deployment keeps its family.
    let present_family = || cached.deployment.as_deref().is_some_and(pod::is_ipv6);
    let ipv6 = service.as_deref().map_or_else(present_family, service::is_ipv6);
    outcome.deployment = roll_out(observed, desired, owner, ctx, ipv6, done).await;
    if Rollout::of(outcome.deployment.as_deref()).is_stalled() {
        outcome.pod_message =
            pods::failure_message(&ctx.client, &owner.namespace, &observed.selector()).await;
    }
    outcome.exposure =
        exposure::expose(&desired.exposure, cached.ingress.clone(), cached.route.clone(), owner, ctx, done)
            .await;
    children::apply_budget(ctx, owner, desired.budget.as_ref(), cached.budget.clone(), done).await;
    children::remove_obsolete_accounts(&desired.accounts, owner, ctx, done).await;
}

/// Applies the Deployment. Returns it as it is now.
async fn roll_out(
    observed: &Observed,
    desired: &Desired,
    owner: &Owner,
    ctx: &Context,
    ipv6: bool,
    done: &mut ActResult,
) -> Option<Arc<Deployment>> {
    let cached = observed.children.deployment.clone();
    let sources = match &observed.sources {
        Ok(sources) => sources,
        Err(failure) => {
            // The checksums of the sources are part of the pod template: without them the pods would be replaced now and
            // once more when the sources can be read. The existing pods keep running.
            done.failures.push(failure.clone());
            return cached;
        }
    };
    // First another field manager takes `replicas` over: a field that its only manager stops applying falls back to its
    // default, which is 1.
    if let Some(live) = cached.as_deref().filter(|_| desired.hand_over_replicas)
        && let Err(error) = ctx.applier.hand_over_replicas(live).await
    {
        let what = format!("hand over the replicas of Deployment {}", live.name_any());
        done.failures.push(client::blocker(&what, &error));
        return cached;
    }
    apply(ctx, owner, controlplane::deployment::build(observed, sources, ipv6), cached, done).await
}
