//! Writes what belongs to an object: its children of any kind, its exposure, and its finalizer.
//!
//! Nothing here decides: the desired object comes from `core`, and the existing one from a cache. A failure is noted in the
//! [`ActResult`] and never stops the children that follow. A same-named object of somebody else is noted as foreign and left
//! alone.

use std::{ops::ControlFlow, sync::Arc};

use coder_k8s_api::{Reason, names::FIELD_MANAGER};
use coder_k8s_core::{
    exposure::{
        DesiredExposure, Exposure,
        route::{Acceptance, HTTPRoute, acceptance},
    },
    object,
    outcome::{ActResult, Blocker, Retry},
    sources::SourceContents,
    workload::{Accounts, Rollout},
};
use coder_k8s_engine::{
    apply::{Applied, NamespacedKind, Owner, OwnerMark, Part},
    client,
};
use k8s_openapi::api::{
    apps::v1::Deployment, core::v1::Service, networking::v1::Ingress, policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Context, kinds::CoderResource, pods};

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

/// Applies the Ingress or HTTPRoute that exposes an object, and replaces one by the other: an Ingress is removed only after
/// the route is accepted by its Gateway, and a route only after the Ingress is written.
///
/// `ingress` and `route` are the cached children, of which at most one is still desired.
pub(crate) async fn expose(
    desired: &DesiredExposure,
    ingress: Option<Arc<Ingress>>,
    route: Option<Arc<HTTPRoute>>,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
) -> Exposure {
    if desired.gateway_api_missing {
        return Exposure::GatewayApiMissing;
    }
    let failures = done.failures.len();
    if let Some(desired) = &desired.ingress {
        let written = apply(ctx, owner, desired.clone(), ingress, done).await;
        if written.is_none() || done.failures.len() > failures {
            return Exposure::Unwritten;
        }
        if let Some(route) = route {
            remove(ctx, owner, &*route, done).await;
        }
        return Exposure::Ingress;
    }
    if let Some(desired) = &desired.route {
        let written = apply(ctx, owner, desired.clone(), route, done).await;
        let Some(written) = written.filter(|_| done.failures.len() == failures) else {
            return Exposure::Unwritten;
        };
        // Until a Gateway accepts the route, the Ingress is the only way in.
        let accepted = acceptance(&written);
        if let (Acceptance::Accepted, Some(ingress)) = (&accepted, ingress) {
            remove(ctx, owner, &*ingress, done).await;
        }
        return Exposure::Route(accepted);
    }
    if let Some(ingress) = ingress {
        remove(ctx, owner, &*ingress, done).await;
    }
    if let Some(route) = route {
        remove(ctx, owner, &*route, done).await;
    }
    Exposure::NotRequested
}

/// Adds or removes the finalizer, and changes nothing else. An object has it only while something outside its namespace, in
/// coderd or in other namespaces, must be cleaned up: garbage collection removes everything else.
///
/// Continues if there is nothing to change. Breaks after a write,
/// because what was observed is outdated then, and after a failure, which is noted in `done`.
pub(crate) async fn set_finalizer<K>(
    object: &K,
    finalizer: &str,
    desired: bool,
    ctx: &Context,
    done: &mut ActResult,
) -> ControlFlow<FinalizerWrite>
where
    K: CoderResource,
{
    let Some(finalizers) = object::finalizers(object, finalizer, desired) else {
        return ControlFlow::Continue(());
    };
    // A merge patch replaces the whole list: the version protects a finalizer that somebody else has added meanwhile.
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &object.namespace().unwrap_or_default());
    match api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await {
        Ok(_) => {
            ctx.mark_outdated(object);
            ControlFlow::Break(FinalizerWrite::Yes)
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => ControlFlow::Break(FinalizerWrite::Yes),
        Err(error) => {
            done.failures.push(client::blocker("write the finalizer", &error));
            ControlFlow::Break(FinalizerWrite::Failed)
        }
    }
}

/// The outcome of a write of the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalizerWrite {
    /// The object was written, or no longer exists.
    Yes,
    /// The failure is in the [`ActResult`].
    Failed,
}

/// Adds the finalizer before something is created outside the namespace, so that no crash leaves anything behind. Continues
/// if the object has it; else the reconcile ends, and a failure says when to retry.
pub(crate) async fn add_finalizer<K: CoderResource>(
    object: &K,
    finalizer: &str,
    ctx: &Context,
) -> ControlFlow<Option<Retry>> {
    let mut done = ActResult::default();
    let set = set_finalizer(object, finalizer, true, ctx, &mut done).await;
    set.map_break(|_| done.failures.first().map(|failure| failure.retry))
}
