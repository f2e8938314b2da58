//! CoderControlPlane: what is read before a decision and what is done after it.

mod act;
mod observe;
pub(crate) mod rollcall;
pub(crate) mod talk;

use std::sync::Arc;

use coder_k8s_core::{controlplane, object, outcome::Done};
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
    if object::is_paused(&*object) {
        let status = controlplane::paused(&object, ctx.now());
        return ctx.conclude(&key, &*object, &status, Done::default(), started).await;
    }
    let (seen, unasked) = observe::observe(&key, object, &ctx).await;
    let plan = controlplane::decide(&seen);
    let mut outcome = act::act(&seen, &plan, &ctx).await;
    if outcome.touched {
        return Next::After(ctx.own_write());
    }
    outcome.ungranted.extend(unasked);
    if seen.is_going() {
        ctx.talks.clean_up(&key, &seen.object);
    } else {
        ctx.talks.consider(&key, &seen.object, outcome.deployment.as_deref());
    }
    let status = controlplane::status(&seen, &plan, &outcome, ctx.now());
    ctx.conclude(&key, &*seen.object, &status, outcome.into_done(), started).await
}
