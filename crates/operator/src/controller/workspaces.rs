//! Access for workspaces: grants where they are wanted, and their removal where they no longer are.

use std::collections::BTreeMap;

use coder_k8s_api::{
    Reason, WorkspaceRbac,
    names::{annotation, label},
};
use coder_k8s_core::{
    outcome::{ActResult, Blocker, Retry},
    workspace_access::{self, Consent, Existing, Grant, Grantee, Plan},
};
use coder_k8s_engine::{
    apply::{Child, Owner},
    cache::ObjectKey,
    failure,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::rbac::v1::{Role, RoleBinding},
};
use kube::{Api, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;

use super::{
    Context, Scope,
    children::{apply, remove},
};

/// Grants that failed, with their namespaces.
pub(crate) type GrantBlockers = Vec<(String, Blocker)>;

/// Whether the other namespaces that are asked for consent. One that cannot be asked is taken to think as it did, and is
/// among the second values.
pub(crate) async fn consent(
    key: &ObjectKey,
    rbac: &WorkspaceRbac,
    existing: &Existing,
    ctx: &Context,
) -> (BTreeMap<String, Consent>, GrantBlockers) {
    let (mut all, mut unasked) = (BTreeMap::new(), Vec::new());
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
                    let stands = existing.bindings.iter().any(|b| b.namespace().as_ref() == Some(&namespace));
                    unasked.push((namespace.clone(), failure));
                    if stands { Consent::Given } else { Consent::Missing }
                }
            },
        };
        all.insert(namespace, consent);
    }
    (all, unasked)
}

/// Carries the plan out. What fails is told by its namespace and holds up nothing else.
pub(crate) async fn act(
    plan: &Plan,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
    grant_blockers: &mut GrantBlockers,
) {
    for grant in &plan.grants {
        let owner = at(owner, &grant.namespace);
        let mut part = ActResult::default();
        write(grant, &owner, ctx, &mut part).await;
        note(&grant.namespace, part, done, grant_blockers);
    }
    // Who may do something goes before what may be done.
    for binding in &plan.obsolete_bindings {
        withdraw(&**binding, owner, ctx, done, grant_blockers).await;
    }
    for role in &plan.obsolete_roles {
        withdraw(&**role, owner, ctx, done, grant_blockers).await;
    }
}

/// Whether nothing is left outside, asked of the API server itself: the caches may not have seen what was just written.
pub(crate) async fn nothing_left(grantee: &Grantee, ctx: &Context, done: &mut ActResult) -> bool {
    let left = match (left::<RoleBinding>(grantee, ctx).await, left::<Role>(grantee, ctx).await) {
        (Ok(bindings), Ok(roles)) => bindings + roles,
        (Err(error), _) | (_, Err(error)) => {
            done.failures.push(failure::from_kube("look for workspace access in other namespaces", &error));
            return false;
        }
    };
    if left > 0 {
        let message = format!("{left} Roles and RoleBindings in other namespaces are still to be removed");
        done.failures.push(Blocker { reason: Reason::Deleting, message, retry: Retry::Soon });
    }
    left == 0
}

/// How many objects elsewhere were written for this very object.
async fn left<K>(grantee: &Grantee, ctx: &Context) -> kube::Result<usize>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let labels =
        grantee.labels().into_iter().chain([(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())]);
    let selector = labels.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let params = ListParams::default().labels(&selector);
    let mut count = 0;
    for namespace in ctx.policy.scope.each() {
        let api: Api<K> = match namespace {
            Some(namespace) => Api::namespaced(ctx.client.clone(), &namespace),
            None => Api::all(ctx.client.clone()),
        };
        let all = api.list_metadata(&params).await?;
        count += all
            .iter()
            .filter(|found| found.namespace().as_ref() != Some(&grantee.namespace))
            .filter(|found| found.metadata.deletion_timestamp.is_none() && grantee.made(*found))
            .count();
    }
    Ok(count)
}

async fn write(grant: &Grant, owner: &Owner, ctx: &Context, done: &mut ActResult) {
    let (role, binding) = (grant.role.name_any(), grant.binding.name_any());
    let held_role = ctx.caches.roles.get(&grant.namespace, &role);
    apply(ctx, owner, grant.role.clone(), held_role.clone(), done).await;
    if let Some(plain) = &grant.plain
        && done.failures.iter().any(|failure| failure.reason == Reason::Forbidden)
    {
        // What users add cannot be granted; workspaces still run with what they always need, and with nothing that
        // the spec no longer gives.
        apply(ctx, owner, plain.clone(), held_role, done).await;
    }
    let held = ctx.caches.bindings.get(&grant.namespace, &binding);
    apply(ctx, owner, grant.binding.clone(), held, done).await;
}

async fn withdraw<K: Child>(
    object: &K,
    owner: &Owner,
    ctx: &Context,
    done: &mut ActResult,
    grant_blockers: &mut GrantBlockers,
) {
    let namespace = object.namespace().unwrap_or_default();
    let mut part = ActResult::default();
    remove(ctx, &at(owner, &namespace), object, &mut part).await;
    note(&namespace, part, done, grant_blockers);
}

/// The owner of what is in a namespace.
fn at(owner: &Owner, namespace: &str) -> Owner {
    if namespace == owner.namespace {
        owner.clone()
    } else {
        owner.in_namespace(namespace, annotation::WORKSPACE_RBAC_OWNER_UID)
    }
}

fn note(namespace: &str, part: ActResult, done: &mut ActResult, grant_blockers: &mut GrantBlockers) {
    done.foreign.extend(part.foreign);
    grant_blockers.extend(part.failures.into_iter().map(|failure| (namespace.to_owned(), failure)));
}
