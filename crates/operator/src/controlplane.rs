//! CoderControlPlane: what is read before a decision and what is done after it.

mod act;
pub(crate) mod coderd_sync;
pub(crate) mod daemon_poll;
mod observe;

use std::sync::Arc;

use coder_k8s_core::{controlplane, object, outcome::ActResult};
use coder_k8s_engine::{cache::ObjectKey, queue::Action};
use tokio::time::Instant;

use crate::controller::Context;

/// One pass over one object.
pub(crate) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.cached(&ctx.caches.control_planes, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    if object::is_paused(&*object) {
        let status = controlplane::paused(&object, ctx.now());
        return ctx.finish(&key, &*object, &status, ActResult::default(), started).await;
    }
    let (observed, unasked) = observe::observe(&key, object, &ctx).await;
    let plan = controlplane::decide(&observed);
    let mut outcome = act::act(&observed, &plan, &ctx).await;
    if outcome.object_written {
        return ctx.requeue_own_write();
    }
    outcome.grant_blockers.extend(unasked);
    if observed.is_deleting() {
        ctx.coderd_sync.clean_up(&key, &observed.object);
    } else {
        ctx.coderd_sync.consider(&key, &observed.object, outcome.deployment.as_deref());
    }
    let status = controlplane::status(&observed, &plan, &outcome, ctx.now());
    ctx.finish(&key, &*observed.object, &status, outcome.into_done(), started).await
}
