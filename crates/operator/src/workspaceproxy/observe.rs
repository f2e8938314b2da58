//! All reads of a pass that need no coderd.

use std::sync::{Arc, atomic::Ordering};

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_core::{
    sources,
    workspaceproxy::{Children, Observed, addresses, names},
};
use coder_k8s_engine::key::Key;
use kube::ResourceExt;

use super::target::Reached;
use crate::controller::Context;

/// What there is of the object, its children, and what it refers to.
pub(super) async fn observe(
    key: &Key,
    object: Arc<CoderWorkspaceProxy>,
    reached: &Reached,
    ctx: &Context,
) -> Observed {
    let inspected = addresses(&object).inspected(&object.spec.pod);
    let desired = sources::desired(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    Observed {
        children: children(key, &object, ctx),
        control_plane: reached.control_plane.clone(),
        object,
        sources,
        gateway_api: ctx.gateway_api.load(Ordering::SeqCst),
        gate: reached.gate.clone(),
        credentials: reached.credentials.clone(),
    }
}

fn children(key: &Key, object: &CoderWorkspaceProxy, ctx: &Context) -> Children {
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
