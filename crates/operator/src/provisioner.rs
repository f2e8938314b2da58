//! CoderProvisioner: what is read before a decision and what is done after it.
//!
//! Passes talk to coderd themselves, after everything that needs no coderd is done. They run in a queue of their own, wide
//! enough that a server that hangs holds up its own pools alone.

mod act;
mod health;
mod keys;
mod leave;
mod observe;
pub(crate) mod pools;
mod shrink;

use std::sync::Arc;

use coder_k8s_core::{object, outcome::Done, provisioner};
use coder_k8s_engine::{key::Key, queue::Next};
use tokio::time::Instant;

use crate::controller::{Context, credential};

/// One pass over one object.
pub(crate) async fn reconcile(key: Key, ctx: Arc<Context>) -> Next {
    let started = Instant::now();
    let object = match ctx.look(&ctx.caches.provisioners, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    if object::is_paused(&*object) {
        let status = provisioner::paused(&object, ctx.now());
        return ctx.conclude(&key, &*object, &status, Done::default(), started).await;
    }
    let verify_due = ctx.pools.verify_due(&key, &object);
    let (seen, unasked) = observe::observe(&key, object, verify_due, &ctx).await;
    let plan = provisioner::decide(&seen);
    let Some(mut dealings) = keys::Dealings::begin(&key, &seen, verify_due, &ctx).await else {
        return Next::OnChange;
    };
    // What pods run with so far: they are scaled and updated whatever coderd says.
    let mut outcome = act::act(&seen, &plan, dealings.course.first_run.as_ref(), &ctx).await;
    let decision = match leave::first(&seen, &ctx, &mut outcome.done).await {
        Some(leaving) => leaving,
        None => credential::carry_on(&mut dealings).await,
    };
    if dealings.course.touched {
        let soon = Next::After(ctx.own_write());
        return dealings.course.retry.map_or(soon, |retry| ctx.pools.failed(&key, retry));
    }
    if decision.run.as_ref() != dealings.course.first_run.as_ref() {
        act::roll_out(&seen, decision.run.as_ref(), &ctx, &mut outcome).await;
    }
    outcome.ungranted.extend(unasked);
    if act::release(&seen, &plan, &decision, &ctx, &mut outcome).await {
        return Next::After(ctx.own_write());
    }
    let health = provisioner::daemons::judge(&seen, outcome.deployment.as_deref(), &decision, ctx.now());
    health::repair(&health, &seen, &ctx).await;
    let status = provisioner::status(&seen, &plan, &outcome, &decision, &health, ctx.now());
    let next = ctx.conclude(&key, &*seen.object, &status, outcome.into_done(), started).await;
    ctx.roll_calls.consider(&seen.object, &health);
    ctx.pools.next(&key, next, &decision, [seen.gate.again, health.again], dealings.course.retry)
}
