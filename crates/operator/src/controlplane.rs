//! CoderControlPlane: what is read before a decision and what is done after it.

mod act;
mod observe;

use std::sync::Arc;

use coder_k8s_core::controlplane;
use coder_k8s_engine::{key::Key, queue::Next};
use tokio::time::Instant;

use crate::controller::Context;

/// One pass over one object.
pub(crate) async fn reconcile(key: Key, ctx: Arc<Context>) -> Next {
    let started = Instant::now();
    let object = match ctx.look(&ctx.caches.control_planes, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    let seen = observe::observe(object, &ctx);
    let plan = controlplane::decide(&seen);
    let done = act::act(&seen, plan, &ctx).await;
    let status = controlplane::status(&seen, &done, ctx.now());
    ctx.conclude(&key, &*seen.object, &status, done, started).await
}
