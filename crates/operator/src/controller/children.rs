//! Applies and removes children of any kind.
//!
//! Nothing here decides: the desired object comes from `core`, and the existing one from a cache. A failure is noted in the
//! [`ActResult`] and never stops the children that follow. A same-named object of somebody else is noted as foreign and left
//! alone.

use std::sync::Arc;

use coder_k8s_api::Reason;
use coder_k8s_core::{
    account::Accounts,
    exposure::DesiredExposure,
    object,
    outcome::{ActResult, Blocker},
    rollout::Rollout,
    sources::SourceContents,
};
use coder_k8s_engine::{
    apply::{Applied, NamespacedKind, Owner, OwnerMark, Part},
    client,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service, policy::v1::PodDisruptionBudget};
use kube::{Resource, ResourceExt};

use super::{Context, pods};

/// The object as the controlling owner of its children. None: the object has no UID, because the API server never stored it.
pub(crate) fn owner_of<K: Resource<DynamicType = ()>>(object: &K, component: &str) -> Option<Owner> {
    let mut reference = object.controller_owner_ref(&())?;
    // A foreground deletion of the owner waits for children that have this.
    reference.block_owner_deletion = Some(true);
    let labels = object::selector(object, component);
    let (namespace, mark) = (object.namespace()?, OwnerMark::ControllerReference);
    Some(Owner { namespace, reference, labels, mark, parts: Vec::new() })
}

/// The owner of these children, which are handed over to it only together. `deployment` is the name of the Deployment.
pub(crate) fn owner_of_parts(
    owner: &Owner,
    deployment: String,
    accounts: &Accounts,
    service: Option<&Service>,
    exposure: Option<&DesiredExposure>,
    budget: Option<&PodDisruptionBudget>,
) -> Owner {
    let mut parts = vec![Part::deployment(deployment, owner.labels.clone())];
    parts.extend(accounts.desired.as_ref().map(Part::of));
    parts.extend(service.map(Part::of));
    parts.extend(exposure.and_then(|exposure| exposure.ingress.as_ref()).map(Part::of));
    parts.extend(exposure.and_then(|exposure| exposure.route.as_ref()).map(Part::of));
    parts.extend(budget.map(Part::of));
    Owner { parts, ..owner.clone() }
}

/// Applies a child and returns it as it is now. None: it does not exist, or somebody else owns it.
pub(crate) async fn apply<K: NamespacedKind>(
    ctx: &Context,
    owner: &Owner,
    desired: K,
    cached: Option<Arc<K>>,
    done: &mut ActResult,
) -> Option<Arc<K>> {
    let name = desired.name_any();
    let kind = K::kind(&());
    // Boxed: a Deployment makes the future large.
    match Box::pin(ctx.applier.apply(owner, desired, cached.as_deref())).await {
        Ok(Applied::Unchanged(live)) => return live.map(Arc::new).or(cached),
        Ok(Applied::Written(written)) => {
            tracing::info!("wrote {kind} {name}");
            return Some(Arc::new(written));
        }
        Ok(Applied::Leftover) => done.failures.push(Blocker::new(
            Reason::AwaitingDeletion,
            format!("waiting for the deletion of {kind} {name}, which belongs to a deleted object of the same name"),
        )),
        Ok(Applied::Foreign(foreign)) => done.foreign.push(foreign),
        Err(error) => {
            done.failures.push(client::blocker(&format!("write {kind} {name}"), &error));
            // The existing child keeps running, so that the status still reports it.
            return cached;
        }
    }
    None
}

/// The Secrets and ConfigMaps that pods read. None: they could not be read, which is noted once, though a reconcile asks
/// again after a credential changed. Without their checksums the pods would be replaced now and once more later.
pub(crate) fn readable<'a>(
    sources: &'a Result<SourceContents, Blocker>,
    done: &mut ActResult,
) -> Option<&'a SourceContents> {
    if let Err(failure) = sources
        && !done.failures.contains(failure)
    {
        done.failures.push(failure.clone());
    }
    sources.as_ref().ok()
}

/// Applies a Deployment and returns it as it is now. If its rollout is stalled, `pod_message` becomes why its pods do not run.
pub(crate) async fn roll_out(
    ctx: &Context,
    owner: &Owner,
    desired: Deployment,
    cached: Option<Arc<Deployment>>,
    done: &mut ActResult,
    pod_message: &mut Option<String>,
) -> Option<Arc<Deployment>> {
    let deployment = apply(ctx, owner, desired, cached, done).await;
    if Rollout::of(deployment.as_deref()).is_stalled() {
        *pod_message = pods::failure_message(&ctx.client, &owner.namespace, &owner.labels).await;
    }
    deployment
}

/// Removes a child that is no longer desired, if it is ours.
pub(crate) async fn remove<K: NamespacedKind>(
    ctx: &Context,
    owner: &Owner,
    cached: &K,
    done: &mut ActResult,
) {
    let name = cached.name_any();
    let kind = K::kind(&());
    match ctx.applier.remove(owner, cached).await {
        Ok(true) => tracing::info!("removed {kind} {name}"),
        Ok(false) => {}
        Err(error) => done.failures.push(client::blocker(&format!("remove {kind} {name}"), &error)),
    }
}

/// Applies the disruption budget, or removes it if none is desired.
pub(crate) async fn apply_budget(
    ctx: &Context,
    owner: &Owner,
    desired: Option<&PodDisruptionBudget>,
    cached: Option<Arc<PodDisruptionBudget>>,
    done: &mut ActResult,
) {
    match (desired, cached) {
        (Some(budget), cached) => drop(apply(ctx, owner, budget.clone(), cached, done).await),
        (None, Some(cached)) => remove(ctx, owner, &*cached, done).await,
        (None, None) => {}
    }
}

/// Applies the ServiceAccount of the pods, and gives up ownership of the existing ones once the spec disables their creation.
///
/// Comes before the Deployment: pods whose ServiceAccount does not exist are not created.
pub(crate) async fn apply_accounts(accounts: &Accounts, owner: &Owner, ctx: &Context, done: &mut ActResult) {
    if let Some(account) = &accounts.desired {
        let cached = ctx.caches.service_accounts.get(&owner.namespace, &account.name_any());
        apply(ctx, owner, account.clone(), cached, done).await;
    }
    for account in &accounts.detached {
        if let Err(error) = ctx.applier.detach(owner, &**account).await {
            let what = format!("give up ServiceAccount {}", account.name_any());
            done.failures.push(client::blocker(&what, &error));
        }
    }
}

/// Removes the ServiceAccounts that no pod uses any more. Comes after the Deployment.
pub(crate) async fn remove_obsolete_accounts(
    accounts: &Accounts,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
) {
    for account in &accounts.obsolete {
        remove(ctx, owner, &**account, done).await;
    }
}
