//! Clusters that all tests of a process share.
//!
//! The first caller starts it, on a thread and runtime of its own, because the runtime of a test ends with the test.
//! Other callers wait for it. Nothing stops it explicitly: the guard kills it when the process ends. Tests are
//! separated by namespaces, which are never deleted, because the whole cluster is thrown away.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use tokio::sync::SetOnce;

use crate::{Cluster, Node, eventually};

/// Deadline for a namespace and its ServiceAccount.
const WITHIN: Duration = Duration::from_secs(30);

/// A cluster with one node.
pub struct Shared {
    /// The control plane.
    pub cluster: Cluster,
    /// The only node of the cluster.
    pub node: Node,
    crds: Vec<String>,
}

/// A cluster that the tests of a process share: a `static`, started by the first test that asks for it.
pub struct SharedCluster {
    crds: fn() -> Vec<CustomResourceDefinition>,
    controllers: bool,
    started: Once,
    shared: SetOnce<Result<Shared, String>>,
}

impl SharedCluster {
    /// With a controller-manager, so that pods run and garbage is collected.
    pub const fn new(crds: fn() -> Vec<CustomResourceDefinition>) -> Self {
        Self { crds, controllers: true, started: Once::new(), shared: SetOnce::const_new() }
    }

    /// Without a controller-manager: objects stay as they are written, and no pod ever runs.
    pub const fn without_controllers(crds: fn() -> Vec<CustomResourceDefinition>) -> Self {
        Self { crds, controllers: false, started: Once::new(), shared: SetOnce::const_new() }
    }

    /// The running cluster.
    ///
    /// # Panics
    /// When it could not be started; the message says why, the same for every caller.
    pub async fn get(&'static self) -> &'static Shared {
        self.started.call_once(|| {
            std::thread::spawn(|| self.run((self.crds)()));
        });
        self.wait().await
    }

    #[expect(clippy::panic, reason = "its callers are tests, and a test without a cluster has failed")]
    async fn wait(&'static self) -> &'static Shared {
        match self.shared.wait().await {
            Ok(shared) => shared,
            Err(problem) => panic!("the shared cluster could not be started: {problem}"),
        }
    }

    fn run(&self, crds: Vec<CustomResourceDefinition>) {
        let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
        {
            Ok(runtime) => runtime,
            Err(error) => return drop(self.shared.set(Err(error.to_string()))),
        };
        runtime.block_on(async {
            let started = start(crds, self.controllers).await;
            let _ = self.shared.set(started.map_err(|error| with_sources(&*error)));
            std::future::pending::<()>().await;
        });
    }
}

/// The shared cluster without custom resources.
///
/// # Panics
/// If it could not be started. The message says why, and is the same for every caller.
pub async fn shared() -> &'static Shared {
    shared_with(Vec::new).await
}

/// The shared cluster with custom resources. All tests of a process must ask for the same ones: the first caller
/// decides.
///
/// # Panics
/// If it could not be started, or was started without one of these definitions.
#[expect(clippy::panic, reason = "its callers are tests, and a test without a cluster has failed")]
pub async fn shared_with(crds: fn() -> Vec<CustomResourceDefinition>) -> &'static Shared {
    static SHARED: SharedCluster = SharedCluster::new(Vec::new);
    SHARED.started.call_once(|| {
        std::thread::spawn(move || SHARED.run(crds()));
    });
    let shared = SHARED.wait().await;
    if let Some(missing) = crds().iter().map(ResourceExt::name_any).find(|name| !shared.crds.contains(name)) {
        panic!("the shared cluster was started without {missing}: pass the same definitions in every test");
    }
    shared
}

async fn start(
    crds: Vec<CustomResourceDefinition>,
    controllers: bool,
) -> Result<Shared, Box<dyn std::error::Error>> {
    let names = crds.iter().map(ResourceExt::name_any).collect();
    let cluster = Cluster::builder().controller_manager(controllers).crds(crds).start().await?;
    let node = cluster.node("testbed").await?;
    Ok(Shared { cluster, node, crds: names })
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// A namespace of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(String);

impl Namespace {
    /// Unique in the cluster.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Shared {
    /// Creates a namespace that no other test uses, and waits until pods can be created in it.
    ///
    /// # Panics
    /// If the cluster refuses it, or its ServiceAccount does not appear.
    #[expect(clippy::panic, reason = "its callers are tests, which cannot go on without it")]
    pub async fn namespace(&self, prefix: &str) -> Namespace {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let client = self.cluster.own_client();
        let mut object = NamespaceObject::default();
        object.metadata.name = Some(name.clone());
        let (all, params) = (Api::all(client.clone()), PostParams::default());
        // After a broken connection the namespace may exist nevertheless, so a conflict on a retry is a success.
        let made = eventually(WITHIN, || async {
            match all.create(&params, &object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                Err(error) => Err(with_sources(&error)),
                Ok(_) => Ok(()),
            }
        });
        if let Err(error) = made.await {
            panic!("cannot create the namespace {name}: {error}");
        }
        // A controller makes the account, where there is one.
        if !self.cluster.has_controller_manager() {
            return Namespace(name);
        }
        let accounts = Api::<ServiceAccount>::namespaced(client, &name);
        if let Err(error) = eventually(WITHIN, || accounts.get("default")).await {
            panic!("no default service account in {name}: {error}");
        }
        Namespace(name)
    }
}
