//! All reads of a pass. Children come from caches: a step that cannot be undone looks again itself. What is known of
//! Secrets, ConfigMaps and Namespaces is read live once, and again when a watch says that it changed.

use std::sync::{Arc, atomic::Ordering};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::{
    controlplane::{Children, Observed, access_url},
    outcome::Blocker,
    sources,
    workspace_access::{self, Existing},
};
use coder_k8s_engine::cache::ObjectKey;
use kube::ResourceExt;

use crate::controller::{Context, served_by, workspaces};

/// What there is of the object, its children, and what it refers to. The second value tells of namespaces that could not
/// be asked.
pub(super) async fn observe(
    key: &ObjectKey,
    object: Arc<CoderControlPlane>,
    ctx: &Context,
) -> (Observed, Vec<(String, Blocker)>) {
    let children = children(key, &object, ctx);
    let inspected = access_url::inspected(&object);
    let desired = sources::desired(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    let (consent, unasked) = workspaces::consent(key, &object.spec.rbac, &children.rbac, ctx).await;
    let gateway_api = ctx.gateway_api.load(Ordering::SeqCst);
    let privileged_rules = ctx.policy.privileged_rules;
    let coderd = ctx.coderd_sync.report(key, object.uid().as_ref());
    let jobs = ctx.daemon_poller.jobs(key, ctx);
    (Observed { object, children, sources, consent, gateway_api, privileged_rules, coderd, jobs }, unasked)
}

fn children(key: &ObjectKey, object: &CoderControlPlane, ctx: &Context) -> Children {
    let (caches, namespace, name) = (&ctx.caches, &key.namespace, &key.name);
    let served = served_by(workspace_access::Kind::ControlPlane, namespace, name);
    Children {
        deployment: caches.deployments.get(namespace, name),
        service: caches.services.get(namespace, name),
        ingress: caches.ingresses.get(namespace, name),
        route: caches.routes.get(namespace, name),
        budget: caches.budgets.get(namespace, name),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
        rbac: Existing { roles: caches.roles.of_group(&served), bindings: caches.bindings.of_group(&served) },
    }
}
