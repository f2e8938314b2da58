//! The way from a change to a reconcile: which objects a change enqueues, into which queue, and who reconciles them.
//!
//! Watches call this with each change. A change enqueues the object itself, its owner, and the objects that refer to it, each
//! into the queue of its kind. A status that this process wrote, and a child that it changed, enqueue nothing of their own, so
//! that an object at rest stays at rest.

use std::{collections::BTreeSet, sync::Arc};

use coder_k8s_api::{CoderKind, Expose};
use coder_k8s_core::{
    condition::timeless,
    sources::{Reference, References},
    workspace_access::served,
};
use coder_k8s_engine::{
    cache::ObjectKey,
    object_watch::ObjectEvent,
    queue::{Action, Queue},
};
use kube::{Resource, ResourceExt};

use super::{
    Context,
    kinds::{CoderResource, ReferencedKind, controllers, is_controlled},
};

/// Reconciles one object of any kind. Whatever asks for a delay: a clean-up is continued within its deadline.
pub(super) async fn reconcile(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let (object, shared) = (key.clone(), ctx.clone());
    let next = match CoderKind::named(key.kind) {
        Some(CoderKind::ControlPlane) => crate::controlplane::reconcile(key, ctx).await,
        Some(CoderKind::Provisioner) => Box::pin(crate::provisioner::reconcile(key, ctx)).await,
        Some(CoderKind::WorkspaceProxy) => Box::pin(crate::workspaceproxy::reconcile(key, ctx)).await,
        None => Action::AwaitChange,
    };
    shared.cleanups.bound(&object, next, shared.now())
}

impl Context {
    /// The queue of a kind. Reconciles of pools and proxies call coderd and wait for it, so that they have a wide queue of
    /// their own.
    pub(crate) fn queue_of(&self, kind: CoderKind) -> &Queue {
        match kind {
            CoderKind::ControlPlane => &self.queue,
            CoderKind::Provisioner | CoderKind::WorkspaceProxy => &self.dependents.schedule.queue,
        }
    }

    /// Enqueues an object into the queue of its kind. Keys of other kinds than [`CoderKind`] are ignored.
    pub(crate) fn enqueue(&self, key: ObjectKey) {
        if let Some(kind) = CoderKind::named(key.kind) {
            self.queue_of(kind).enqueue(key);
        }
    }

    /// Enqueues an object that probably needs nothing behind those that do.
    pub(super) fn enqueue_unhurried(&self, key: ObjectKey) {
        if let Some(kind) = CoderKind::named(key.kind) {
            self.queue_of(kind).enqueue_unhurried(key);
        }
    }

    /// Enqueues an object of which a child was deleted. If the object was deleted as well, the watch of its kind may tell
    /// that later than the watch of the child does, and the child must not be created again. So the next reconcile reads the
    /// object live.
    pub(super) fn child_deleted(&self, owner: ObjectKey) {
        self.perhaps_deleted.lock().insert(owner.clone());
        self.enqueue(owner);
    }
}

/// Enqueues every object with a route, because the Gateway API was installed or removed.
pub(super) fn enqueue_routed(ctx: &Context) {
    let has_route = |expose: &Option<Expose>| expose.as_ref().is_some_and(|expose| expose.gateway.is_some());
    for kind in CoderKind::ALL.iter().copied() {
        match kind {
            CoderKind::ControlPlane => {
                let routed = ctx.caches.control_planes.filter(|plane| has_route(&plane.spec.expose));
                enqueue(ctx, routed.iter().map(|plane| ObjectKey::of(kind.as_str(), &**plane)));
            }
            CoderKind::WorkspaceProxy => {
                let routed = ctx.caches.workspace_proxies.filter(|proxy| has_route(&proxy.spec.expose));
                enqueue(ctx, routed.iter().map(|proxy| ObjectKey::of(kind.as_str(), &**proxy)));
            }
            // Nothing connects to a pool.
            CoderKind::Provisioner => {}
        }
    }
}

pub(super) fn enqueue(ctx: &Context, keys: impl IntoIterator<Item = ObjectKey>) {
    keys.into_iter().for_each(|key| ctx.enqueue(key));
}

/// Enqueues an object of a [`CoderKind`] that changed, and the objects that refer to it. A status that this process wrote
/// enqueues only the objects that refer to it, and only if more than a time changed.
pub(super) fn coder_object_changed<K: CoderResource + References>(
    ctx: &Context,
    change: &ObjectEvent<'_, K>,
) {
    let kind = K::KIND;
    match change {
        ObjectEvent::Updated { before, now, is_listed: _ } => {
            let key = ObjectKey::of(kind.as_str(), *now);
            if before.is_none_or(|before| is_edited(before, now)) {
                ctx.references.set(&key, referenced(*now, &key.namespace));
                if before.is_none() && is_observed(*now) {
                    // Found at a start.
                    ctx.references.of(&key).into_iter().for_each(|key| ctx.enqueue_unhurried(key));
                    ctx.enqueue_unhurried(key);
                    return;
                }
                enqueue(ctx, ctx.references.of(&key));
                ctx.enqueue(key);
                return;
            }
            let referrers = ctx.references.of(&key);
            if !referrers.is_empty() && before.is_some_and(|before| has_new_status(before, now)) {
                enqueue(ctx, referrers);
            }
            // A status that somebody else wrote is corrected; the one of this process is what it decided anyway.
            if !ctx.is_own_status(&key, now.status()) {
                ctx.enqueue(key);
            }
        }
        ObjectEvent::Deleted(object) => {
            let key = ObjectKey::of(kind.as_str(), *object);
            ctx.references.set(&key, BTreeSet::new());
            ctx.forget(&key);
            ctx.queue_of(kind).forget(&key);
            enqueue(ctx, ctx.references.of(&key));
            enqueue(ctx, claimants(ctx, *object));
        }
    }
}

/// The objects that ask for the same name in coderd, one of which may have it now.
fn claimants<K: CoderResource>(ctx: &Context, gone: &K) -> Vec<ObjectKey> {
    let Some(claim) = gone.claim() else { return Vec::new() };
    match K::KIND {
        CoderKind::ControlPlane => Vec::new(),
        CoderKind::Provisioner => ctx.caches.provisioners.keys_of_group(&claim),
        CoderKind::WorkspaceProxy => ctx.caches.workspace_proxies.keys_of_group(&claim),
    }
}

/// Whether an operator has already written a status for the object as it is.
fn is_observed<K: CoderResource>(object: &K) -> bool {
    let meta = object.meta();
    let observed = object.status().and_then(|status| K::workload(status).observed_generation);
    meta.deletion_timestamp.is_none() && observed.is_some() && observed == meta.generation
}

/// Whether anything but the status differs. The generation covers the spec.
fn is_edited<K: Resource>(before: &K, now: &K) -> bool {
    let without_status = |object: &K| {
        let meta = object.meta();
        let (labels, annotations) = (meta.labels.clone(), meta.annotations.clone());
        (
            meta.uid.clone(),
            meta.generation,
            meta.deletion_timestamp.clone(),
            meta.finalizers.clone(),
            labels,
            annotations,
        )
    };
    without_status(before) != without_status(now)
}

/// Whether the status differs in anything but times.
fn has_new_status<K: CoderResource>(before: &K, now: &K) -> bool {
    let timeless_status =
        |object: &K| object.status().and_then(|status| serde_json::to_value(status).ok()).map(timeless);
    timeless_status(before) != timeless_status(now)
}

/// Enqueues the owner of a child that changed, unless it is exactly what a reconcile of the owner has just written.
///
/// One that is seen for the first time was found at a start, or written by this process. It counts as a change all the same: a
/// reconcile that has decided meanwhile that it is not to exist could not see it. So does one that a list delivers, because
/// versions before it may have been missed; and one in another namespace, whose grant another reconcile may have decided about
/// by the version before.
pub(super) fn child_changed<K: Resource<DynamicType = ()>>(ctx: &Context, change: &ObjectEvent<'_, K>) {
    match change {
        ObjectEvent::Updated { before, now, is_listed } => {
            let is_response = ctx.applier.delivered(*now);
            match before {
                Some(_) if is_response && !is_listed && is_controlled(*now) => {}
                Some(_) => enqueue(ctx, owners(ctx, *now)),
                None => owners(ctx, *now).for_each(|owner| ctx.enqueue_unhurried(owner)),
            }
        }
        ObjectEvent::Deleted(object) => {
            ctx.applier.forget(*object);
            owners(ctx, *object).for_each(|owner| ctx.child_deleted(owner));
        }
    }
}

/// The objects that control a child, by owner reference or by label.
fn owners<K: Resource>(ctx: &Context, child: &K) -> impl Iterator<Item = ObjectKey> {
    controllers(child).chain(served_elsewhere(ctx, child))
}

/// The object that a child in another namespace serves. An owner reference cannot cross namespaces, so that labels name it,
/// perhaps shortened. An object that is not cached yet is enqueued by its own watch.
fn served_elsewhere<K: Resource>(ctx: &Context, child: &K) -> Vec<ObjectKey> {
    let Some(group) = served(child).filter(|_| child.owner_references().is_empty()) else {
        return Vec::new();
    };
    let keys = |kind: &CoderKind| match kind {
        CoderKind::ControlPlane => ctx.caches.control_planes.keys_of_group(&group),
        CoderKind::Provisioner => ctx.caches.provisioners.keys_of_group(&group),
        // A proxy has no children in other namespaces.
        CoderKind::WorkspaceProxy => Vec::new(),
    };
    CoderKind::ALL.iter().flat_map(keys).collect()
}

/// Forgets what is known of a referenced object that changed, and enqueues the objects that refer to it. `referenced` is None if
/// the watch missed events, so that any object of the kind may have changed.
pub(super) fn referenced_changed(ctx: &Context, kind: ReferencedKind, referenced: Option<&ObjectKey>) {
    let referrers = match referenced {
        Some(referenced) => ctx.references.of(referenced).into_iter().collect(),
        None => ctx.references.of_kind(kind.as_str()),
    };
    for referrer in &referrers {
        ctx.referenced.changed(referrer, kind, referenced);
        let Some(referrer_kind) = CoderKind::named(referrer.kind) else { continue };
        match (referrer_kind, kind) {
            (CoderKind::ControlPlane, ReferencedKind::Secret | ReferencedKind::ConfigMap) => {
                ctx.coderd_sync
                    .source_changed(referrer, referenced.map_or("", |referenced| &referenced.name));
            }
            (CoderKind::Provisioner | CoderKind::WorkspaceProxy, ReferencedKind::Secret) => {
                match referenced {
                    Some(_) => ctx.dependents.make_due(referrer),
                    None => ctx.dependents.watch_gap(referrer),
                }
            }
            (
                CoderKind::ControlPlane | CoderKind::Provisioner | CoderKind::WorkspaceProxy,
                ReferencedKind::Namespace,
            )
            | (CoderKind::Provisioner | CoderKind::WorkspaceProxy, ReferencedKind::ConfigMap) => {}
        }
    }
    match referenced {
        Some(_) => enqueue(ctx, referrers),
        None => referrers.into_iter().for_each(|referrer| ctx.enqueue_unhurried(referrer)),
    }
}

/// The keys of everything that an object refers to.
fn referenced<K: References>(object: &K, namespace: &str) -> BTreeSet<ObjectKey> {
    let key = |reference| match reference {
        Reference::Secret(name) => ReferencedKind::Secret.key(namespace, &name),
        Reference::ConfigMap(name) => ReferencedKind::ConfigMap.key(namespace, &name),
        Reference::Namespace(name) => ReferencedKind::Namespace.key("", &name),
        Reference::ControlPlane(name) => ObjectKey::new(CoderKind::ControlPlane.as_str(), namespace, name),
    };
    object.references().into_iter().map(key).collect()
}
