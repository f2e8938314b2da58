//! Access for workspaces: grants where they are wanted, and their removal where they no longer are.

use coder_k8s_api::{
    condition::reason,
    names::{finalizer, label},
};
use coder_k8s_core::{
    controlplane::{Outcome, Seen},
    outcome::{Done, Failure, Retry},
    workspace_access::{Grant, Plan},
};
use coder_k8s_engine::{
    failure,
    gate::{Child, Owner},
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::rbac::v1::{Role, RoleBinding},
};
use kube::{Api, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;

use crate::controller::{
    Context,
    children::{apply, remove},
};

/// Carries the plan out. What fails is told by its namespace and holds up nothing else.
pub(super) async fn act(plan: &Plan, owner: &Owner, ctx: &Context, outcome: &mut Outcome) {
    for grant in &plan.grants {
        let owner = at(owner, &grant.namespace);
        let mut done = Done::default();
        write(grant, &owner, ctx, &mut done).await;
        note(&grant.namespace, done, outcome);
    }
    // Who may do something goes before what may be done.
    for binding in &plan.obsolete_bindings {
        withdraw(&**binding, owner, ctx, outcome).await;
    }
    for role in &plan.obsolete_roles {
        withdraw(&**role, owner, ctx, outcome).await;
    }
}

/// Whether nothing is left outside, asked of the API server itself: the caches may not have seen what was just written.
pub(super) async fn nothing_left(seen: &Seen, ctx: &Context, done: &mut Done) -> bool {
    let object = &*seen.object;
    if !object.finalizers().iter().any(|name| name == finalizer::CONTROL_PLANE) {
        return true;
    }
    let left = match (left::<RoleBinding>(seen, ctx).await, left::<Role>(seen, ctx).await) {
        (Ok(bindings), Ok(roles)) => bindings + roles,
        (Err(error), _) | (_, Err(error)) => {
            done.failures.push(failure::judge("look for workspace access in other namespaces", &error));
            return false;
        }
    };
    if left > 0 {
        let message = format!("{left} Roles and RoleBindings in other namespaces are still to be removed");
        done.failures.push(Failure { reason: reason::DELETING, message, retry: Retry::Soon });
    }
    left == 0
}

/// How many objects elsewhere were written for this very object.
async fn left<K>(seen: &Seen, ctx: &Context) -> kube::Result<usize>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let grantee = seen.grantee();
    let labels =
        grantee.labels().into_iter().chain([(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())]);
    let selector = labels.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let params = ListParams::default().labels(&selector);
    let mut count = 0;
    for namespace in ctx.scope.each() {
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

async fn write(grant: &Grant, owner: &Owner, ctx: &Context, done: &mut Done) {
    let (role, binding) = (grant.role.name_any(), grant.binding.name_any());
    let held_role = ctx.caches.roles.get(&grant.namespace, &role);
    apply(ctx, owner, grant.role.clone(), held_role.clone(), done).await;
    if let Some(plain) = &grant.plain
        && done.failures.iter().any(|failure| failure.reason == reason::FORBIDDEN)
    {
        // What users add cannot be granted; workspaces still run with what they always need, and with nothing that
        // the spec no longer gives.
        apply(ctx, owner, plain.clone(), held_role, done).await;
    }
    let held = ctx.caches.bindings.get(&grant.namespace, &binding);
    apply(ctx, owner, grant.binding.clone(), held, done).await;
}

async fn withdraw<K: Child>(object: &K, owner: &Owner, ctx: &Context, outcome: &mut Outcome) {
    let namespace = object.namespace().unwrap_or_default();
    let mut done = Done::default();
    remove(ctx, &at(owner, &namespace), object, &mut done).await;
    note(&namespace, done, outcome);
}

/// The owner of what is in a namespace.
fn at(owner: &Owner, namespace: &str) -> Owner {
    if namespace == owner.namespace { owner.clone() } else { owner.outside(namespace) }
}

fn note(namespace: &str, done: Done, outcome: &mut Outcome) {
    outcome.done.foreign.extend(done.foreign);
    outcome.ungranted.extend(done.failures.into_iter().map(|failure| (namespace.to_owned(), failure)));
}
