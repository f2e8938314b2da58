//! Grants workspaces their access: applies Roles and RoleBindings, in other namespaces too, and removes obsolete ones.
//!
//! Another namespace is touched only if it consents: by its label, or by being one of the watched namespaces. A namespace
//! that fails is reported by name and delays no other. What to grant is decided in `core::workspace_access`.

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    Reason, WorkspaceRbac,
    names::{annotation, label},
};
use coder_k8s_core::{
    outcome::{ActResult, Blocker, Retry},
    workspace_access::{self, Consent, Existing, Grantee, Plan, WorkspaceGrant},
};
use coder_k8s_engine::{
    apply::{NamespacedKind, Owner},
    cache::ObjectKey,
    client,
};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{ResourceExt, api::ListParams};

use super::{
    Context, Scope,
    children::{apply, remove},
    watches::api,
};

/// Grants that failed, with their namespaces.
pub(crate) type GrantBlockers = Vec<(String, Blocker)>;

/// The consent of each other namespace that the spec names. A namespace that cannot be read keeps its grant if it has one,
/// and is among the second values.
pub(crate) async fn consent(
    key: &ObjectKey,
    rbac: &WorkspaceRbac,
    existing: &Existing,
    ctx: &Context,
) -> (BTreeMap<String, Consent>, GrantBlockers) {
    let (mut all, mut unknown_consent) = (BTreeMap::new(), Vec::new());
    for namespace in workspace_access::targets(rbac, &key.namespace) {
        if namespace == key.namespace {
            continue;
        }
        let consent = match &ctx.policy.scope {
            Scope::Namespaces(_) if ctx.policy.scope.includes(&namespace) => Consent::Given,
            Scope::Namespaces(_) => Consent::Unwatched,
            Scope::Everywhere => match ctx.referenced.consent(&ctx.client, key, &namespace).await {
                Ok(consent) => consent,
                Err(failure) => {
                    let has_grant =
                        existing.bindings.iter().any(|b| b.namespace().as_ref() == Some(&namespace));
                    unknown_consent.push((namespace.clone(), failure));
                    if has_grant { Consent::Given } else { Consent::Missing }
                }
            },
        };
        all.insert(namespace, consent);
    }
    (all, unknown_consent)
}

/// Performs the plan. Failures go to `grant_blockers` with their namespace and do not stop the other namespaces.
pub(crate) async fn act(
    plan: &Plan,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
    grant_blockers: &mut GrantBlockers,
) {
    for grant in &plan.grants {
        let owner = owner_in(owner, &grant.namespace);
        let mut part = ActResult::default();
        write(grant, &owner, ctx, &mut part).await;
        record(&grant.namespace, part, done, grant_blockers);
    }
    // Bindings before Roles: the access ends with its binding.
    for binding in &plan.obsolete_bindings {
        withdraw(&**binding, owner, ctx, done, grant_blockers).await;
    }
    for role in &plan.obsolete_roles {
        withdraw(&**role, owner, ctx, done, grant_blockers).await;
    }
}

/// Whether no grant of the object is left in other namespaces. Reads live, because the caches may not show yet what was
/// just written, and the finalizer is removed on this answer.
pub(crate) async fn all_removed(grantee: &Grantee, ctx: &Context, done: &mut ActResult) -> bool {
    let left = match (count::<RoleBinding>(grantee, ctx).await, count::<Role>(grantee, ctx).await) {
        (Ok(bindings), Ok(roles)) => bindings + roles,
        (Err(error), _) | (_, Err(error)) => {
            done.failures.push(client::blocker(
                "list the Roles and RoleBindings of workspaces in other namespaces",
                &error,
            ));
            return false;
        }
    };
    if left > 0 {
        let message = format!("waiting for the removal of {left} Roles and RoleBindings in other namespaces");
        done.failures.push(Blocker { reason: Reason::Deleting, message, retry: Retry::Soon });
    }
    left == 0
}

/// How many objects of a kind in other namespaces were written for this very object.
async fn count<K: NamespacedKind>(grantee: &Grantee, ctx: &Context) -> kube::Result<usize> {
    let labels =
        grantee.labels().into_iter().chain([(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())]);
    let params = ListParams::default().labels_from(&labels.collect());
    let mut count = 0;
    for namespace in ctx.policy.scope.each() {
        let all = api::<K>(&ctx.client, namespace.as_deref()).list_metadata(&params).await?;
        count += all
            .iter()
            .filter(|found| found.namespace().as_ref() != Some(&grantee.namespace))
            .filter(|found| found.metadata.deletion_timestamp.is_none() && grantee.made(*found))
            .count();
    }
    Ok(count)
}

async fn write(grant: &WorkspaceGrant, owner: &Owner, ctx: &Context, done: &mut ActResult) {
    let (role, binding) = (grant.role.name_any(), grant.binding.name_any());
    let cached_role = ctx.caches.roles.get(&grant.namespace, &role);
    apply(ctx, owner, grant.role.clone(), cached_role.clone(), done).await;
    if !grant.extra.is_empty() && done.failures.iter().any(|failure| failure.reason == Reason::Forbidden) {
        write_grantable(grant, owner, ctx, cached_role, done).await;
    }
    let cached = ctx.caches.bindings.get(&grant.namespace, &binding);
    apply(ctx, owner, grant.binding.clone(), cached, done).await;
}

/// Applies the Role without the rules that the API server refuses, which lets nobody grant more than they may do. The other
/// rules stay granted, and rules that the spec no longer gives do not. `done` has the failure of the whole Role.
async fn write_grantable(
    grant: &WorkspaceGrant,
    owner: &Owner,
    ctx: &Context,
    cached: Option<Arc<Role>>,
    done: &mut ActResult,
) {
    let (mut granted, mut refused) = (Vec::new(), Vec::new());
    // At most two requests for each rule: a part that is refused is halved.
    let mut parts = vec![grant.extra.as_slice()];
    while let Some(part) = parts.pop() {
        let is_whole = part.len() == grant.extra.len();
        // The whole was just refused. A refusal of a Role without any of the rules is not about them.
        let tried = if is_whole { &[] } else { part };
        match ctx.applier.would_accept(owner, grant.role_with(tried)).await {
            Ok(true) if !is_whole => granted.extend_from_slice(part),
            Ok(false) if is_whole => return,
            Ok(_) if part.len() == 1 => refused.extend_from_slice(part),
            Ok(_) => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error) => {
                let what = format!("check the rules of Role {}", grant.role.name_any());
                done.failures.push(client::blocker(&what, &error));
                return;
            }
        }
    }
    done.failures.clear();
    done.failures.extend(refused.iter().map(|rule| grant.ungrantable(rule)));
    apply(ctx, owner, grant.role_with(&granted), cached, done).await;
}

async fn withdraw<K: NamespacedKind>(
    object: &K,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
    grant_blockers: &mut GrantBlockers,
) {
    let namespace = object.namespace().unwrap_or_default();
    let mut part = ActResult::default();
    remove(ctx, &owner_in(owner, &namespace), object, &mut part).await;
    record(&namespace, part, done, grant_blockers);
}

/// The owner of children in a namespace. An owner reference cannot cross namespaces, so that labels name the owner there.
fn owner_in(owner: &Owner, namespace: &str) -> Owner {
    if namespace == owner.namespace {
        owner.clone()
    } else {
        owner.in_namespace(namespace, annotation::WORKSPACE_RBAC_OWNER_UID)
    }
}

fn record(namespace: &str, part: ActResult, done: &mut ActResult, grant_blockers: &mut GrantBlockers) {
    done.foreign.extend(part.foreign);
    grant_blockers.extend(part.failures.into_iter().map(|failure| (namespace.to_owned(), failure)));
}
