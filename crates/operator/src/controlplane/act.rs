//! All effects of a pass, in order. One that fails does not stop the others.

use coder_k8s_api::names::component;
use coder_k8s_core::{
    controlplane::{Plan, Seen},
    outcome::Done,
};
use kube::ResourceExt;

use crate::controller::{Context, children};

/// Carries the plan out.
pub(super) async fn act(seen: &Seen, plan: Plan, ctx: &Context) -> Done {
    let Plan { service_account, obsolete } = plan;
    let mut done = Done::default();
    let Some(owner) = children::owner_of(&*seen.object, component::CONTROL_PLANE) else { return done };
    if let Some(account) = service_account {
        let held = ctx.caches.service_accounts.get(&owner.namespace, &account.name_any());
        children::apply(ctx, &owner, account, held.as_deref(), &mut done).await;
    }
    // What pods use goes only when its successor is there.
    if done == Done::default() {
        for account in obsolete {
            children::remove(ctx, &owner, &*account, &mut done).await;
        }
    }
    done
}
