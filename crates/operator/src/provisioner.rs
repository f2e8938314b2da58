//! CoderProvisioner: what is read before a decision and what is done after it.
//!
//! Passes talk to coderd themselves, after everything that needs no coderd is done. They run in a queue of their own, wide
//! enough that a server that hangs holds up its own pools alone.

mod act;
mod daemons;
mod drain;
mod keys;
mod observe;
mod scale_down;

use std::sync::Arc;

use coder_k8s_core::{object, outcome::ActResult, provisioner};
use coder_k8s_engine::{key::Key, queue::Action};
use tokio::time::Instant;

use crate::{
    coderd::{credential, targets::Connections},
    controller::Context,
};

/// One pass over one object.
pub(crate) async fn reconcile(key: Key, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.cached(&ctx.caches.provisioners, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    if object::is_paused(&*object) {
        let status = provisioner::paused(&object, ctx.now());
        return ctx.finish(&key, &*object, &status, ActResult::default(), started).await;
    }
    let verify_due = ctx.verify_schedule.verify_due(&key, &object);
    let mut connections = Connections::new(&key.namespace, None);
    let (observed, unasked) = observe::observe(&key, object, &mut connections, verify_due, &ctx).await;
    let plan = provisioner::decide(&observed);
    let Some(mut keys) = keys::KeyReconciler::begin(&key, &observed, connections, verify_due, &ctx).await
    else {
        return Action::AwaitChange;
    };
    // What pods run with so far: they are scaled and updated whatever coderd says.
    let mut outcome = act::act(&observed, &plan, keys.state.first_run.as_ref(), &ctx).await;
    let decision = match drain::first(&observed, &ctx, &mut outcome.done).await {
        Some(leaving) => leaving,
        None => credential::run_steps(&mut keys).await,
    };
    if keys.state.object_written {
        let soon = ctx.requeue_own_write();
        return keys.state.retry.map_or(soon, |retry| ctx.verify_schedule.failed(&key, retry));
    }
    if decision.run.as_ref() != keys.state.first_run.as_ref() {
        act::roll_out(&observed, decision.run.as_ref(), &ctx, &mut outcome).await;
    }
    outcome.grant_blockers.extend(unasked);
    if act::release(&observed, &plan, &decision, &ctx, &mut outcome).await {
        return ctx.requeue_own_write();
    }
    let health = provisioner::daemons::judge(&observed, outcome.deployment.as_deref(), &decision, ctx.now());
    daemons::restart_stopped(&health, &observed, &ctx).await;
    let status = provisioner::status(&observed, &plan, &outcome, &decision, &health, ctx.now());
    let next = ctx.finish(&key, &*observed.object, &status, outcome.into_done(), started).await;
    ctx.daemon_poller.consider(&observed.object, &health);
    ctx.verify_schedule.next(&key, next, &decision, [observed.gate.again, health.again], keys.state.retry)
}
