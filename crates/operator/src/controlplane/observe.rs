//! All reads of a reconcile.
//!
//! Children come from caches, which may be outdated: irreversible effects read live again themselves. Secrets, ConfigMaps
//! and Namespaces are read live once, and again when a watch shows a change. What coderd answered comes from the reports of
//! the sync and the daemon poll.

use std::sync::{Arc, atomic::Ordering};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::{
    controlplane::{Children, Observed, access_url},
    sources,
    workspace_access::{self, Existing},
};
use coder_k8s_engine::cache::ObjectKey;
use kube::ResourceExt;

use crate::controller::{Context, served_by, workspaces};

pub(super) struct Observation {
    pub(super) plane: Observed,
    /// The namespaces whose consent could not be read.
    pub(super) unknown_consent: workspaces::GrantBlockers,
}

/// Observes the object, its children, what it refers to, and what is known of its coderd.
pub(super) async fn observe(key: &ObjectKey, object: Arc<CoderControlPlane>, ctx: &Context) -> Observation {
    let children = children(key, &object, ctx);
    let inspected = access_url::inspected(&object);
    let desired = sources::desired(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    let (consent, unknown_consent) = workspaces::consent(key, &object.spec.rbac, &children.rbac, ctx).await;
    let gateway_api = ctx.gateway_api.load(Ordering::SeqCst);
    let privileged_rules = ctx.policy.privileged_rules;
    let coderd = ctx.coderd_sync.report(key, object.uid().as_ref());
    let jobs = ctx.daemon_poller.jobs(key, ctx);
    let plane = Observed { object, children, sources, consent, gateway_api, privileged_rules, coderd, jobs };
    Observation { plane, unknown_consent }
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
