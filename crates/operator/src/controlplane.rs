//! CoderControlPlane: coderd's Deployment, Service, exposure, disruption budget and workspace access.
//!
//! A reconcile observes, decides, acts and writes the status. It never calls coderd: [`coderd_sync`] does, in its own queue,
//! and leaves a report that the next reconcile reads. A server that is slow or dead therefore delays nothing here.

mod act;
pub(crate) mod coderd_sync;
pub(crate) mod daemon_poll;
mod observe;

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_core::{controlplane, object, outcome::ActResult};
use coder_k8s_engine::{cache::ObjectKey, queue::Action};
use tokio::time::Instant;

use crate::controller::Context;

/// Reconciles one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.cached(&ctx.caches.control_planes, &key) {
        Ok(object) => object,
        Err(requeue) => return requeue,
    };
    if object::is_paused(&*object) {
        let status = controlplane::paused(&object, ctx.now());
        return ctx.finish(&key, &*object, &status, ActResult::default(), started).await;
    }
    let observed = observe::observe(&key, object, &ctx).await;
    let plan = controlplane::decide(&observed.plane);
    let outcome = match act::act(&observed, &plan, &ctx).await {
        ControlFlow::Continue(outcome) => outcome,
        ControlFlow::Break(requeue) => return requeue,
    };
    ctx.coderd_sync.consider(&key, &observed.plane.object, outcome.deployment.as_deref());
    let status = controlplane::status(&observed.plane, &plan, &outcome, ctx.now());
    ctx.finish(&key, &*observed.plane.object, &status, outcome.into_done(), started).await
}
