//! All reads of a pass. Children come from caches: a step that cannot be undone looks again itself. What is known of
//! Secrets, ConfigMaps and Namespaces is read live once, and again when a watch says that it changed.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::{
    controlplane::{Children, Seen, access_url},
    outcome::Failure,
    sources,
    workspace_access::{self, Consent, Existing},
};
use coder_k8s_engine::key::Key;
use kube::ResourceExt;

use crate::controller::{Context, Scope};

/// What there is of the object, its children, and what it refers to. The second value tells of namespaces that could not
/// be asked.
pub(super) async fn observe(
    key: &Key,
    object: Arc<CoderControlPlane>,
    ctx: &Context,
) -> (Seen, Vec<(String, Failure)>) {
    let children = children(key, &object, ctx);
    let inspected = access_url::inspected(&object);
    let wanted = sources::wanted(&object.spec.pod, &object.spec.tls, &inspected);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.lookups.sources(&ctx.client, key, &uid, wanted).await;
    let (consent, unasked) = consent(key, &object, &children.rbac, ctx).await;
    let gateway_api = ctx.gateway_api.load(Ordering::SeqCst);
    let privileged_rules = ctx.privileged_rules;
    let coderd = ctx.talks.report(key, object.uid().as_ref());
    (Seen { object, children, sources, consent, gateway_api, privileged_rules, coderd }, unasked)
}

fn children(key: &Key, object: &CoderControlPlane, ctx: &Context) -> Children {
    let (caches, namespace, name) = (&ctx.caches, &key.namespace, &key.name);
    let served = format!("{namespace}/{name}");
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

/// Whether the other namespaces that are asked for consent. One that cannot be asked is taken to think as it did.
async fn consent(
    key: &Key,
    object: &CoderControlPlane,
    existing: &Existing,
    ctx: &Context,
) -> (BTreeMap<String, Consent>, Vec<(String, Failure)>) {
    let (mut all, mut unasked) = (BTreeMap::new(), Vec::new());
    for namespace in workspace_access::targets(&object.spec.rbac, &key.namespace) {
        if namespace == key.namespace {
            continue;
        }
        let consent = match &ctx.scope {
            Scope::Namespaces(_) if ctx.scope.includes(&namespace) => Consent::Given,
            Scope::Namespaces(_) => Consent::Unwatched,
            Scope::Everywhere => match ctx.lookups.consent(&ctx.client, key, &namespace).await {
                Ok(consent) => consent,
                Err(failure) => {
                    let stands = existing.bindings.iter().any(|b| b.namespace().as_ref() == Some(&namespace));
                    unasked.push((namespace.clone(), failure));
                    if stands { Consent::Given } else { Consent::Missing }
                }
            },
        };
        all.insert(namespace, consent);
    }
    (all, unasked)
}
