//! CoderProvisioner: a pool of provisioner daemons, its key in coderd, and the pods that run them.
//!
//! A reconcile observes, decides, acts and writes the status. It calls coderd, after everything that needs no coderd is done.
//! Reconciles of pools run in a queue of their own, wide enough that a server that hangs delays its own pools alone.

mod act;
mod daemons;
pub(crate) mod keys;
mod observe;

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::names::component;
use coder_k8s_core::{object, provisioner, workspace_access};
use coder_k8s_engine::{cache::ObjectKey, queue::Action};
use tokio::time::Instant;

pub(crate) use self::daemons::{KnownGenerations, ListedPods, current_deployment, current_pods};
use crate::controller::{Context, workspaces};

/// Reconciles one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.current(&ctx.caches.provisioners, &key).await {
        Ok(object) => object,
        Err(requeue) => return requeue,
    };
    if object::is_paused(&*object) {
        let (kind, component) = (workspace_access::Kind::Provisioner, component::PROVISIONER);
        let (lost, blockers) = workspaces::review_paused(&key, &*object, kind, component, &ctx).await;
        let status = provisioner::paused(&object, &lost, &blockers, ctx.now());
        let done = workspaces::failures(blockers);
        return ctx.finish(&key, &*object, &status, done, started).await;
    }
    let Some((observed, keys)) = observe::observe(&key, object, &ctx).await else {
        return Action::AwaitChange;
    };
    let plan = provisioner::decide(&observed.pool);
    // Boxed: children and grants are written side by side, which makes the future large.
    let done = match Box::pin(act::act(&observed, &plan, keys, &ctx)).await {
        ControlFlow::Continue(done) => done,
        ControlFlow::Break(requeue) => return requeue,
    };
    let act::Done { outcome, decision, health, retry, bindings } = done;
    let mut status = provisioner::status(&observed.pool, &plan, &outcome, &decision, &health, ctx.now());
    status.workload.credential_bindings = bindings;
    status.workload.cleanup_start_time = ctx.cleanup_start(&key, &*observed.pool.object);
    let next = ctx.finish(&key, &*observed.pool.object, &status, outcome.into_done(), started).await;
    ctx.daemon_poller.consider(&observed.pool.object, &health, ctx.now());
    let delays = [decision.again, observed.pool.gate.again, health.again()];
    ctx.verify_schedule.requeue(&key, next, decision.next.goes_on(), 1.0, delays, retry)
}
