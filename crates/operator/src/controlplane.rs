//! CoderControlPlane: coderd's Deployment, Service, exposure, disruption budget and workspace access.
//!
//! A reconcile observes, decides, acts and writes the status. It never calls coderd: [`coderd_sync`] does, in its own queue,
//! and leaves a report that the next reconcile reads. A server that is slow or dead therefore delays nothing here.

pub(crate) mod coderd_sync;
pub(crate) mod daemon_poll;

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
};

use coder_k8s_api::{
    CoderControlPlane,
    names::{component, finalizer::CONTROL_PLANE as FINALIZER},
};
use coder_k8s_core::{
    controlplane::{self, Children, Desired, Observed, Outcome, Plan, access_url, coderd::access, image},
    object,
    outcome::ActResult,
    pod, service, sources,
    workload::Rollout,
    workspace_access,
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey, client, queue::Action};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use crate::controller::{
    Context,
    children::{self, apply},
    pods, workspaces,
};

/// Reconciles one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.current(&ctx.caches.control_planes, &key).await {
        Ok(object) => object,
        Err(requeue) => return requeue,
    };
    if object::is_paused(&*object) {
        let (kind, component) = (workspace_access::GranteeKind::ControlPlane, component::CONTROL_PLANE);
        let (lost, blockers) = workspaces::review_paused(&key, &*object, kind, component, &ctx).await;
        let status = controlplane::paused(&object, &lost, &blockers, ctx.now());
        let done = workspaces::failures(blockers);
        return ctx.finish(&key, &*object, &status, done, started).await;
    }
    let (observed, unknown_consent) = observe(&key, object, &ctx).await;
    let plan = controlplane::decide(&observed);
    let mut outcome = act(&observed, &plan, &ctx).await;
    if outcome.object_written {
        // What was observed is outdated.
        return ctx.requeue_own_write();
    }
    outcome.grant_blockers.extend(unknown_consent);
    ctx.coderd_sync.consider(&key, &observed.object, outcome.deployment.as_deref());
    let mut status = controlplane::status(&observed, &plan, &outcome, ctx.now());
    status.workload.cleanup_start_time = ctx.cleanup_start(&key, &*observed.object);
    ctx.finish(&key, &*observed.object, &status, outcome.into_done(), started).await
}

/// Observes the object, its children, what it refers to, and what is known of its coderd.
///
/// Children come from caches, which may be outdated: irreversible effects read live again themselves. Secrets, ConfigMaps
/// and Namespaces are read live once, and again when a watch shows a change. What coderd answered comes from the reports of
/// the sync and the daemon poll. Returned besides: the namespaces whose consent could not be read.
async fn observe(
    key: &ObjectKey,
    object: Arc<CoderControlPlane>,
    ctx: &Context,
) -> (Observed, workspaces::GrantBlockers) {
    let children = cached_children(key, &object, ctx);
    let newer_deployment = newer_deployment(key, &object, children.deployment.as_deref(), ctx).await;
    let inspected = access_url::inspected(&object);
    let desired = sources::needed(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    let (consent, unknown_consent) = workspaces::consent(key, &*object, &object.spec.rbac, ctx).await;
    let gateway_api = ctx.gateway_api.load(Ordering::SeqCst);
    let coderd = ctx.coderd_sync.report(key, object.uid().as_ref());
    let inputs = coderd_sync::present_inputs(key, &object, ctx).await;
    let jobs = ctx.daemon_poller.jobs(key, ctx);
    let observed = Observed {
        object,
        children,
        newer_deployment,
        sources,
        consent,
        gateway_api,
        grant_policy: ctx.policy.grants,
        coderd,
        inputs,
        jobs,
    };
    (observed, unknown_consent)
}

/// A later Deployment than the cached one: the one that this process wrote, or the live one where an outdated view would
/// replace an image that has migrated the database.
async fn newer_deployment(
    key: &ObjectKey,
    object: &CoderControlPlane,
    cached: Option<&Deployment>,
    ctx: &Context,
) -> Option<Arc<Deployment>> {
    let written = ctx.applier.newer_than(&key.namespace, &key.name, cached);
    if !image::replaces_newer(object, written.as_deref().or(cached)) {
        return written;
    }
    let api: Api<Deployment> = Api::namespaced(ctx.client.clone(), &key.namespace);
    api.get_opt(&key.name).await.ok().flatten().map(Arc::new).or(written)
}

fn cached_children(key: &ObjectKey, object: &CoderControlPlane, ctx: &Context) -> Children {
    let (caches, namespace, name) = (&ctx.caches, &key.namespace, &key.name);
    Children {
        deployment: caches.deployments.get(namespace, name),
        service: caches.services.get(namespace, name),
        ingress: caches.ingresses.get(namespace, name),
        route: caches.routes.get(namespace, name),
        budget: caches.budgets.get(namespace, name),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
        rbac: workspaces::existing(workspace_access::GranteeKind::ControlPlane, key, ctx),
    }
}

/// All effects of a reconcile, in order: finalizer, children beside workspace access, removal of the finalizer.
///
/// One that fails is noted and does not stop the others. Everything to do is in the plan.
async fn act(observed: &Observed, plan: &Plan, ctx: &Context) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(owner) = children::owner_of(&*observed.object, component::CONTROL_PLANE) else { return outcome };
    // Before anything is created outside the namespace, so that a deletion at any time cleans it up.
    if plan.desired.is_some()
        && plan.finalizer
        && set_finalizer(observed, true, ctx, &mut outcome).await.is_break()
    {
        return outcome;
    }
    let children = async {
        if let Some(desired) = &plan.desired {
            apply_children(observed, desired, &owner, ctx, &mut outcome).await;
        }
    };
    let ((), granted) = tokio::join!(children, workspaces::act(&plan.workspaces, &owner, ctx));
    granted.add_to(&mut outcome.done, &mut outcome.grant_blockers);
    if !plan.finalizer && is_cleaned_up(observed, ctx, &mut outcome).await {
        let _ = set_finalizer(observed, false, ctx, &mut outcome).await;
    }
    outcome.done.foreign.extend(observed.coderd.foreign.clone());
    outcome
}

/// Whether nothing is left in coderd or in other namespaces, or what is left is abandoned, so that the finalizer can be
/// removed. Other namespaces are listed only if the object has the finalizer: without it there is nothing to remove.
async fn is_cleaned_up(observed: &Observed, ctx: &Context, outcome: &mut Outcome) -> bool {
    let (object, grantee) = (&*observed.object, observed.grantee());
    // Begins with the deletion, whatever is to be done in coderd first.
    let cleanup = ctx.cleanup(object, FINALIZER);
    if observed.is_deleting() && access::needs_cleaning(object, &observed.coderd) {
        return false;
    }
    let Outcome { done, grant_blockers, .. } = outcome;
    !object::has_finalizer(object, FINALIZER)
        || workspaces::is_cleaned_up(object, &grantee, cleanup, grant_blockers, ctx, done).await
}

async fn set_finalizer(
    observed: &Observed,
    desired: bool,
    ctx: &Context,
    outcome: &mut Outcome,
) -> ControlFlow<()> {
    let set = children::set_finalizer(&*observed.object, FINALIZER, desired, ctx, &mut outcome.done).await;
    set.map_break(|written| outcome.object_written = written == children::FinalizerWrite::Yes)
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
    let Desired { accounts, service, exposure, budget, .. } = desired;
    let name = observed.object.name_any();
    let owner =
        &children::owner_of_parts(owner, name, accounts, Some(service), Some(exposure), budget.as_ref());
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
        children::expose(&desired.exposure, cached.ingress.clone(), cached.route.clone(), owner, ctx, done)
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
    if let Some(live) = observed.deployment().filter(|_| desired.hand_over_replicas)
        && let Err(error) = ctx.applier.hand_over_replicas(live).await
    {
        let what = format!("hand over the replicas of Deployment {}", live.name_any());
        done.failures.push(client::blocker(&what, &error));
        return cached;
    }
    apply(ctx, owner, controlplane::build_deployment(observed, sources, ipv6), cached, done).await
}
