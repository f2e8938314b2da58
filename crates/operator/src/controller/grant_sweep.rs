//! Removes Roles and RoleBindings of workspaces in other namespaces that no reconcile would remove: their object was deleted
//! without its finalizer, or is paused or unreadable and has lost the consent of the namespace.
//!
//! The caches say which grants have no object that is reconciled. At rest there are none, and nothing is read or written. Others
//! are removed after a live read of the objects of their kind in the namespace that they come from, a bounded number in a round.
//! Grants for a namespace that this install does not watch are left alone. What is lost is decided in
//! `core::workspace_access::stray`.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner};
use coder_k8s_core::{
    object,
    workspace_access::{
        Consent, GranteeKind, served,
        stray::{GrantOrigin, Loss},
    },
};
use coder_k8s_engine::{
    apply::NamespacedKind,
    cache::{Cache, ObjectKey},
    client,
};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{Api, ResourceExt, api::ListParams};
use tokio_util::sync::CancellationToken;

use super::{Context, kinds::CoderResource, referenced::read_consent};
use crate::{coderd::schedule::jittered, intervals::GRANT_SWEEP};

/// How many grants a round looks at live. The next round begins where it ended.
const MAX_IN_ROUND: usize = 100;

/// Sweeps at once and then at an interval, until `stop`.
pub(super) async fn run(ctx: &Context, stop: CancellationToken) {
    let mut seen: usize = 0;
    loop {
        tokio::select! {
            looked_at = sweep(seen, ctx) => seen = seen.wrapping_add(looked_at),
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(GRANT_SWEEP)) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// One round. `seen` is how many grants earlier rounds looked at. Returns how many this one did.
async fn sweep(seen: usize, ctx: &Context) -> usize {
    // All before the first live read: an object that a grant was written for then existed before that read.
    let (bindings, roles) = (strays(&ctx.caches.bindings, ctx), strays(&ctx.caches.roles, ctx));
    let mut owners = LiveOwners::default();
    // Bindings before Roles: the access ends with its binding.
    sweep_kind::<RoleBinding>(bindings, seen, &mut owners, ctx).await
        + sweep_kind::<Role>(roles, seen, &mut owners, ctx).await
}

/// The grants whose object is not cached. Those of a paused object are left to it: it is enqueued, and reviews them.
fn strays<K: NamespacedKind>(cache: &Cache<K>, ctx: &Context) -> Vec<(Arc<K>, GrantOrigin)> {
    let found = cache.filter(|grant| {
        let origin = GrantOrigin::of(grant).filter(|origin| ctx.policy.scope.includes(&origin.source));
        let group = served(grant).unwrap_or_default();
        origin.is_some_and(|origin| match origin.kind {
            GranteeKind::ControlPlane => is_stray(&ctx.caches.control_planes, &group, &origin, ctx),
            GranteeKind::Provisioner => is_stray(&ctx.caches.provisioners, &group, &origin, ctx),
        })
    });
    let marked = found.into_iter().filter_map(|grant| GrantOrigin::of(&*grant).map(|origin| (grant, origin)));
    let mut strays: Vec<_> = marked.collect();
    strays.sort_by_key(|(grant, _)| (grant.namespace(), grant.name_any()));
    strays
}

fn is_stray<O: CoderResource>(owners: &Cache<O>, group: &str, origin: &GrantOrigin, ctx: &Context) -> bool {
    let cached = owners.of_group(group);
    let owner = cached.iter().find(|owner| owner.uid().as_ref() == Some(&origin.uid));
    if let Some(paused) = owner.filter(|owner| object::is_paused(&***owner)) {
        ctx.enqueue(ObjectKey::of(O::KIND.as_str(), &**paused));
    }
    owner.is_none()
}

async fn sweep_kind<K: NamespacedKind>(
    mut strays: Vec<(Arc<K>, GrantOrigin)>,
    seen: usize,
    owners: &mut LiveOwners,
    ctx: &Context,
) -> usize {
    if !strays.is_empty() {
        let start = seen % strays.len();
        strays.rotate_left(start);
    }
    strays.truncate(MAX_IN_ROUND);
    for (grant, origin) in &strays {
        if let Some(loss) = loss(&**grant, origin, owners, ctx).await {
            remove(&**grant, origin, loss, ctx).await;
        }
    }
    strays.len()
}

/// Why a grant without a cached object ends. None: it does not, or that could not be read.
async fn loss<K: NamespacedKind>(
    grant: &K,
    origin: &GrantOrigin,
    owners: &mut LiveOwners,
    ctx: &Context,
) -> Option<Loss> {
    let exists = owners.contain(origin, ctx).await?;
    let consent = if exists {
        // An object that cannot be parsed is not reconciled.
        read_consent(&ctx.client, &grant.namespace()?, &origin.source).await.ok()?
    } else {
        Consent::Unknown
    };
    Loss::of(grant, exists, consent, ctx.policy.grants)
}

async fn remove<K: NamespacedKind>(grant: &K, origin: &GrantOrigin, loss: Loss, ctx: &Context) {
    let what = format!("{} {}", K::kind(&()), grant.name_any());
    match ctx.applier.remove_stray(grant).await {
        Ok(true) => {
            let event = loss.event(&what, origin);
            let namespace = grant.namespace().unwrap_or_default();
            tracing::info!(reason = %event.reason, namespace, "{}", event.message);
            ctx.events.publish(&grant.object_ref(&()), &event).await;
        }
        Ok(false) => {}
        Err(error) => {
            let namespace = grant.namespace().unwrap_or_default();
            tracing::warn!(
                namespace,
                "cannot remove {what}, whose object is gone: {}",
                client::describe(&error)
            );
        }
    }
}

/// The UIDs of the objects of a kind in a namespace, each read once in a round. None: they could not be read.
#[derive(Default)]
struct LiveOwners {
    read: HashMap<(GranteeKind, String), Option<HashSet<String>>>,
}

impl LiveOwners {
    /// Whether the object of a grant exists. By its UID, because its label may hold but a part of its name.
    async fn contain(&mut self, origin: &GrantOrigin, ctx: &Context) -> Option<bool> {
        let key = (origin.kind, origin.source.clone());
        if !self.read.contains_key(&key) {
            let read = match origin.kind {
                GranteeKind::ControlPlane => uids::<CoderControlPlane>(&origin.source, ctx).await,
                GranteeKind::Provisioner => uids::<CoderProvisioner>(&origin.source, ctx).await,
            };
            self.read.insert(key.clone(), read);
        }
        self.read.get(&key)?.as_ref().map(|uids| uids.contains(&origin.uid))
    }
}

async fn uids<O: CoderResource>(namespace: &str, ctx: &Context) -> Option<HashSet<String>> {
    let api: Api<O> = Api::namespaced(ctx.client.clone(), namespace);
    match api.list_metadata(&ListParams::default()).await {
        Ok(all) => Some(all.iter().filter_map(ResourceExt::uid).collect()),
        Err(error) => {
            tracing::warn!(namespace, "cannot list {}: {}", O::plural(&()), client::describe(&error));
            None
        }
    }
}
