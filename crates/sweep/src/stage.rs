//! Where a case takes place: a namespace, a simulated coderd, perhaps a database, and an operator that reaches all of them
//! only through proxies.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    process::Command,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_scenes::{
    Operator,
    pool::{PoolScene, tags},
    proxy::ProxyScene,
    scene::Scene,
    working_daemons::{Daemons, WaitingJobs},
};
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    postgres::{self, Database, migrated},
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    effect::Ledger,
    proxy::{Proxy, Server},
    snapshot::Snapshot,
    sql::SqlProxy,
};

/// Flags of every operator: nothing but daemons is asked of coderd by the clock, so that a case at rest is quiet. No fault
/// makes a server hang, so that only an overloaded machine is given time.
const FLAGS: [&str; 6] = [
    "--autoscaling-interval=1s",
    "--coderd-timeout=5s",
    "--cleanup-timeout=20s",
    "--daemons-interval=1s",
    "--entitlements-interval=1h",
    "--verify-interval=1h",
];
const NO_LEASE: [&str; 1] = ["--leader-elect=false"];
/// Longer than any case.
const ENDLESS: Duration = Duration::from_hours(1);
/// Short enough that a successor leads within seconds.
const LEASE: [&str; 3] = ["--lease-duration=5s", "--renew-deadline=4s", "--retry-period=500ms"];

/// Another operator in place of this project's. It watches the whole cluster, so that one case runs at a time; it has the
/// rights of an administrator, makes its own token in the database, and finds coderd by its hosts file.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// For a shell.
    pub command: String,
}

static FOREIGN: OnceLock<Foreign> = OnceLock::new();

/// Puts another operator in place of this project's, for all stages.
pub fn use_another(foreign: Foreign) {
    let _ = FOREIGN.set(foreign);
}

/// The other operator, if there is one.
pub fn another() -> Option<&'static Foreign> {
    FOREIGN.get()
}

/// What a scenario needs of its stage.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a need of its own")]
pub struct Needs {
    /// coderd has a database, in which the operator makes its own token.
    pub database: bool,
    /// What coderd knows no more is noticed within a second.
    pub verifies: bool,
    /// What coderd's license covers is asked every second.
    pub entitlements: bool,
    /// No controllers run, so that recorded objects stay as they are.
    pub bare: bool,
    /// Another namespace, for workspaces.
    pub workspaces: bool,
    /// The scenario starts the operator itself: its start is the change.
    pub late: bool,
}

pub struct Stage {
    daemons: Mutex<Option<Daemons>>,
    /// Jobs of daemons that do not always have one.
    queue: Mutex<Option<Arc<WaitingJobs>>>,
    pub site: ProxyScene,
    /// Between the operator and the API server.
    pub api: Proxy,
    /// Between the operator and coderd.
    coderd: Proxy,
    pub ledger: Arc<Ledger>,
    pub database: Option<(Database<'static>, SqlProxy)>,
    /// Servers of further control planes.
    pub others: Mutex<Vec<Arc<CoderSim>>>,
    operators: Mutex<Vec<Operator>>,
    rolling_out: Mutex<Option<AbortOnDropHandle<()>>>,
    flags: Vec<&'static str>,
}

impl Stage {
    pub async fn new(name: &str, needs: Needs, elects: bool) -> Self {
        let beside: &[&str] = if needs.workspaces { &["workspaces"] } else { &[] };
        let scene = if needs.bare {
            Scene::bare_with(name, beside).await
        } else {
            Scene::unmanaged_with(name, beside).await
        };
        let ledger = Arc::new(Ledger::default());
        let mut config = scene.cluster().config();
        if needs.bare {
            // Conditions of an earlier operator about a coderd that is not there.
            scene.judge_nothing();
        }
        if another().is_some() {
            scene.judge_nothing();
        } else {
            config.auth_info.impersonate = Some(format!("operator-of-{}", scene.namespace));
            config.auth_info.impersonate_groups = Some(scene.operator_groups());
        }
        let api =
            Proxy::start(Server::Kubernetes, config, 0, &scene.namespace, ledger.clone()).await.unwrap();
        let sim = CoderSim::start(Mode::Licensed).await.unwrap();
        if another().is_some() {
            // When a deployment may see which credential is a promise of this operator.
            sim.expect_foreign_credentials();
        }
        let upstream = kube::Config::new(sim.url().parse().unwrap());
        // A hosts file names no port.
        let port = if another().is_some() { 80 } else { 0 };
        let coderd =
            Proxy::start(Server::Coderd, upstream, port, &scene.namespace, ledger.clone()).await.unwrap();
        sim.also_at(coderd.address());
        scene.service("coder", coderd.address());
        let database = if needs.database || another().is_some() {
            let database = migrated(None).await;
            sim.use_database(database.connect_as_superuser().await.unwrap()).await.unwrap();
            let port = postgres::shared().await.port();
            Some((database, SqlProxy::start(port, ledger.clone()).await.unwrap()))
        } else {
            None
        };
        let mut flags: Vec<_> = if elects { LEASE.to_vec() } else { NO_LEASE.to_vec() };
        flags.extend(FLAGS);
        if needs.entitlements {
            flags.retain(|flag| !flag.starts_with("--entitlements-interval"));
            flags.push("--entitlements-interval=1s");
        }
        if needs.verifies {
            flags.retain(|flag| !flag.starts_with("--verify-interval"));
            flags.push("--verify-interval=1s");
        }
        if needs.entitlements || needs.verifies {
            // Each time it asks, the operator records when.
            ledger.ignore("update codercontrolplanes/status coder");
        }
        let sim = Arc::new(sim);
        let judged = sim.clone();
        ledger.judge_by(Box::new(move || never(&judged)));
        let site = ProxyScene { coder: PoolScene { scene, sim } };
        let (others, operators, daemons) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self {
            daemons,
            queue: Mutex::default(),
            site,
            api,
            coderd,
            ledger,
            database,
            others,
            operators,
            rolling_out: Mutex::default(),
            flags,
        }
    }

    pub fn scene(&self) -> &Scene {
        &self.site.coder.scene
    }

    pub fn coder(&self) -> &PoolScene {
        &self.site.coder
    }

    /// From now on, daemons work in the pods of pools: one job after the other, each to its end.
    pub fn put_to_work(&self) {
        let host = |name: &str| format!("{name}.{}.svc.cluster.local", self.scene().namespace);
        let mut servers = HashMap::from([(host("coder"), self.site.coder.sim.clone())]);
        servers.extend(self.others.lock().first().map(|other| (host("other"), other.clone())));
        *self.daemons.lock() = Some(Daemons::follow(self.scene(), servers));
    }

    /// From now on, daemons work on so many jobs, which do not end in this case. None of them may be told to stop.
    pub fn queue(&self, jobs: usize) {
        let mut queue = self.queue.lock();
        let queue = queue.get_or_insert_with(|| {
            let queue = WaitingJobs::new(&self.site.coder.sim, tags(&[]));
            *self.daemons.lock() = Some(Daemons::follow_queue(self.scene(), &queue));
            queue
        });
        queue.add(jobs, ENDLESS);
    }

    /// Ends the daemons. Returns what happened to their jobs that never may.
    pub fn end_daemons(&self) -> Option<String> {
        let daemons = self.daemons.lock().take()?;
        let lost = daemons.tally.lost.load(Ordering::SeqCst);
        if lost > 0 {
            return Some(format!("{lost} jobs lost their session"));
        }
        let told = daemons.tally.told_while_busy.load(Ordering::SeqCst);
        (told > 0 && self.queue.lock().is_some()).then(|| format!("{told} busy daemons were told to stop"))
    }

    pub fn sim(&self) -> &CoderSim {
        &self.site.coder.sim
    }

    /// Starts an operator. Faults kill the last one.
    pub fn start(&self) {
        let operator = match another() {
            Some(another) => self.start_another(another),
            None => self.scene().start_through(&self.api.url(), &self.flags),
        };
        self.ledger.aim(operator.pid());
        self.operators.lock().push(operator);
    }

    fn start_another(&self, another: &Foreign) -> Operator {
        let scene = self.scene();
        let folder = scene.cluster().run_dir();
        let file = |name: &str| folder.join(format!("{name}-{}", scene.namespace));
        let (hosts, kubeconfig) = (file("etc-hosts"), file("kubeconfig"));
        let host = format!("coder.{}.svc.cluster.local", scene.namespace);
        fs::write(&hosts, format!("127.0.0.1 localhost\n{} {host}\n", self.coderd.address().ip())).unwrap();
        let server = self.api.url();
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "sweep",
            "clusters": [{"name": "sweep", "cluster": {"server": server}}], "users": [{"name": "sweep", "user": {}}],
            "contexts": [{"name": "sweep", "context": {"cluster": "sweep", "user": "sweep"}}]});
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let mut command = Command::new("unshare");
        let script = format!("mount --bind {} /etc/hosts && exec {}", hosts.display(), another.command);
        command.args(["--mount", "sh", "-c", &script]).env("KUBECONFIG", kubeconfig);
        command.env("POD_NAMESPACE", &scene.namespace);
        let output = file(&format!("output-{}", self.operators.lock().len()));
        Operator::start_command("another".to_owned(), output, command)
    }

    /// Ends the operators and deletes what the case left in its namespaces, so that a case costs the same however many
    /// came before it. What is left weighs nothing: accounts, roles, and what the cluster puts into every namespace.
    pub async fn clear(&self) {
        self.stop();
        let scene = self.scene();
        scene.judge_nothing();
        drop(self.daemons.lock().take());
        let namespaces = || std::iter::once(&scene.namespace).chain(scene.beside());
        for namespace in namespaces() {
            for kind in ["CoderControlPlane", "CoderProvisioner", "CoderWorkspaceProxy"] {
                free(&any(scene, namespace, "coder.com", "v1alpha1", kind)).await;
            }
        }
        let kinds = [
            ("coder.com", "v1alpha1", "CoderControlPlane"),
            ("coder.com", "v1alpha1", "CoderProvisioner"),
            ("coder.com", "v1alpha1", "CoderWorkspaceProxy"),
            ("apps", "v1", "Deployment"),
            ("apps", "v1", "ReplicaSet"),
            ("", "v1", "Pod"),
            ("", "v1", "Secret"),
        ];
        for namespace in namespaces() {
            for (group, version, kind) in kinds {
                let all = any(scene, namespace, group, version, kind);
                let at_once = DeleteParams::background().grace_period(0);
                let _ = all.delete_collection(&at_once, &ListParams::default()).await;
            }
            scene.node().hold_deletions(namespace, false);
        }
    }

    /// Waits until something has happened, and then nothing for a while. For an operator whose conditions are not known.
    pub async fn until_quiet(&self, quiet: Duration) {
        let began = Instant::now();
        let is_over = || began.elapsed() > Duration::from_mins(1);
        while self.ledger.is_empty() && !is_over() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // What was just changed is noticed by then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        while self.ledger.quiet_for() < quiet && !is_over() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends all operators.
    pub fn stop(&self) {
        self.operators.lock().clear();
    }

    /// From now on, Deployments are rolled out at once, in place of the controllers that do not run.
    pub fn roll_out(&self) {
        let deployments: Api<Deployment> = self.scene().api();
        let rolling_out = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                let Ok(all) = deployments.list(&ListParams::default()).await else { continue };
                for deployment in all {
                    let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
                    if observed == deployment.metadata.generation {
                        continue;
                    }
                    let pods = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
                    let status = json!({"status": {"observedGeneration": deployment.metadata.generation,
                        "replicas": pods, "updatedReplicas": pods, "readyReplicas": pods,
                        "availableReplicas": pods}});
                    let (name, params) = (deployment.name_any(), PatchParams::default());
                    let _ = deployments.patch_status(&name, &params, &Patch::Merge(&status)).await;
                }
            }
        });
        *self.rolling_out.lock() = Some(AbortOnDropHandle::new(rolling_out));
    }

    /// Starts another operator if the last one has ended. Returns whether it had.
    pub async fn restart_if_ended(&self) -> bool {
        let ended = self.operators.lock().last_mut().is_none_or(|operator| !operator.runs());
        if ended {
            if another().is_some() {
                // That of the operator that was killed: the next one would wait until it expires.
                let leases = any(self.scene(), &self.scene().namespace, "coordination.k8s.io", "v1", "Lease");
                let _ = leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
            }
            self.start();
        }
        ended
    }

    /// Forgets the operators that have ended, but for one that panicked.
    pub fn forget_ended(&self) {
        self.operators
            .lock()
            .retain_mut(|operator| operator.runs() || operator.output().contains("panicked"));
    }

    /// Does something with an operator, the oldest being the first.
    pub fn with_operator<T>(&self, number: usize, doing: impl FnOnce(&mut Operator) -> T) -> Option<T> {
        self.operators.lock().get_mut(number).map(doing)
    }

    /// The log of the last operator, its end.
    pub fn log(&self) -> String {
        self.operators.lock().last().map(Operator::tail).unwrap_or_default()
    }

    /// Whether an operator panicked.
    pub fn panicked(&self) -> bool {
        self.operators.lock().iter().any(|operator| operator.output().contains("panicked"))
    }

    /// The address of the database, through the proxy.
    pub fn database_url(&self) -> String {
        self.database.as_ref().map(|(database, proxy)| database.url_through(proxy.port())).unwrap_or_default()
    }

    /// How many tokens of operators the database has.
    pub async fn tokens(&self) -> Option<usize> {
        let (database, _) = self.database.as_ref()?;
        let client = database.connect_as_superuser().await.ok()?;
        let count = "SELECT count(*) FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%'";
        let count: i64 = client.query_one(count, &[]).await.ok()?.get(0);
        usize::try_from(count).ok()
    }

    pub async fn snapshot(&self) -> kube::Result<Snapshot> {
        let scene = self.scene();
        let mut namespaces = vec![scene.namespace.clone()];
        namespaces.extend(scene.beside().iter().cloned());
        let tokens = self.tokens().await;
        let others = std::mem::take(&mut *self.others.lock());
        let servers: Vec<_> =
            std::iter::once(self.sim()).chain(others.iter().map(|other| &**other)).collect();
        let taken = Snapshot::take(&scene.client, &namespaces, &servers, tokens).await;
        *self.others.lock() = others;
        taken
    }

    /// Whether every object of our kinds was observed as it is, and is not being deleted.
    pub async fn is_observed(&self) -> bool {
        let (scene, all) = (self.scene(), ListParams::default());
        let mut objects = Vec::new();
        let add = |objects: &mut Vec<Value>, found: Value| {
            objects.extend(found.as_array().into_iter().flatten().cloned());
        };
        if let Ok(list) = scene.api::<CoderControlPlane>().list(&all).await {
            add(&mut objects, json!(list.items));
        }
        if let Ok(list) = scene.api::<CoderProvisioner>().list(&all).await {
            add(&mut objects, json!(list.items));
        }
        if let Ok(list) = scene.api::<CoderWorkspaceProxy>().list(&all).await {
            add(&mut objects, json!(list.items));
        }
        objects.iter().all(|object| {
            object["metadata"]["deletionTimestamp"].is_null()
                && object["status"]["observedGeneration"] == object["metadata"]["generation"]
        })
    }
}

/// Objects of a kind in a namespace.
fn any(scene: &Scene, namespace: &str, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(scene.client.clone(), namespace, &resource)
}

/// Takes the finalizers off all objects.
async fn free(all: &Api<DynamicObject>) {
    for object in all.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
        if !object.finalizers().is_empty() {
            let without = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            let _ = all.patch(&object.name_any(), &PatchParams::default(), &without).await;
        }
    }
}

/// What coderd must never hold, at any moment of any case.
fn never(sim: &CoderSim) -> Option<String> {
    let keys: Vec<_> = sim.keys().into_iter().map(|key| key.name).collect();
    let proxies: Vec<_> =
        sim.proxies().into_iter().filter(|proxy| !proxy.deleted).map(|proxy| proxy.name).collect();
    let licenses: Vec<_> = sim.licenses().into_iter().map(|license| license.uuid).collect();
    let mut tokens = sim.token_names();
    tokens.retain(|name| name.starts_with("coder-k8s-operator-"));
    if keys.len() > 2 {
        return Some(format!("one pool has the keys {keys:?}"));
    }
    if proxies.len() > 1 {
        return Some(format!("one proxy has the registrations {proxies:?}"));
    }
    if tokens.len() > 2 {
        return Some(format!("the operator has the tokens {tokens:?}"));
    }
    let different: BTreeSet<_> = licenses.iter().collect();
    (different.len() < licenses.len()).then(|| format!("a license is installed twice: {licenses:?}"))
}
