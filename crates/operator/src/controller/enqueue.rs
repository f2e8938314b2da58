//! What a change means: whom it wakes.

use std::{collections::BTreeSet, time::Duration};

use coder_k8s_api::names::label;
use coder_k8s_core::{
    condition::timeless,
    references::{Reference, References},
};
use coder_k8s_engine::{key::Key, object_watch::Change};
use kube::{Resource, ResourceExt};

use super::{Context, caches::kind, context::CoderResource};

/// How long the news that an owner is gone may take longer than the news of its children.
const NEWS: Duration = Duration::from_millis(300);

/// The Gateway API came or went: whoever has a route is looked at.
pub(super) fn enqueue_routed(ctx: &Context) {
    let routed = ctx
        .caches
        .control_planes
        .filter(|plane| plane.spec.expose.as_ref().is_some_and(|e| e.gateway.is_some()));
    enqueue(ctx, routed.iter().map(|plane| Key::of(kind::CONTROL_PLANE, &**plane)));
    let routed = ctx
        .caches
        .workspace_proxies
        .filter(|proxy| proxy.spec.expose.as_ref().is_some_and(|e| e.gateway.is_some()));
    enqueue(ctx, routed.iter().map(|proxy| Key::of(kind::WORKSPACE_PROXY, &**proxy)));
}

pub(super) fn enqueue(ctx: &Context, keys: impl IntoIterator<Item = Key>) {
    keys.into_iter().for_each(|key| ctx.enqueue(key));
}

/// A change of one of our objects wakes it, and those that refer to it. What the operator itself wrote to the status
/// wakes nobody but those to whom it matters.
pub(super) fn root_changed<K: CoderResource + References>(ctx: &Context, change: &Change<'_, K>) {
    let kind = kind_of::<K>();
    match change {
        Change::Updated { before, now } => {
            let key = Key::of(kind, *now);
            if before.is_none_or(|before| asks_for_something_else(before, now)) {
                ctx.references.set(&key, targets(*now, &key.namespace));
                enqueue(ctx, ctx.references.of(&key));
                ctx.enqueue(key);
                return;
            }
            if before.is_some_and(|before| says_something_else(before, now)) {
                enqueue(ctx, ctx.references.of(&key));
            }
            if !ctx.wrote(&key, now.status()) {
                ctx.enqueue(key);
            }
        }
        Change::Deleted(object) => {
            let key = Key::of(kind, *object);
            ctx.references.set(&key, BTreeSet::new());
            ctx.forget(&key);
            ctx.queue_of(&key).forget(&key);
            enqueue(ctx, ctx.references.of(&key));
        }
    }
}

/// Whether anything but the status differs.
fn asks_for_something_else<K: Resource>(before: &K, now: &K) -> bool {
    let asked = |object: &K| {
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
    asked(before) != asked(now)
}

/// Whether the status differs in anything but times.
fn says_something_else<K: CoderResource>(before: &K, now: &K) -> bool {
    let said =
        |object: &K| object.status().and_then(|status| serde_json::to_value(status).ok()).map(timeless);
    said(before) != said(now)
}

/// A change of a child wakes its owner. One that is gone may have gone with its owner, of which the news is on its way:
/// then nothing is to be made again.
pub(super) fn child_changed<K: Resource<DynamicType = ()>>(ctx: &Context, change: &Change<'_, K>) {
    match change {
        Change::Updated { now, .. } => owners(*now).for_each(|owner| ctx.enqueue(owner)),
        Change::Deleted(object) => {
            ctx.applier.forget(*object);
            owners(*object).for_each(|owner| ctx.queue_of(&owner).enqueue_within(owner, NEWS));
        }
    }
}

/// The objects of ours that control a child.
fn owners<K: Resource>(child: &K) -> impl Iterator<Item = Key> {
    let controls = child.owner_references().iter().filter(|owner| owner.controller == Some(true));
    let named = controls.filter_map(|owner| {
        let ours = [kind::CONTROL_PLANE, kind::PROVISIONER, kind::WORKSPACE_PROXY];
        let kind = ours.into_iter().find(|kind| *kind == owner.kind)?;
        Some(Key::new(kind, child.namespace().unwrap_or_default(), &owner.name))
    });
    named.chain(served_elsewhere(child))
}

/// The object that a child serves from another namespace, where no reference can name it.
fn served_elsewhere<K: Resource>(child: &K) -> Option<Key> {
    let labels = child.labels();
    let by =
        |kind, name: &str, namespace: &str| Some(Key::new(kind, labels.get(namespace)?, labels.get(name)?));
    let served = by(kind::CONTROL_PLANE, label::CONTROL_PLANE, label::CONTROL_PLANE_NAMESPACE)
        .or_else(|| by(kind::PROVISIONER, label::PROVISIONER, label::PROVISIONER_NAMESPACE));
    served.filter(|_| child.owner_references().is_empty())
}

fn targets<K: References>(object: &K, namespace: &str) -> BTreeSet<Key> {
    let key = |reference| match reference {
        Reference::Secret(name) => Key::new(kind::SECRET, namespace, name),
        Reference::ConfigMap(name) => Key::new(kind::CONFIG_MAP, namespace, name),
        Reference::Namespace(name) => Key::new(kind::NAMESPACE, "", name),
        Reference::ControlPlane(name) => Key::new(kind::CONTROL_PLANE, namespace, name),
    };
    object.references().into_iter().map(key).collect()
}

fn kind_of<K: Resource<DynamicType = ()>>() -> &'static str {
    match &*K::kind(&()) {
        kind::CONTROL_PLANE => kind::CONTROL_PLANE,
        kind::PROVISIONER => kind::PROVISIONER,
        _ => kind::WORKSPACE_PROXY,
    }
}
