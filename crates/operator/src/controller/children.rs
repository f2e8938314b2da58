//! Writing and removing children of any kind, with the outcome noted.

use coder_k8s_api::Reason;
use std::sync::Arc;

use coder_k8s_core::{
    object,
    outcome::{ActResult, Blocker},
};
use coder_k8s_engine::{
    apply::{Applied, Child, Owner, OwnerMark},
    failure,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Resource, ResourceExt};

use super::Context;

/// The object as the owner of its children. None: it was never stored.
pub(crate) fn owner_of<K: Resource<DynamicType = ()>>(object: &K, component: &str) -> Option<Owner> {
    let mut reference = object.controller_owner_ref(&())?;
    reference.block_owner_deletion = Some(true);
    let labels = object::selector(object, component);
    Some(Owner { namespace: object.namespace()?, reference, labels, mark: OwnerMark::ControllerReference })
}

/// Makes a child be as desired. Returns it as it is now; none: it is not there, or is not ours.
pub(crate) async fn apply<K: Child>(
    ctx: &Context,
    owner: &Owner,
    desired: K,
    held: Option<Arc<K>>,
    done: &mut ActResult,
) -> Option<Arc<K>> {
    let name = desired.name_any();
    let kind = K::kind(&());
    // A Deployment is large, and so is whatever waits with one in hand.
    match Box::pin(ctx.applier.apply(owner, desired, held.as_deref())).await {
        Ok(Applied::Unchanged(live)) => return live.map(Arc::new).or(held),
        Ok(Applied::Written(written)) => {
            tracing::info!("wrote {kind} {name}");
            return Some(Arc::new(written));
        }
        Ok(Applied::Leftover) => done.failures.push(Blocker::new(
            Reason::AwaitingDeletion,
            format!("{kind} {name} of a deleted object of the same name is still there"),
        )),
        Ok(Applied::Foreign(foreign)) => done.foreign.push(foreign),
        Err(error) => {
            done.failures.push(failure::from_kube(&format!("write {kind} {name}"), &error));
            // What is there stays as it is.
            return held;
        }
    }
    None
}

/// Removes a child that is no longer desired.
pub(crate) async fn remove<K: Child>(ctx: &Context, owner: &Owner, live: &K, done: &mut ActResult) {
    let name = live.name_any();
    let kind = K::kind(&());
    match ctx.applier.remove(owner, live).await {
        Ok(true) => tracing::info!("removed {kind} {name}"),
        Ok(false) => {}
        Err(error) => done.failures.push(failure::from_kube(&format!("remove {kind} {name}"), &error)),
    }
}

/// Makes the disruption budget be as wanted, or be gone.
pub(crate) async fn budget(
    ctx: &Context,
    owner: &Owner,
    desired: Option<&PodDisruptionBudget>,
    held: Option<Arc<PodDisruptionBudget>>,
    done: &mut ActResult,
) {
    match (desired, held) {
        (Some(budget), held) => drop(apply(ctx, owner, budget.clone(), held, done).await),
        (None, Some(held)) => remove(ctx, owner, &*held, done).await,
        (None, None) => {}
    }
}
