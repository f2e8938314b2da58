//! All reads of a reconcile that precede its decisions.
//!
//! Children and the control plane come from caches; Secrets with tokens are read live. coderd is asked here only for what no
//! control plane publishes: its identity and its entitlements. The registration is queried later, when a decision needs it.

use std::sync::{Arc, atomic::Ordering};

use coder_k8s_api::{CoderWorkspaceProxy, condition::kind};
use coder_k8s_core::{
    sources,
    workspaceproxy::{Children, Observed, addresses, names},
};
use coder_k8s_engine::cache::ObjectKey;
use kube::ResourceExt;

use super::{
    registration::{self, RegistrationReconciler},
    target,
};
use crate::controller::Context;

/// Observes the object, its children, the coderd that it registers with, what it refers to, and the Secrets with its token.
/// None: the object was never stored.
pub(super) async fn observe(
    key: &ObjectKey,
    object: Arc<CoderWorkspaceProxy>,
    ctx: &Arc<Context>,
) -> Option<(Observed, RegistrationReconciler)> {
    let verify_due = ctx.verify_schedule.is_due(key, &*object, kind::REGISTERED);
    let target = target::find(key, &object, verify_due, ctx).await;
    let inspected = addresses(&object).inspected(&object.spec.pod);
    let desired = sources::desired(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    let observed = Observed {
        children: children(key, &object, ctx),
        control_plane: target.control_plane.clone(),
        object,
        sources,
        gateway_api: ctx.gateway_api.load(Ordering::SeqCst),
        gate: target.gate.clone(),
        credentials: target.credentials.clone(),
    };
    let registration = registration::begin(key, &observed, target, verify_due, ctx).await?;
    Some((observed, registration))
}

fn children(key: &ObjectKey, object: &CoderWorkspaceProxy, ctx: &Context) -> Children {
    let (caches, namespace, name) = (&ctx.caches, &key.namespace, names::child(&key.name));
    Children {
        deployment: caches.deployments.get(namespace, &name),
        service: caches.services.get(namespace, &name),
        ingress: caches.ingresses.get(namespace, &name),
        route: caches.routes.get(namespace, &name),
        budget: caches.budgets.get(namespace, &name),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
    }
}
