//! Starts the watches of the controller.
//!
//! Our kinds and their children are watched in full and cached. Secrets, ConfigMaps and Namespaces of others are watched as
//! metadata alone, so that no Secret of others is ever in memory; a change only enqueues the objects that refer to them.
//! Each watch has a readiness check, and starts and ends with the CRD of its kind where it has one.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{Arc, atomic::Ordering},
};

use coder_k8s_api::CoderKind;
use coder_k8s_api::names::{self, label};
use coder_k8s_core::sources::References;
use coder_k8s_engine::{
    apply::NamespacedKind,
    cache::Cache,
    crds::{Crds, Served},
    health::{Readiness, ReadyCheck},
    metadata_watch::{MetadataEvent, MetadataWatch},
    object_watch::{ObjectEvent, ObjectWatch},
    parsed_object::ParsedObject,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Namespace, Secret},
};
use kube::{Api, Client, Resource, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{
    Context,
    dispatch::{child_changed, coder_object_changed, enqueue_routed, referenced_changed},
    kinds::{CoderResource, ReferencedKind},
};

/// CRDs of others that children may need, with the version that is used.
pub(crate) const OPTIONAL_CRDS: [(&str, &str); 1] = [(HTTP_ROUTES, "v1")];
const HTTP_ROUTES: &str = "httproutes.gateway.networking.k8s.io";

/// The namespaces that the controller watches, from `--watch-namespaces`.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    Everywhere,
    Namespaces(BTreeSet<String>),
}

impl Scope {
    pub(crate) fn new(namespaces: &[String]) -> Self {
        let named: BTreeSet<_> =
            namespaces.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        if named.is_empty() { Self::Everywhere } else { Self::Namespaces(named) }
    }

    pub(crate) fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Namespaces(names) => names.contains(namespace),
        }
    }

    /// One entry for each watch of a kind: a namespace, or a single None for the whole cluster.
    pub(crate) fn each(&self) -> Vec<Option<String>> {
        match self {
            Self::Everywhere => vec![None],
            Self::Namespaces(names) => names.iter().cloned().map(Some).collect(),
        }
    }
}

/// Everything that is needed to start the watches.
pub(crate) struct Watches<'a> {
    pub(crate) ctx: &'a Arc<Context>,
    pub(crate) readiness: &'a Readiness,
    pub(crate) crds: &'a Crds,
    pub(crate) tasks: &'a mut JoinSet<()>,
}

/// The watches that must have listed before the first object is reconciled.
#[derive(Default)]
pub(crate) struct Synced {
    checks: Vec<ReadyCheck>,
    /// Our kinds, with the CRD of each, which may be missing.
    kinds: Vec<(String, ReadyCheck)>,
}

impl Synced {
    /// Waits until everything is listed. A kind whose CRD is missing, and a watch that RBAC forbids, do not delay the others.
    /// That is safe: a child that is not cached is created only if it is absent, so that none is adopted or overwritten.
    pub(crate) async fn wait(&self, readiness: &Readiness, crds: &Crds) {
        let waived =
            |crd: &str| matches!(crds.state(crd), Served::Absent | Served::Pending | Served::Older(_));
        let mut changes = readiness.changes();
        while !(self.checks.iter().all(ReadyCheck::is_decided)
            && self.kinds.iter().all(|(crd, check)| check.is_decided() || waived(crd)))
        {
            // An error is impossible: the registry of checks lives as long as the controller.
            let _ = changes.changed().await;
        }
    }
}

/// Which CRD a watch needs.
enum NeededCrd {
    /// A built-in kind has none.
    BuiltIn,
    /// One of our kinds: not synced until its CRD is installed as this release needs it.
    Required(String),
    /// Synced without its CRD, since there is nothing to list.
    Optional(&'static str),
}

impl Watches<'_> {
    /// Starts all watches.
    pub(crate) fn start(mut self, scope: &Scope) -> Synced {
        let mut synced = Synced::default();
        for namespace in scope.each() {
            let namespace = namespace.as_deref();
            let caches = self.ctx.caches.clone();
            for kind in CoderKind::ALL.iter().copied() {
                let (crd, check) = match kind {
                    CoderKind::ControlPlane => self.coder_objects(namespace, &caches.control_planes),
                    CoderKind::Provisioner => self.coder_objects(namespace, &caches.provisioners),
                    CoderKind::WorkspaceProxy => self.coder_objects(namespace, &caches.workspace_proxies),
                };
                synced.kinds.push((crd, check));
            }
            synced.checks.extend([
                self.children(namespace, caches.service_accounts),
                self.children(namespace, caches.services),
                self.children(namespace, caches.deployments),
                self.children(namespace, caches.budgets),
                self.children(namespace, caches.ingresses),
                self.children(namespace, caches.roles),
                self.children(namespace, caches.bindings),
                self.objects(
                    namespace,
                    caches.routes,
                    labelled(),
                    NeededCrd::Optional(HTTP_ROUTES),
                    child_changed,
                ),
                self.metadata_watch::<Secret>(
                    api(&self.ctx.client, namespace),
                    namespace,
                    ReferencedKind::Secret,
                ),
                self.metadata_watch::<ConfigMap>(
                    api(&self.ctx.client, namespace),
                    namespace,
                    ReferencedKind::ConfigMap,
                ),
            ]);
        }
        self.gateway_api();
        // A Role in a namespace cannot let the operator watch it: with named namespaces `consent_poll` reads them instead.
        if matches!(scope, Scope::Everywhere) {
            let api = Api::all(self.ctx.client.clone());
            synced.checks.push(self.metadata_watch::<Namespace>(api, None, ReferencedKind::Namespace));
        }
        synced
    }

    /// Watches one of our kinds. Returns the name of its CRD as well.
    fn coder_objects<K: CoderResource + References>(
        &mut self,
        namespace: Option<&str>,
        cache: &Cache<K>,
    ) -> (String, ReadyCheck) {
        let crd = format!("{}.{}", K::plural(&()), names::GROUP);
        let needed = NeededCrd::Required(crd.clone());
        let config = watcher::Config::default();
        (crd, self.objects(namespace, cache.clone(), config, needed, coder_object_changed))
    }

    /// Watches the children of one kind that bear the label of the operator.
    fn children<K: NamespacedKind>(&mut self, namespace: Option<&str>, cache: Cache<K>) -> ReadyCheck {
        self.objects(namespace, cache, labelled(), NeededCrd::BuiltIn, child_changed)
    }

    /// Watches and caches objects of one kind while its CRD is installed, and passes each change to `changed`.
    fn objects<K: NamespacedKind>(
        &mut self,
        namespace: Option<&str>,
        cache: Cache<K>,
        config: watcher::Config,
        crd: NeededCrd,
        changed: fn(&Context, &ObjectEvent<'_, K>),
    ) -> ReadyCheck {
        let check = self.readiness.ready_check(check_name(&K::plural(&()), namespace));
        let watch = ObjectWatch {
            api: api::<ParsedObject<K>>(&self.ctx.client, namespace),
            config,
            namespace: namespace.map(str::to_owned),
            cache,
            synced: check.clone(),
            metrics: self.ctx.metrics.clone(),
            outage: self.ctx.outage.clone(),
        };
        let (ctx, mut crds) = (self.ctx.clone(), self.crds.clone());
        self.tasks.spawn(async move {
            loop {
                let crd = match &crd {
                    NeededCrd::BuiltIn => return watch.run(|change| changed(&ctx, &change)).await,
                    NeededCrd::Required(crd) => {
                        watch.synced.fail("waiting for its CRD");
                        crds.ready(crd).await;
                        watch.synced.fail("not listed yet");
                        crd
                    }
                    NeededCrd::Optional(crd) => {
                        crds.known(crd).await;
                        if crds.state(crd) != Served::Ready {
                            watch.synced.pass();
                        }
                        crds.ready(crd).await;
                        *crd
                    }
                };
                tokio::select! {
                    () = watch.run(|change| changed(&ctx, &change)) => {}
                    () = crds.unready(crd) => {}
                }
                // Without its CRD a kind has no objects, and the aborted watch shows no deletions.
                watch.clear(|change| changed(&ctx, &change));
            }
        });
        check
    }

    /// Records whether the Gateway API is installed, and enqueues the objects with a route whenever that changes.
    fn gateway_api(&mut self) {
        let (ctx, mut crds) = (self.ctx.clone(), self.crds.clone());
        self.tasks.spawn(async move {
            loop {
                crds.ready(HTTP_ROUTES).await;
                ctx.gateway_api.store(true, Ordering::SeqCst);
                enqueue_routed(&ctx);
                crds.unready(HTTP_ROUTES).await;
                ctx.gateway_api.store(false, Ordering::SeqCst);
                enqueue_routed(&ctx);
            }
        });
    }

    /// Watches the metadata of a referenced kind, and enqueues the objects that refer to what changed.
    fn metadata_watch<K>(
        &mut self,
        api: Api<kube::api::PartialObjectMeta<K>>,
        namespace: Option<&str>,
        kind: ReferencedKind,
    ) -> ReadyCheck
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let synced = self.readiness.ready_check(check_name(&K::plural(&()), namespace));
        let metadata_watch = MetadataWatch {
            api,
            synced: synced.clone(),
            metrics: self.ctx.metrics.clone(),
            outage: self.ctx.outage.clone(),
        };
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move {
            metadata_watch
                .run(|event| match event {
                    MetadataEvent::Changed { namespace, name, .. } => {
                        referenced_changed(&ctx, kind, Some(&kind.key(namespace, name)));
                    }
                    MetadataEvent::Gap { .. } => referenced_changed(&ctx, kind, None),
                })
                .await;
        });
        synced
    }
}

/// Selects the children of the operator.
fn labelled() -> watcher::Config {
    watcher::Config::default().labels(&format!("{}={}", label::MANAGED_BY, label::MANAGER))
}

fn check_name(plural: &str, namespace: Option<&str>) -> String {
    namespace.map_or_else(|| format!("watch {plural}"), |namespace| format!("watch {plural} in {namespace}"))
}

/// The API of a kind in one namespace, or in all.
pub(super) fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
