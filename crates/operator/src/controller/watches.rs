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

use coder_k8s_api::names::{self, label};
use coder_k8s_core::{exposure::route::HTTPRoute, references::References};
use coder_k8s_engine::{
    cache::Cache,
    cache::ObjectKey,
    crds::{Crds, Served},
    health::{Readiness, ReadyCheck},
    metadata_watch::{MetadataEvent, MetadataWatch},
    object_watch::ObjectWatch,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount},
        networking::v1::Ingress,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{Api, Client, Resource, core::DeserializeGuard, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{
    Context,
    enqueue::{child_changed, coder_object_changed, enqueue, enqueue_routed},
    kinds::{CoderKind, CoderResource, ReferencedKind},
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
    pub(crate) client: &'a Client,
    pub(crate) readiness: &'a Readiness,
    pub(crate) crds: &'a Crds,
    pub(crate) tasks: &'a mut JoinSet<()>,
}

/// The watches that must have listed before the first object is reconciled.
#[derive(Default)]
pub(crate) struct Synced {
    checks: Vec<ReadyCheck>,
    /// By CRD: our kinds, whose CRD may be missing.
    kinds: Vec<(String, Vec<ReadyCheck>)>,
}

impl Synced {
    /// Waits until everything is listed. A kind whose CRD is missing, and a watch that RBAC forbids, do not delay the others.
    /// That is safe: a child that is not cached is created only if it is absent, so that none is adopted or overwritten.
    pub(crate) async fn wait(&self, readiness: &Readiness, crds: &Crds) {
        let listed = |checks: &[ReadyCheck]| checks.iter().all(ReadyCheck::settled);
        let waived =
            |crd: &str| matches!(crds.state(crd), Served::Absent | Served::Pending | Served::Older(_));
        let mut changes = readiness.changes();
        while !(listed(&self.checks) && self.kinds.iter().all(|(crd, checks)| listed(checks) || waived(crd)))
        {
            // An error is impossible: the registry of checks lives as long as the controller.
            let _ = changes.changed().await;
        }
    }
}

impl Watches<'_> {
    /// Starts all watches.
    pub(crate) fn start(mut self, scope: &Scope) -> Synced {
        let mut synced = Synced::default();
        for namespace in scope.each() {
            let namespace = namespace.as_deref();
            let caches = self.ctx.caches.clone();
            for kind in CoderKind::ALL.iter().copied() {
                match kind {
                    CoderKind::ControlPlane => {
                        self.coder_objects(namespace, caches.control_planes.clone(), &mut synced);
                    }
                    CoderKind::Provisioner => {
                        self.coder_objects(namespace, caches.provisioners.clone(), &mut synced);
                    }
                    CoderKind::WorkspaceProxy => {
                        self.coder_objects(namespace, caches.workspace_proxies.clone(), &mut synced);
                    }
                }
            }
            synced.checks.extend([
                self.children::<ServiceAccount>(namespace, caches.service_accounts),
                self.children::<Service>(namespace, caches.services),
                self.children::<Deployment>(namespace, caches.deployments),
                self.children::<PodDisruptionBudget>(namespace, caches.budgets),
                self.children::<Ingress>(namespace, caches.ingresses),
                self.children::<Role>(namespace, caches.roles),
                self.children::<RoleBinding>(namespace, caches.bindings),
                self.routes(namespace, caches.routes),
            ]);
            synced.checks.push(self.metadata_watch::<Secret>(
                api(self.client, namespace),
                namespace,
                ReferencedKind::Secret,
            ));
            synced.checks.push(self.metadata_watch::<ConfigMap>(
                api(self.client, namespace),
                namespace,
                ReferencedKind::ConfigMap,
            ));
        }
        self.gateway_api();
        // With named namespaces the operator has no right to read Namespaces: being named is the consent.
        if matches!(scope, Scope::Everywhere) {
            synced.checks.push(self.metadata_watch::<Namespace>(
                Api::all(self.client.clone()),
                None,
                ReferencedKind::Namespace,
            ));
        }
        synced
    }

    /// Watches one of our kinds while its CRD is installed as this release needs it.
    fn coder_objects<K>(&mut self, namespace: Option<&str>, cache: Cache<K>, synced: &mut Synced)
    where
        K: CoderResource + References + Send + Sync + 'static,
    {
        let crd = format!("{}.{}", K::plural(&()), names::GROUP);
        let watch = self.watch(namespace, cache, watcher::Config::default());
        let check = watch.synced.clone();
        match synced.kinds.iter_mut().find(|(name, _)| *name == crd) {
            Some((_, checks)) => checks.push(check.clone()),
            None => synced.kinds.push((crd.clone(), vec![check.clone()])),
        }
        let (ctx, mut crds) = (self.ctx.clone(), self.crds.clone());
        self.tasks.spawn(async move {
            loop {
                check.fail("waiting for its CRD");
                crds.ready(&crd).await;
                check.fail("not listed yet");
                tokio::select! {
                    () = watch.run(|change| coder_object_changed(&ctx, &change)) => {}
                    () = crds.unready(&crd) => {}
                }
                // Without its CRD a kind has no objects, and the aborted watch shows no deletions.
                watch.clear(|change| coder_object_changed(&ctx, &change));
            }
        });
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

    /// Watches our routes while the Gateway API is installed. Without it the check passes, since there is nothing to list.
    fn routes(&mut self, namespace: Option<&str>, cache: Cache<HTTPRoute>) -> ReadyCheck {
        let watch = self.watch(namespace, cache, labelled());
        let check = watch.synced.clone();
        let (ctx, mut crds) = (self.ctx.clone(), self.crds.clone());
        self.tasks.spawn(async move {
            loop {
                crds.known(HTTP_ROUTES).await;
                if crds.state(HTTP_ROUTES) != Served::Ready {
                    watch.synced.pass();
                }
                crds.ready(HTTP_ROUTES).await;
                tokio::select! {
                    () = watch.run(|change| child_changed(&ctx, &change)) => {}
                    () = crds.unready(HTTP_ROUTES) => {}
                }
                watch.clear(|change| child_changed(&ctx, &change));
            }
        });
        check
    }

    /// Watches the children of one kind that bear the label of the operator.
    fn children<K>(&mut self, namespace: Option<&str>, cache: Cache<K>) -> ReadyCheck
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let watch = self.watch(namespace, cache, labelled());
        let check = watch.synced.clone();
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move { watch.run(|change| child_changed(&ctx, &change)).await });
        check
    }

    fn watch<K>(&self, namespace: Option<&str>, cache: Cache<K>, config: watcher::Config) -> ObjectWatch<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        ObjectWatch {
            api: api::<DeserializeGuard<K>>(self.client, namespace),
            config,
            namespace: namespace.map(str::to_owned),
            cache,
            synced: self.readiness.ready_check(check_name(&K::plural(&()), namespace)),
            metrics: self.ctx.metrics.clone(),
        }
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
        let metadata_watch = MetadataWatch { api, synced: synced.clone(), metrics: self.ctx.metrics.clone() };
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move {
            let on_event = |event: MetadataEvent<'_>| match event {
                MetadataEvent::Changed { namespace, name } => {
                    let target = kind.key(namespace, name);
                    referenced_changed(
                        &ctx,
                        kind,
                        ctx.references.of(&target).into_iter().collect(),
                        Some(&target),
                    );
                }
                MetadataEvent::Gap => {
                    referenced_changed(&ctx, kind, ctx.references.of_kind(kind.as_str()), None);
                }
            };
            metadata_watch.run(on_event).await;
        });
        synced
    }
}

/// Forgets what is known of a referenced object that changed, and enqueues the objects that refer to it. `target` is None if
/// the watch missed events, so that any object of the kind may have changed.
fn referenced_changed(
    ctx: &Context,
    kind: ReferencedKind,
    referrers: BTreeSet<ObjectKey>,
    target: Option<&ObjectKey>,
) {
    for referrer in &referrers {
        match target {
            Some(target) => ctx.referenced.changed(referrer, target),
            None => ctx.referenced.watch_gap(referrer, kind),
        }
        let Some(referrer_kind) = CoderKind::named(referrer.kind) else { continue };
        match (referrer_kind, kind) {
            (CoderKind::ControlPlane, ReferencedKind::Secret | ReferencedKind::ConfigMap) => {
                ctx.coderd_sync.source_changed(referrer, target.map_or("", |target| &target.name));
            }
            (CoderKind::Provisioner | CoderKind::WorkspaceProxy, ReferencedKind::Secret) => match target {
                Some(_) => ctx.verify_schedule.secret_changed(referrer),
                None => ctx.verify_schedule.watch_gap(referrer),
            },
            (_, ReferencedKind::Namespace)
            | (CoderKind::Provisioner | CoderKind::WorkspaceProxy, ReferencedKind::ConfigMap) => {}
        }
    }
    enqueue(ctx, referrers);
}

/// Selects the children of the operator.
fn labelled() -> watcher::Config {
    watcher::Config::default().labels(&format!("{}={}", label::MANAGED_BY, label::MANAGER))
}

fn check_name(plural: &str, namespace: Option<&str>) -> String {
    namespace.map_or_else(|| format!("watch {plural}"), |namespace| format!("watch {plural} in {namespace}"))
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
