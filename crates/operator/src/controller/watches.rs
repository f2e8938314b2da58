//! What the controller watches.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{Arc, atomic::Ordering},
};

use coder_k8s_api::names::{self, label};
use coder_k8s_core::{exposure::route::HTTPRoute, references::References};
use coder_k8s_engine::{
    cache::Cache,
    crds::{Crds, Served},
    health::{Readiness, ReadyCheck},
    key::Key,
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
    caches::kind,
    context::CoderResource,
    enqueue::{child_changed, enqueue, enqueue_routed, root_changed},
};

/// CRDs of others that children may need.
pub(crate) const OPTIONAL_CRDS: [(&str, &str); 1] = [(HTTP_ROUTES, "v1")];
const HTTP_ROUTES: &str = "httproutes.gateway.networking.k8s.io";

/// Where the controller looks: everywhere, or in these namespaces.
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

    /// Whether a namespace is looked after.
    pub(crate) fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Namespaces(names) => names.contains(namespace),
        }
    }

    /// The namespaces one by one; none stands for all.
    pub(crate) fn each(&self) -> Vec<Option<String>> {
        match self {
            Self::Everywhere => vec![None],
            Self::Namespaces(names) => names.iter().cloned().map(Some).collect(),
        }
    }
}

/// The watches while they are being set up.
pub(crate) struct Watches<'a> {
    pub(crate) ctx: &'a Arc<Context>,
    pub(crate) client: &'a Client,
    pub(crate) readiness: &'a Readiness,
    pub(crate) crds: &'a Crds,
    pub(crate) tasks: &'a mut JoinSet<()>,
}

/// What must have been listed before the first object is worked on.
#[derive(Default)]
pub(crate) struct Synced {
    checks: Vec<ReadyCheck>,
    kinds: Vec<(String, Vec<ReadyCheck>)>,
}

impl Synced {
    /// Waits until everything was listed. A kind whose CRD is missing, and a watch that is not allowed, hold up
    /// nobody else: a child that was not listed is still never adopted or made twice.
    pub(crate) async fn wait(&self, readiness: &Readiness, crds: &Crds) {
        let listed = |checks: &[ReadyCheck]| checks.iter().all(ReadyCheck::settled);
        let waived =
            |crd: &str| matches!(crds.state(crd), Served::Absent | Served::Pending | Served::Older(_));
        let mut changes = readiness.changes();
        while !(listed(&self.checks) && self.kinds.iter().all(|(crd, checks)| listed(checks) || waived(crd)))
        {
            // The registry of gates is never dropped while the controller runs.
            let _ = changes.changed().await;
        }
    }
}

impl Watches<'_> {
    /// Starts all of them.
    pub(crate) fn start(mut self, scope: &Scope) -> Synced {
        let mut synced = Synced::default();
        for namespace in scope.each() {
            let namespace = namespace.as_deref();
            let caches = self.ctx.caches.clone();
            self.root(namespace, caches.control_planes, &mut synced);
            self.root(namespace, caches.provisioners, &mut synced);
            self.root(namespace, caches.workspace_proxies, &mut synced);
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
                kind::SECRET,
            ));
            synced.checks.push(self.metadata_watch::<ConfigMap>(
                api(self.client, namespace),
                namespace,
                kind::CONFIG_MAP,
            ));
        }
        self.gateway();
        if matches!(scope, Scope::Everywhere) {
            synced.checks.push(self.metadata_watch::<Namespace>(
                Api::all(self.client.clone()),
                None,
                kind::NAMESPACE,
            ));
        }
        synced
    }

    /// Follows one of our kinds, once its CRD is as this release needs it.
    fn root<K>(&mut self, namespace: Option<&str>, cache: Cache<K>, synced: &mut Synced)
    where
        K: CoderResource + References + Send + Sync + 'static,
    {
        let crd = format!("{}.{}", K::plural(&()), names::GROUP);
        let follow = self.follow(namespace, cache, watcher::Config::default());
        let check = follow.synced.clone();
        match synced.kinds.iter_mut().find(|(name, _)| *name == crd) {
            Some((_, checks)) => checks.push(check.clone()),
            None => synced.kinds.push((crd.clone(), vec![check.clone()])),
        }
        let (ctx, mut crds) = (self.ctx.clone(), self.crds.clone());
        self.tasks.spawn(async move {
            loop {
                check.fail("waits for its CRD");
                crds.ready(&crd).await;
                check.fail("not listed yet");
                tokio::select! {
                    () = follow.run(|change| root_changed(&ctx, &change)) => {}
                    () = crds.unready(&crd) => {}
                }
                // Without their kind there are no objects, whatever was seen last.
                follow.clear(|change| root_changed(&ctx, &change));
            }
        });
    }

    /// Wakes the control planes and proxies that want a route whenever the Gateway API comes or goes.
    fn gateway(&mut self) {
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

    /// Follows our routes while the cluster has the Gateway API. Without it there is nothing to list.
    fn routes(&mut self, namespace: Option<&str>, cache: Cache<HTTPRoute>) -> ReadyCheck {
        let follow = self.follow(namespace, cache, labelled());
        let check = follow.synced.clone();
        let (ctx, mut crds) = (self.ctx.clone(), self.crds.clone());
        self.tasks.spawn(async move {
            loop {
                crds.known(HTTP_ROUTES).await;
                if crds.state(HTTP_ROUTES) != Served::Ready {
                    follow.synced.pass();
                }
                crds.ready(HTTP_ROUTES).await;
                tokio::select! {
                    () = follow.run(|change| child_changed(&ctx, &change)) => {}
                    () = crds.unready(HTTP_ROUTES) => {}
                }
                follow.clear(|change| child_changed(&ctx, &change));
            }
        });
        check
    }

    /// Follows the children of one kind that bear our label.
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
        let follow = self.follow(namespace, cache, labelled());
        let check = follow.synced.clone();
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move { follow.run(|change| child_changed(&ctx, &change)).await });
        check
    }

    fn follow<K>(&self, namespace: Option<&str>, cache: Cache<K>, config: watcher::Config) -> ObjectWatch<K>
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

    /// Notices changes of objects of others; wakes those who refer to them.
    fn metadata_watch<K>(
        &mut self,
        api: Api<kube::api::PartialObjectMeta<K>>,
        namespace: Option<&str>,
        kind: &'static str,
    ) -> ReadyCheck
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let synced = self.readiness.ready_check(check_name(&K::plural(&()), namespace));
        let metadata_watch = MetadataWatch { api, synced: synced.clone(), metrics: self.ctx.metrics.clone() };
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move {
            metadata_watch
                .run(|tripped| match tripped {
                    MetadataEvent::Touched { namespace, name } => {
                        let target = Key::new(kind, namespace, name);
                        let askers = ctx.references.of(&target);
                        for asker in &askers {
                            ctx.referenced.changed(asker, &target);
                            match asker.kind {
                                kind::CONTROL_PLANE if kind != kind::NAMESPACE => {
                                    ctx.coderd_sync.source_changed(asker, &target.name);
                                }
                                kind::PROVISIONER | kind::WORKSPACE_PROXY if kind == kind::SECRET => {
                                    ctx.verify_schedule.secret_changed(asker);
                                }
                                _ => {}
                            }
                        }
                        enqueue(&ctx, askers);
                    }
                    MetadataEvent::Gap => {
                        let askers = ctx.references.of_kind(kind);
                        for asker in &askers {
                            ctx.referenced.gap(asker, kind);
                            match asker.kind {
                                kind::CONTROL_PLANE if kind != kind::NAMESPACE => {
                                    ctx.coderd_sync.source_changed(asker, "")
                                }
                                kind::PROVISIONER | kind::WORKSPACE_PROXY if kind == kind::SECRET => {
                                    ctx.verify_schedule.watch_gap(asker);
                                }
                                _ => {}
                            }
                        }
                        enqueue(&ctx, askers);
                    }
                })
                .await;
        });
        synced
    }
}

/// What bears our label.
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
