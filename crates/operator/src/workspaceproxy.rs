//! CoderWorkspaceProxy: what is read before a decision and what is done after it.
//!
//! Passes talk to coderd themselves, after everything that needs no coderd is done, in the queue that pools have too.

mod act;
mod observe;
mod registration;
mod target;

use std::sync::Arc;

use coder_k8s_api::condition::kind;
use coder_k8s_core::{object, outcome::ActResult, workspaceproxy};
use coder_k8s_engine::{key::Key, queue::Action};
use tokio::time::Instant;

use crate::{coderd::credential, controller::Context};

/// How much of the interval passes until a proxy that is not healthy is looked at again.
const UNHEALTHY: f64 = 0.1;

/// One pass over one object.
pub(crate) async fn reconcile(key: Key, ctx: Arc<Context>) -> Action {
    let started = Instant::now();
    let object = match ctx.cached(&ctx.caches.workspace_proxies, &key) {
        Ok(object) => object,
        Err(next) => return next,
    };
    if object::is_paused(&*object) {
        let status = workspaceproxy::paused(&object, ctx.now());
        return ctx.finish(&key, &*object, &status, ActResult::default(), started).await;
    }
    let verify_due = ctx.verify_schedule.is_due(&key, &*object, kind::REGISTERED);
    let reached = target::reach(&key, &object, verify_due, &ctx).await;
    let observed = observe::observe(&key, object, &reached, &ctx).await;
    let desired = workspaceproxy::decide(&observed);
    let Some(mut registration) =
        registration::RegistrationReconciler::begin(&key, &observed, reached, verify_due, &ctx).await
    else {
        return Action::AwaitChange;
    };
    // What pods run with so far: they are scaled and updated whatever coderd says.
    let mut outcome =
        act::act(&observed, desired.as_ref(), registration.state.first_run.as_ref(), &ctx).await;
    let decision = credential::run_steps(&mut registration).await;
    if registration.state.object_written {
        let soon = ctx.requeue_own_write();
        return registration.state.retry.map_or(soon, |retry| ctx.verify_schedule.failed(&key, retry));
    }
    if decision.run.as_ref() != registration.state.first_run.as_ref() {
        act::roll_out(&observed, decision.run.as_ref(), &ctx, &mut outcome).await;
    }
    if act::release(&observed, &decision, &ctx, &mut outcome).await {
        return ctx.requeue_own_write();
    }
    let health = registration.health();
    let status = workspaceproxy::status(&observed, &outcome, &decision, health.as_ref(), ctx.now());
    let next = ctx.finish(&key, &*observed.object, &status, outcome.done, started).await;
    let ails = health.is_some_and(|health| health.status != "ok");
    let patience = if ails && observed.object.spec.replicas > 0 { UNHEALTHY } else { 1.0 };
    let again = [decision.again, observed.gate.as_ref().and_then(|gate| gate.again)];
    ctx.verify_schedule.come_back(
        &key,
        next,
        decision.next.goes_on(),
        patience,
        again,
        registration.state.retry,
    )
}
