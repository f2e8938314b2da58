//! Reads whether watched namespaces consent to workspaces of others, in an install with `--watch-namespaces`.
//!
//! A Role in a namespace can let the operator read that Namespace, but not watch it. So the Namespaces that some spec names for
//! workspaces, and no others, are read one by one at an interval. It is the only request of such an install at rest.

use std::collections::BTreeMap;

use coder_k8s_api::CoderKind;
use coder_k8s_core::workspace_access::{self, Consent};
use coder_k8s_engine::cache::ObjectKey;
use tokio_util::sync::CancellationToken;

use super::{Context, Scope, referenced};
use crate::coderd::schedule::jittered;

/// Polls until `stop`. Ends at once if the whole cluster is watched.
pub(super) async fn run(ctx: &Context, stop: CancellationToken) {
    if matches!(ctx.policy.scope, Scope::Everywhere) {
        return;
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(jittered(ctx.policy.consent_interval)) => {}
            () = stop.cancelled() => return,
        }
        for (namespace, referrers) in asked(ctx) {
            read(&namespace, &referrers, ctx).await;
        }
    }
}

/// Reads one Namespace, and enqueues the objects to which its answer is new. A failure changes nothing: the next poll asks
/// again, and the reconcile of an object that does not know the answer reports it.
async fn read(namespace: &str, referrers: &[ObjectKey], ctx: &Context) {
    let labels = match referenced::read_labels(&ctx.client, namespace).await {
        Ok(labels) => labels,
        Err(blocker) => return tracing::warn!(reason = %blocker.reason, "{}", blocker.message),
    };
    for referrer in referrers {
        let consent = labels
            .as_ref()
            .map_or(Consent::NoNamespace, |labels| Consent::of_labels(labels, &referrer.namespace));
        if ctx.referenced.set_consent(referrer, namespace, consent) {
            ctx.enqueue(referrer.clone());
        }
    }
}

/// The watched namespaces that specs name for workspaces, with the objects that name them.
fn asked(ctx: &Context) -> BTreeMap<String, Vec<ObjectKey>> {
    let mut all = BTreeMap::<String, Vec<ObjectKey>>::new();
    let mut add = |key: &ObjectKey, namespaces: Vec<String>| {
        for namespace in namespaces {
            if namespace != *key.namespace && ctx.policy.scope.includes(&namespace) {
                all.entry(namespace).or_default().push(key.clone());
            }
        }
    };
    for kind in CoderKind::ALL {
        match kind {
            CoderKind::ControlPlane => ctx.caches.control_planes.each(|plane| {
                let key = ObjectKey::of(kind.as_str(), plane);
                add(&key, workspace_access::asked_namespaces(&plane.spec.rbac, &key.namespace));
            }),
            CoderKind::Provisioner => ctx.caches.provisioners.each(|pool| {
                let key = ObjectKey::of(kind.as_str(), pool);
                add(&key, workspace_access::asked_namespaces(&pool.spec.rbac, &key.namespace));
            }),
            // Its pods run no workspaces.
            CoderKind::WorkspaceProxy => {}
        }
    }
    all
}
