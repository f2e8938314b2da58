//! CoderWorkspaceProxy: what is read before a decision and what is done after it.
//!
//! Passes talk to coderd themselves, after everything that needs no coderd is done, in the queue that pools have too.

mod act;
mod observe;
mod reach;
mod registration;

use std::sync::Arc;

use coder_k8s_api::condition::kind;
use coder_k8s_core::{object, outcome::Done, workspaceproxy};
use coder_k8s_engine::{key::Key, queue::Next};
use tokio::time::Instant;

use crate::controller::{Context, credential};

/// How much of the interval passes until a proxy that is not healthy is looked at again.
const UNHEALTHY: f64 = 0.1;

/// One pass over one object.
pub(crate) async fn reconcile(key: Key, ctx: Arc<Context>) -> Next {
    let started = Instant::now();
    let object = match ctx.look(&ctx.caches.workspace_proxies, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    if object::is_paused(&*object) {
        let status = workspaceproxy::paused(&object, ctx.now());
        return ctx.conclude(&key, &*object, &status, Done::default(), started).await;
    }
    let verify_due = ctx.pools.is_due(&key, &*object, kind::REGISTERED);
    let reached = reach::reach(&key, &object, verify_due, &ctx).await;
    let seen = observe::observe(&key, object, &reached, &ctx).await;
    let wanted = workspaceproxy::decide(&seen);
    let Some(mut dealings) = registration::Dealings::begin(&key, &seen, reached, verify_due, &ctx).await
    else {
        return Next::OnChange;
    };
    // What pods run with so far: they are scaled and updated whatever coderd says.
    let mut outcome = act::act(&seen, wanted.as_ref(), dealings.course.first_run.as_ref(), &ctx).await;
    let decision = credential::carry_on(&mut dealings).await;
    if dealings.course.touched {
        let soon = Next::After(ctx.own_write());
        return dealings.course.retry.map_or(soon, |retry| ctx.pools.failed(&key, retry));
    }
    if decision.run.as_ref() != dealings.course.first_run.as_ref() {
        act::roll_out(&seen, decision.run.as_ref(), &ctx, &mut outcome).await;
    }
    if act::release(&seen, &decision, &ctx, &mut outcome).await {
        return Next::After(ctx.own_write());
    }
    let health = dealings.health();
    let status = workspaceproxy::status(&seen, &outcome, &decision, health.as_ref(), ctx.now());
    let next = ctx.conclude(&key, &*seen.object, &status, outcome.done, started).await;
    let ails = health.is_some_and(|health| health.status != "ok");
    let patience = if ails && seen.object.spec.replicas > 0 { UNHEALTHY } else { 1.0 };
    let again = [decision.again, seen.gate.as_ref().and_then(|gate| gate.again)];
    ctx.pools.come_back(&key, next, decision.next.goes_on(), patience, again, dealings.course.retry)
}
