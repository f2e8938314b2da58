//! Grants workspaces their access: applies Roles and RoleBindings, in other namespaces too, and removes obsolete ones.
//!
//! Another namespace is touched only if it consents by its label. A namespace that fails is reported by name and delays no
//! other. What to grant is decided in `core::workspace_access`. Consent is reviewed for paused objects as well; grants that
//! have no object any more are left to `grant_sweep`.

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    Reason, WorkspaceRbac,
    names::{annotation, label},
};
use coder_k8s_core::{
    cleanup::Cleanup,
    object,
    outcome::{ActResult, Blocker, ForeignObject, Retry},
    workspace_access::{self, Consent, Existing, Grantee, GranteeKind, Plan, WorkspaceGrant, stray},
};
use coder_k8s_engine::{
    apply::{NamespacedKind, Owner},
    cache::ObjectKey,
    client,
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{ResourceExt, api::ListParams};

use super::{
    Context,
    children::{self, apply, remove},
    kinds::CoderResource,
    referenced::read_consent,
    watches::api,
};

/// How many namespaces are written at a time for one object.
const GRANTS_AT_A_TIME: usize = 8;

/// Grants that failed, with their namespaces.
pub(crate) type GrantBlockers = Vec<(String, Blocker)>;

/// The cached Roles and RoleBindings of an object, in all namespaces.
pub(crate) fn existing(kind: GranteeKind, key: &ObjectKey, ctx: &Context) -> Existing {
    let group = kind.group(&key.namespace, &key.name);
    Existing { roles: ctx.caches.roles.of_group(&group), bindings: ctx.caches.bindings.of_group(&group) }
}

/// The consent of each other namespace that the spec names. A namespace that cannot be read is among the second values. An
/// object that is being deleted needs none.
pub(crate) async fn consent<K: CoderResource>(
    key: &ObjectKey,
    object: &K,
    rbac: &WorkspaceRbac,
    ctx: &Context,
) -> (BTreeMap<String, Consent>, GrantBlockers) {
    let (mut all, mut unknown_consent) = (BTreeMap::new(), Vec::new());
    if object::is_deleting(object) {
        return (all, unknown_consent);
    }
    for namespace in workspace_access::asked_namespaces(rbac, &key.namespace) {
        if namespace == *key.namespace {
            continue;
        }
        let consent = if ctx.policy.scope.includes(&namespace) {
            ctx.referenced.consent(&ctx.client, key, &namespace).await
        } else {
            Ok(Consent::Unwatched)
        };
        all.insert(namespace.clone(), known(namespace, consent, &mut unknown_consent));
    }
    (all, unknown_consent)
}

fn known(namespace: String, consent: Result<Consent, Blocker>, blockers: &mut GrantBlockers) -> Consent {
    consent.unwrap_or_else(|blocker| {
        blockers.push((namespace, blocker));
        Consent::Unknown
    })
}

/// Withdraws the grants of a paused object in namespaces that do not consent any more, and writes nothing else for it. Each
/// consent is read live, because the spec may name other namespaces by now than those with grants.
pub(crate) async fn review_paused<K: CoderResource>(
    key: &ObjectKey,
    object: &K,
    kind: GranteeKind,
    component: &str,
    ctx: &Context,
) -> (Plan, GrantBlockers) {
    let mut blockers = Vec::new();
    // Whose pods use the grants plays no part in whether they are withdrawn.
    let (grantee, existing) = (Grantee::of(object, kind, String::new()), existing(kind, key, ctx));
    let mut consent = BTreeMap::new();
    for namespace in existing.elsewhere(&grantee) {
        let read = read_consent(&ctx.client, &namespace, &key.namespace).await;
        consent.insert(namespace.clone(), known(namespace, read, &mut blockers));
    }
    let plan = stray::of_paused(&grantee, &consent, &existing, ctx.policy.grants);
    if let Some(owner) = children::owner_of(object, component) {
        blockers.extend(act(&plan, &owner, ctx).await.blockers);
    }
    (plan, blockers)
}

/// What failed, for the retry.
pub(crate) fn failures(blockers: GrantBlockers) -> ActResult {
    let failures = blockers.into_iter().map(|(_, blocker)| blocker).collect();
    ActResult { failures, ..ActResult::default() }
}

/// What [`act`] met.
#[derive(Default)]
pub(crate) struct Met {
    foreign: Vec<ForeignObject>,
    blockers: GrantBlockers,
}

impl Met {
    /// Adds it to what the other effects of a reconcile met.
    pub(crate) fn add_to(self, done: &mut ActResult, grant_blockers: &mut GrantBlockers) {
        done.foreign.extend(self.foreign);
        grant_blockers.extend(self.blockers);
    }

    fn add(&mut self, namespace: &str, part: ActResult) {
        self.foreign.extend(part.foreign);
        self.blockers.extend(part.failures.into_iter().map(|failure| (namespace.to_owned(), failure)));
    }
}

/// Performs the plan. A namespace that fails does not stop the others.
///
/// Several namespaces at a time: the API server lets nobody grant more than they may do, and takes up to 100 ms to check that
/// for each Role and each RoleBinding, because it first waits until its own view of all of them is up to date.
pub(crate) async fn act(plan: &Plan, owner: &Owner, ctx: &Context) -> Met {
    let mut met = Met::default();
    let writes: Vec<_> = plan.grants.iter().map(|grant| write(grant, owner, ctx)).collect();
    let mut writes = stream::iter(writes).buffered(GRANTS_AT_A_TIME);
    while let Some((namespace, part)) = writes.next().await {
        met.add(namespace, part);
    }
    // Bindings before Roles: the access ends with its binding.
    for binding in &plan.obsolete_bindings {
        withdraw(&**binding, owner, ctx, &mut met).await;
    }
    for role in &plan.obsolete_roles {
        withdraw(&**role, owner, ctx, &mut met).await;
    }
    met
}

/// Whether the finalizer of an object can be removed as far as its grants in other namespaces are concerned: none is left, or
/// the deadline of the clean-up has passed, and an event says what is left. Reads live, because the caches may not show yet
/// what was just written.
pub(crate) async fn is_cleaned_up<K: CoderResource>(
    object: &K,
    grantee: &Grantee,
    cleanup: Option<Cleanup>,
    grant_blockers: &[(String, Blocker)],
    ctx: &Context,
    done: &mut ActResult,
) -> bool {
    let is_over = cleanup.is_some_and(Cleanup::is_over);
    if !(grant_blockers.is_empty() || is_over) {
        return false;
    }
    let left = match left(grantee, ctx).await {
        Ok(left) if left.is_empty() => return true,
        Ok(left) => Ok(left),
        Err(error) => {
            Err(client::blocker("list the Roles and RoleBindings of workspaces in other namespaces", &error))
        }
    };
    if is_over {
        let why = grant_blockers.first().map(|(_, blocker)| blocker);
        let event = stray::abandoned(left.as_deref(), why);
        tracing::warn!(reason = %event.reason, "{}", event.message);
        ctx.events.publish(&object.object_ref(&()), &event).await;
        return true;
    }
    done.failures.push(left.map_or_else(
        |blocker| blocker,
        |left| {
            let count = left.len();
            let message =
                format!("waiting for the removal of {count} Roles and RoleBindings in other namespaces");
            Blocker { reason: Reason::Deleting, message, retry: Retry::Soon }
        },
    ));
    false
}

/// What is left in other namespaces of what was written for this very object, in words.
async fn left(grantee: &Grantee, ctx: &Context) -> kube::Result<Vec<String>> {
    let bindings = left_of::<RoleBinding>(grantee, ctx).await?;
    Ok([bindings, left_of::<Role>(grantee, ctx).await?].concat())
}

async fn left_of<K: NamespacedKind>(grantee: &Grantee, ctx: &Context) -> kube::Result<Vec<String>> {
    let labels =
        grantee.labels().into_iter().chain([(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())]);
    let params = ListParams::default().labels_from(&labels.collect());
    let mut left = Vec::new();
    for namespace in ctx.policy.scope.each() {
        let all = api::<K>(&ctx.client, namespace.as_deref()).list_metadata(&params).await?;
        let others = all.iter().filter(|found| found.namespace().as_ref() != Some(&grantee.namespace));
        let ours = others.filter(|found| found.metadata.deletion_timestamp.is_none() && grantee.made(*found));
        left.extend(ours.map(|found| {
            format!(
                "{} {} in namespace {}",
                K::kind(&()),
                found.name_any(),
                found.namespace().unwrap_or_default()
            )
        }));
    }
    Ok(left)
}

/// Writes the Role and then its binding. Returns what failed, with the namespace.
async fn write<'a>(grant: &'a WorkspaceGrant, owner: &Owner, ctx: &Context) -> (&'a str, ActResult) {
    let (owner, mut result) = (&owner_in(owner, &grant.namespace), ActResult::default());
    let done = &mut result;
    let (role, binding) = (grant.role.name_any(), grant.binding.name_any());
    let cached_role = ctx.caches.roles.get(&grant.namespace, &role);
    let mut role = apply(ctx, owner, grant.role.clone(), cached_role.clone(), done).await;
    if !grant.extra.is_empty() && done.failures.iter().any(|failure| failure.reason == Reason::Forbidden) {
        role = write_grantable(grant, owner, ctx, cached_role, done).await;
    }
    let cached = ctx.caches.bindings.get(&grant.namespace, &binding);
    // A binding to the Role of somebody else would give the pods whatever that one puts into it.
    if role.is_some_and(|role| owner.owns(&*role)) {
        apply(ctx, owner, grant.binding.clone(), cached, done).await;
    } else if !done.foreign.is_empty()
        && let Some(bound) = cached.filter(|binding| owner.owns(&**binding))
    {
        remove(ctx, owner, &*bound, done).await;
    }
    (&grant.namespace, result)
}

/// Applies the Role without the rules that the API server refuses, which lets nobody grant more than they may do. The other
/// rules stay granted, and rules that the spec no longer gives do not. `done` has the failure of the whole Role. Returns the
/// Role as it is now.
async fn write_grantable(
    grant: &WorkspaceGrant,
    owner: &Owner,
    ctx: &Context,
    cached: Option<Arc<Role>>,
    done: &mut ActResult,
) -> Option<Arc<Role>> {
    let (mut granted, mut refused) = (Vec::new(), Vec::new());
    // At most two requests for each rule: a part that is refused is halved.
    let mut parts = vec![grant.extra.as_slice()];
    while let Some(part) = parts.pop() {
        let is_whole = part.len() == grant.extra.len();
        // The whole was just refused. A refusal of a Role without any of the rules is not about them.
        let tried = if is_whole { &[] } else { part };
        match ctx.applier.would_accept(owner, grant.role_with(tried)).await {
            Ok(true) if !is_whole => granted.extend_from_slice(part),
            Ok(false) if is_whole => return cached,
            Ok(_) if part.len() == 1 => refused.extend_from_slice(part),
            Ok(_) => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error) => {
                let what = format!("check the rules of Role {}", grant.role.name_any());
                done.failures.push(client::blocker(&what, &error));
                return cached;
            }
        }
    }
    done.failures.clear();
    done.failures.extend(refused.iter().map(|rule| grant.ungrantable(rule)));
    apply(ctx, owner, grant.role_with(&granted), cached, done).await
}

async fn withdraw<K: NamespacedKind>(object: &K, owner: &Owner, ctx: &Context, met: &mut Met) {
    let namespace = object.namespace().unwrap_or_default();
    let mut part = ActResult::default();
    remove(ctx, &owner_in(owner, &namespace), object, &mut part).await;
    met.add(&namespace, part);
}

/// The owner of children in a namespace. An owner reference cannot cross namespaces, so that labels name the owner there.
fn owner_in(owner: &Owner, namespace: &str) -> Owner {
    if namespace == owner.namespace {
        owner.clone()
    } else {
        owner.in_namespace(namespace, annotation::WORKSPACE_RBAC_OWNER_UID)
    }
}
