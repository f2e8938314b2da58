//! Writing and removing children of any kind, with the outcome noted.

use coder_k8s_api::names::label;
use coder_k8s_core::{
    names::instance_label,
    outcome::{Done, Failure, Retry},
};
use coder_k8s_engine::{
    failure,
    gate::{Applied, Child, Owner},
};
use kube::{Resource, ResourceExt};

use super::Context;

/// The object as the owner of its children. None: it was never stored.
pub(crate) fn owner_of<K: Resource<DynamicType = ()>>(object: &K, component: &str) -> Option<Owner> {
    let mut reference = object.controller_owner_ref(&())?;
    reference.block_owner_deletion = Some(true);
    let labels = [
        (label::NAME.to_owned(), component.to_owned()),
        (label::INSTANCE.to_owned(), instance_label(&object.name_any())),
        (label::MANAGED_BY.to_owned(), label::MANAGER.to_owned()),
    ];
    Some(Owner { namespace: object.namespace()?, reference, labels: labels.into() })
}

/// Makes a child be as desired.
pub(crate) async fn apply<K: Child>(
    ctx: &Context,
    owner: &Owner,
    desired: K,
    held: Option<&K>,
    done: &mut Done,
) {
    let name = desired.name_any();
    let kind = K::kind(&());
    match ctx.gate.apply(owner, desired, held).await {
        Ok(Applied::Unchanged) => {}
        Ok(Applied::Written(_)) => tracing::info!("wrote {kind} {name}"),
        Ok(Applied::Leftover) => done.failures.push(Failure {
            reason: "AwaitingDeletion",
            message: format!("{kind} {name} of a deleted object of the same name is still there"),
            retry: Retry::Backoff,
        }),
        Ok(Applied::Foreign(foreign)) => done.foreign.push(foreign),
        Err(error) => done.failures.push(failure::judge(&format!("write {kind} {name}"), &error)),
    }
}

/// Removes a child that is no longer desired.
pub(crate) async fn remove<K: Child>(ctx: &Context, owner: &Owner, live: &K, done: &mut Done) {
    let name = live.name_any();
    let kind = K::kind(&());
    match ctx.gate.remove(owner, live).await {
        Ok(true) => tracing::info!("removed {kind} {name}"),
        Ok(false) => {}
        Err(error) => done.failures.push(failure::judge(&format!("remove {kind} {name}"), &error)),
    }
}
