//! CoderWorkspaceProxy: a proxy, its registration in coderd, and the pods that run it.
//!
//! A reconcile observes, decides, acts and writes the status. It calls coderd, after everything that needs no coderd is done,
//! and shares the wide queue of the pools.

mod act;
mod observe;
pub(crate) mod registration;

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_core::{object, outcome::ActResult, workspaceproxy};
use coder_k8s_engine::{cache::ObjectKey, queue::Action};
use tokio::time::Instant;

use crate::controller::Context;

/// The part of the verify interval after which a proxy that coderd reports as unhealthy is verified again.
const UNHEALTHY_FACTOR: f64 = 0.1;

/// Reconciles one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.current(&ctx.caches.workspace_proxies, &key).await {
        Ok(object) => object,
        Err(requeue) => return requeue,
    };
    if object::is_paused(&*object) {
        let status = workspaceproxy::paused(&object, ctx.now());
        return ctx.finish(&key, &*object, &status, ActResult::default(), started).await;
    }
    let Some((observed, registration)) = observe::observe(&key, object, &ctx).await else {
        return Action::AwaitChange;
    };
    let desired = workspaceproxy::decide(&observed);
    let done = match act::act(&observed, desired.as_ref(), registration, &ctx).await {
        ControlFlow::Continue(done) => done,
        ControlFlow::Break(requeue) => return requeue,
    };
    let act::Done { outcome, decision, health, retry, bindings } = done;
    let mut status = workspaceproxy::status(&observed, &outcome, &decision, health.as_ref(), ctx.now());
    status.workload.credential_bindings = bindings;
    status.workload.cleanup_start_time = ctx.cleanup_start(&key, &*observed.object);
    let next = ctx.finish(&key, &*observed.object, &status, outcome.done, started).await;
    let is_unhealthy = health.is_some_and(|health| health.status != "ok");
    let factor = if is_unhealthy && observed.object.spec.replicas > 0 { UNHEALTHY_FACTOR } else { 1.0 };
    let again = [decision.again, observed.gate.as_ref().and_then(|gate| gate.again)];
    ctx.verify_schedule.requeue(&key, next, decision.next.goes_on(), factor, again, retry)
}
