//! All effects of a reconcile, in order: children, then the key in coderd, then the Deployment if the key changed, then the
//! finalizer.
//!
//! One that fails is noted and does not stop the others. coderd is called last, so that a server that hangs delays no child.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::{CredentialBinding, Reason, names::finalizer as name};
use coder_k8s_core::{
    autoscaling::ScaleReason,
    object,
    outcome::{EventNote, Retry},
    provisioner::{
        self, Desired, Observed, Outcome, Plan,
        daemons::DaemonHealth,
        deployment,
        keys::{Decision, NextStep, Run},
        scaling::ObservedScaling,
    },
    rollout::Rollout,
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey, queue::Action};
use kube::{Resource, ResourceExt};

use super::{daemons, keys::KeyReconciler, observe::Observation};
use crate::controller::{CoderKind, Context, children, finalizer, workspaces};

/// What the effects brought, as far as the status and the requeue depend on it.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The last decision about the key.
    pub(super) decision: Decision,
    pub(super) health: DaemonHealth,
    /// When to retry the call to coderd that failed. None: none failed.
    pub(super) retry: Option<Retry>,
    /// The deployments that accepted the object's own credentials.
    pub(super) bindings: Vec<CredentialBinding>,
}

/// Performs the effects. Breaks with the requeue if the object itself was written, so that what was observed is outdated.
pub(super) async fn act(
    observation: &Observation,
    plan: &Plan,
    mut keys: KeyReconciler,
    ctx: &Arc<Context>,
) -> ControlFlow<Action, Done> {
    let observed = &observation.pool;
    let owner = match &plan.desired {
        Some(Desired { accounts, budget }) => {
            let name = provisioner::names::deployment(&observed.object.name_any());
            children::owner_of_parts(&keys.owner, name, accounts, None, None, budget.as_ref())
        }
        None => keys.owner.clone(),
    };
    // With the key that the pods have so far: scaling and updates do not wait for coderd.
    let mut outcome = apply_children(observed, plan, &owner, keys.first_run.as_ref(), ctx).await;
    let decision = match daemons::drain(observed, &owner, ctx, &mut outcome.done).await {
        Some(draining) => draining,
        None => keys.run().await,
    };
    let (retry, bindings) = (keys.retry, keys.bindings());
    if keys.object_written {
        let requeue = retry.map(|retry| ctx.verify_schedule.failed(&keys.key, retry));
        return ControlFlow::Break(requeue.unwrap_or_else(|| ctx.requeue_own_write()));
    }
    if decision.run != keys.first_run {
        roll_out(observed, &owner, decision.run.as_ref(), ctx, &mut outcome).await;
    }
    outcome.grant_blockers.extend(observation.unknown_consent.iter().cloned());
    if set_finalizer(observed, plan, &decision, ctx, &mut outcome).await {
        return ControlFlow::Break(ctx.requeue_own_write());
    }
    let health = provisioner::daemons::judge(observed, outcome.deployment.as_deref(), &decision, ctx.now());
    daemons::restart_stopped(&health, observed, ctx).await;
    ControlFlow::Continue(Done { outcome, decision, health, retry, bindings })
}

/// Creates, updates and removes the children.
async fn apply_children(
    observed: &Observed,
    plan: &Plan,
    owner: &Owner,
    run: Option<&Run>,
    ctx: &Context,
) -> Outcome {
    let mut outcome = Outcome { deployment: observed.children.deployment.clone(), ..Outcome::default() };
    let children = async {
        let Some(desired) = &plan.desired else { return };
        children::apply_accounts(&desired.accounts, owner, ctx, &mut outcome.done).await;
        roll_out(observed, owner, run, ctx, &mut outcome).await;
        let cached = observed.children.budget.clone();
        children::apply_budget(ctx, owner, desired.budget.as_ref(), cached, &mut outcome.done).await;
        children::remove_obsolete_accounts(&desired.accounts, owner, ctx, &mut outcome.done).await;
    };
    let ((), granted) = tokio::join!(children, workspaces::act(&plan.workspaces, owner, ctx));
    granted.add_to(&mut outcome.done, &mut outcome.grant_blockers);
    outcome
}

/// Applies the Deployment. There is none before the pool has a key, and a new one waits for the license. An existing one
/// keeps running without a license.
async fn roll_out(
    observed: &Observed,
    owner: &Owner,
    run: Option<&Run>,
    ctx: &Context,
    outcome: &mut Outcome,
) {
    let may_begin = outcome.deployment.is_some() || observed.gate.may_begin();
    let Some(run) = run.filter(|_| may_begin && !object::is_deleting(&*observed.object)) else { return };
    let Some(sources) = children::readable(&observed.sources, &mut outcome.done) else { return };
    let Some(mut desired) = deployment::build(observed, sources, run) else { return };
    let cached = outcome.deployment.take();
    daemons::prepare_scale_down(observed, &mut desired, cached.as_deref(), ctx).await;
    let before = cached.as_deref().map(|cached| Rollout::of(Some(cached)).desired);
    let failures = outcome.done.failures.len();
    outcome.deployment =
        children::roll_out(ctx, owner, desired, cached, &mut outcome.done, &mut outcome.pod_message).await;
    let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &*observed.object);
    if outcome.done.failures.len() > failures {
        ctx.known_generations.forget(&key);
    } else {
        ctx.known_generations.record(&key, outcome.deployment.as_deref());
    }
    let after = outcome.deployment.as_deref().map(|written| Rollout::of(Some(written)).desired);
    if let (Some(before), Some(after)) = (before, after) {
        announce_scaling(observed, before, after, ctx).await;
    }
}

/// Publishes an event if the pool is scaled and its replicas changed.
async fn announce_scaling(observed: &Observed, before: i32, after: i32, ctx: &Context) {
    let decision = observed.scaling.as_ref().and_then(ObservedScaling::decision);
    let Some(decision) = decision.filter(|_| before != after) else { return };
    let reason = if after > before { Reason::ScalingUp } else { Reason::ScalingDown };
    let is_said = [ScaleReason::ScalingUp, ScaleReason::ScalingDown].contains(&decision.reason)
        && i32::try_from(decision.desired) == Ok(after);
    let message = match &decision.message {
        message if is_said => message.clone(),
        message => format!("{after} daemons instead of {before}: {message}"),
    };
    tracing::info!(%reason, "{message}");
    let note = EventNote { warning: false, reason, message };
    ctx.events.publish(&observed.object.object_ref(&()), &note).await;
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
    let has_finalizer = object::has_finalizer(object, name::PROVISIONER);
    let desired = if object::is_deleting(object) {
        decision.next != NextStep::RemoveFinalizer
            || (has_finalizer && !grants_are_gone(observed, ctx, outcome).await)
    } else {
        has_finalizer || plan.reaches_outside
    };
    // The API server refuses new finalizers on an object that is being deleted.
    if desired && object::is_deleting(object) {
        return false;
    }
    let set = finalizer::set(object, name::PROVISIONER, desired, ctx, &mut outcome.done).await;
    set.break_value() == Some(finalizer::Written::Yes)
}

/// Whether nothing is left in other namespaces, or what is left is abandoned. Asked once nothing is left in coderd.
async fn grants_are_gone(observed: &Observed, ctx: &Context, outcome: &mut Outcome) -> bool {
    let (object, grantee) = (&*observed.object, observed.grantee());
    let Outcome { done, grant_blockers, .. } = outcome;
    let cleanup = ctx.cleanup(object, name::PROVISIONER);
    workspaces::is_cleaned_up(object, &grantee, cleanup, grant_blockers, ctx, done).await
}
