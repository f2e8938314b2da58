//! Daemons at work in the pods of a namespace.
//!
//! Each pod that is ready reads its key as the kubelet does when a container starts, connects to the coderd of its URL
//! and works: on one job after the other, or on those of a queue ([`WaitingJobs`]). Told to stop, it finishes the job that it
//! has, leaves, and its pod is gone.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use coder_k8s_testbed::codersim::{CoderSim, JobSeed};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

use crate::{daemons::is_ready, scene::Scene};

/// How long a job takes. A rollout comes in the middle of one.
const JOB: Duration = Duration::from_millis(800);
/// How soon an idle daemon looks for a job.
const LOOK: Duration = Duration::from_millis(20);
/// How soon a daemon that was refused is started again.
const RESTART: Duration = Duration::from_millis(500);

/// What the daemons of a namespace went through so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Sessions that began.
    pub sessions: AtomicUsize,
    /// Sessions that coderd ended.
    pub cut: AtomicUsize,
    /// Jobs that were finished.
    pub jobs: AtomicUsize,
    /// Jobs that lost their session.
    pub lost: AtomicUsize,
    /// Jobs whose pod was told to stop while they ran.
    pub told_while_busy: AtomicUsize,
    /// Connections that coderd refused.
    pub refused: AtomicUsize,
}

/// Jobs that wait in a coderd, and that daemons take one by one.
pub struct WaitingJobs {
    sim: Arc<CoderSim>,
    tags: BTreeMap<String, String>,
    /// When each began to wait, and how long it takes.
    waiting: Mutex<VecDeque<(Instant, Duration)>>,
}

impl WaitingJobs {
    /// An empty queue of jobs with these tags.
    pub fn new(sim: &Arc<CoderSim>, tags: BTreeMap<String, String>) -> Arc<Self> {
        Arc::new(Self { sim: sim.clone(), tags, waiting: Mutex::default() })
    }

    /// So many more jobs wait, each of which takes so long.
    pub fn add(&self, number: usize, takes: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.extend((0..number).map(|_| (Instant::now(), takes)));
        self.show(&waiting);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first job, which no longer waits.
    fn take(&self) -> Option<Duration> {
        let mut waiting = self.waiting.lock();
        let (_, takes) = waiting.pop_front()?;
        self.show(&waiting);
        Some(takes)
    }

    fn show(&self, waiting: &VecDeque<(Instant, Duration)>) {
        let seeds = waiting.iter().map(|(since, _)| JobSeed {
            status: "pending".into(),
            tags: self.tags.clone(),
            waiting: since.elapsed(),
            worker_id: None,
        });
        self.sim.set_jobs(&seeds.collect::<Vec<_>>());
    }
}

/// The daemons. They stop when dropped.
pub struct Daemons {
    /// What they went through so far.
    pub tally: Arc<Tally>,
    _task: AbortOnDropHandle<()>,
}

/// Where the daemons are.
struct World {
    client: Client,
    namespace: String,
    /// By the host of the URL.
    servers: HashMap<String, Arc<CoderSim>>,
    /// None: there is always another job.
    jobs: Option<Arc<WaitingJobs>>,
    tally: Arc<Tally>,
}

impl Daemons {
    /// Follows the pods of a namespace, and ends them in place of the node. They always have a job.
    pub fn follow(scene: &Scene, servers: HashMap<String, Arc<CoderSim>>) -> Self {
        Self::start(scene, servers, None)
    }

    /// The same with the jobs of a queue, of the coderd of the control plane `coder`.
    pub fn follow_queue(scene: &Scene, jobs: &Arc<WaitingJobs>) -> Self {
        let host = format!("coder.{}.svc.cluster.local", scene.namespace);
        Self::start(scene, HashMap::from([(host, jobs.sim.clone())]), Some(jobs.clone()))
    }

    fn start(scene: &Scene, servers: HashMap<String, Arc<CoderSim>>, jobs: Option<Arc<WaitingJobs>>) -> Self {
        let (client, namespace) = (scene.client.clone(), scene.namespace.clone());
        scene.node().hold_deletions(&namespace, true);
        let tally = Arc::new(Tally::default());
        let world = Arc::new(World { client, namespace, servers, jobs, tally: tally.clone() });
        Self { tally, _task: AbortOnDropHandle::new(tokio::spawn(follow(world))) }
    }
}

async fn follow(world: Arc<World>) {
    let config = watcher::Config::default().labels("app.kubernetes.io/name=coder-provisioner");
    let pods = watcher(world.pods(), config).default_backoff().applied_objects();
    let mut pods = pods.map_err(|error| println!("pods: {error}")).boxed();
    let (mut started, mut running) = (HashMap::<String, watch::Sender<bool>>::new(), JoinSet::new());
    while let Some(pod) = pods.next().await {
        let Ok(pod) = pod else { continue };
        let (uid, going) = (pod.uid().unwrap(), pod.metadata.deletion_timestamp.is_some());
        match started.get(&uid) {
            Some(stop) => drop(stop.send(going)),
            None if going || is_ready(&pod) => {
                let (stop, stopped) = watch::channel(going);
                started.insert(uid, stop);
                running.spawn(daemon(world.clone(), pod, stopped));
            }
            None => {}
        }
    }
}

/// One pod, from the start of its container to its end.
async fn daemon(world: Arc<World>, pod: Pod, mut stop: watch::Receiver<bool>) {
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    while !*stop.borrow() {
        let material = world.material(&container).await;
        let session = world.server(&container).connect(&material, &pod.name_any());
        let Some(session) = session else {
            world.tally.refused.fetch_add(1, SeqCst);
            tokio::select! {
                () = tokio::time::sleep(RESTART) => {}
                _ = stop.changed() => {}
            }
            continue;
        };
        world.tally.sessions.fetch_add(1, SeqCst);
        while !*stop.borrow() {
            let job = world.jobs.as_ref().map_or(Some(JOB), |jobs| jobs.take());
            let Some(takes) = job else {
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    _ = stop.changed() => {}
                }
                if session.is_cut() {
                    world.tally.cut.fetch_add(1, SeqCst);
                    break;
                }
                continue;
            };
            session.busy(true);
            let (began, mut was_told) = (Instant::now(), false);
            while began.elapsed() < takes && !session.is_cut() {
                tokio::time::sleep(LOOK).await;
                if *stop.borrow() && !was_told {
                    was_told = true;
                    world.tally.told_while_busy.fetch_add(1, SeqCst);
                }
            }
            session.busy(false);
            let of = if session.is_cut() { &world.tally.lost } else { &world.tally.jobs };
            of.fetch_add(1, SeqCst);
            if session.is_cut() {
                world.tally.cut.fetch_add(1, SeqCst);
                break;
            }
        }
    }
    let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
    let ended = DeleteParams::default().grace_period(0).preconditions(preconditions);
    let _ = world.pods().delete(&pod.name_any(), &ended).await;
}

impl World {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The value of the key's variable, read now.
    async fn material(&self, container: &Container) -> SecretString {
        let entry = container.env.iter().flatten().find(|env| env.name == "CODER_PROVISIONER_DAEMON_KEY");
        let from = entry.unwrap().value_from.clone().unwrap().secret_key_ref.unwrap();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = secrets.get_opt(&from.name).await.ok().flatten();
        let value = found.and_then(|secret| secret.data?.remove(&from.key));
        String::from_utf8(value.map(|value| value.0).unwrap_or_default()).unwrap().into()
    }

    /// The coderd of the container's URL.
    fn server(&self, container: &Container) -> &CoderSim {
        let url = container.env.iter().flatten().find(|env| env.name == "CODER_URL");
        let url = url.unwrap().value.clone().unwrap();
        let host = url.trim_start_matches("http://").split([':', '/']).next().unwrap().to_owned();
        self.servers.get(&host).unwrap_or_else(|| panic!("no server for {url}"))
    }
}
