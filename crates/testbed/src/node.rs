//! A node that plays the kubelet, so that workloads progress through the real controllers.
//!
//! It binds every pod without a node, reports the containers of its pods in the state that [`Node::behave`] set, and
//! completes deletions. What it reports is decided by pure functions (`rules`, `status`); this file reads and writes,
//! and writes only what changes.
//!
//! Where a [`Program`] is registered for an image, the container is a process of this host: with the command and
//! environment that the kubelet would give it, on an address of its own, ready when its own probe says so, and
//! restarted when it exits. Three things differ from a container: a wildcard listen address becomes the address of
//! the pod, the name of a Service in an environment value becomes the address of an endpoint behind it (or the one of
//! [`Node::host`]), and mounts are left out. Init containers always succeed without running, hooks other than a sleep
//! before the stop do not run, and limits and users are not applied.

mod container;
mod environment;
mod probe;
mod processes;
mod program;
mod rules;
mod runs;
mod services;
mod status;
mod substitutions;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::{Container, Node as NodeObject, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

pub use processes::Exit;
use processes::Processes;
pub use program::Program;
use rules::Rules;
pub use rules::{Behaviour, Rule};
use runs::Runs;
pub use services::Resolver;
use status::StateSource;

const MANAGER: &str = "coder-k8s-testbed-node";
const HOST_IP: &str = "10.127.0.1";
const RETRY: Duration = Duration::from_millis(200);
const CONCURRENCY: u16 = 16;

/// A running node. Dropping it stops it; its Node object stays.
pub struct Node {
    name: String,
    state: Arc<State>,
    changed: UnboundedSender<()>,
    _task: AbortOnDropHandle<()>,
}

impl Node {
    /// Registers a node and serves its pods on the calling runtime.
    pub async fn start(client: Client, name: &str) -> kube::Result<Self> {
        register(&client, name).await?;
        let (changed, re_evaluate) = unbounded();
        let controller = Controller::new(Api::<Pod>::all(client.clone()), watcher::Config::default());
        let processes = Arc::new(Processes::default());
        let state = Arc::new(State {
            client: client.clone(),
            name: name.to_owned(),
            told: Mutex::default(),
            pods: Mutex::default(),
            runs: Runs::new(client, processes.clone(), controller.store(), changed.clone()),
            processes,
        });
        let controller = controller
            .with_config(Config::default().concurrency(CONCURRENCY))
            .trigger_backoff(Steady)
            .reconcile_all_on(re_evaluate)
            .run(reconcile, |_, _, _| Action::requeue(RETRY), state.clone())
            .for_each(|result| async {
                if let Err(error) = result {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "the node could not serve a pod"
                    );
                }
            });
        let task = AbortOnDropHandle::new(tokio::spawn(controller));
        Ok(Self { name: name.to_owned(), state, changed, _task: task })
    }

    /// The name of the Node object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how the containers that a rule matches behave, from now on. The last matching rule decides. Without one,
    /// containers are [`Behaviour::Ready`].
    pub fn behave(&self, rule: Rule, behaviour: Behaviour) {
        self.tell(|told| told.rules.add(rule, behaviour));
    }

    /// Keeps the deleted pods of a namespace terminating until called again with `false`.
    pub fn hold_deletions(&self, namespace: &str, hold: bool) {
        self.tell(|told| {
            told.held.retain(|held| held != namespace);
            if hold {
                told.held.push(namespace.to_owned());
            }
        });
    }

    /// How long a deleted pod takes to disappear. Defaults to zero.
    pub fn delay_deletions(&self, delay: Duration) {
        self.tell(|told| told.deletion_delay = delay);
    }

    /// Runs a program for every container with exactly this image, from now on. Rules of [`Node::behave`] no longer
    /// apply to these containers.
    pub fn run_image(&self, image: &str, program: Program) -> io::Result<()> {
        self.state.processes.add(image, program)?;
        let _ = self.changed.unbounded_send(());
        Ok(())
    }

    /// Maps the DNS name of a Service to an address outside the cluster, from now on, for all its ports. Used while
    /// no pod of the Service is a process.
    pub fn host(&self, name: &str, address: SocketAddr) {
        self.state.processes.outside(name, address);
    }

    /// Exits of the processes of a namespace so far, in order, including those of deleted pods.
    pub fn exits(&self, namespace: &str) -> Vec<Exit> {
        self.state.processes.exits(namespace)
    }

    /// A resolver for the processes behind Services. Its requests use the runtime of the client.
    pub fn resolver(&self, client: Client) -> Resolver {
        Resolver::new(client, self.state.processes.clone())
    }

    /// Last lines of each container of a namespace as `(pod/container, lines)`, including those of deleted pods.
    pub fn logs(&self, namespace: &str) -> Vec<(String, String)> {
        self.state.processes.logs(namespace)
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.state.told.lock());
        let _ = self.changed.unbounded_send(());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.state.runs.abandon();
        self.state.processes.stop();
    }
}

struct State {
    client: Client,
    name: String,
    told: Mutex<Told>,
    /// By uid. Holds what must stay the same between two events of a pod, even if the second one is stale.
    pods: Mutex<HashMap<String, PodFacts>>,
    processes: Arc<Processes>,
    runs: Runs,
}

#[derive(Default)]
struct Told {
    rules: Rules,
    held: Vec<String>,
    deletion_delay: Duration,
}

struct PodFacts {
    ip: Ipv4Addr,
    terminating_since: Option<Instant>,
}

/// A watch policy that reconnects at once and forever: a test that restarts the API server must not wait for this
/// node.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RETRY)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

async fn register(client: &Client, name: &str) -> kube::Result<()> {
    let nodes = Api::<NodeObject>::all(client.clone());
    let apply = PatchParams::apply(MANAGER).force();
    let head = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
    });
    nodes.patch(name, &apply, &Patch::Apply(&head)).await?;
    // Admission taints every new node as not ready, and the controller that would remove the taint does not run.
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": { "taints": null } }))).await?;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": "1000", "ephemeral-storage": "1Ti" });
    let status = json!({ "status": {
        "capacity": room,
        "allocatable": room,
        "addresses": [{ "type": "InternalIP", "address": HOST_IP }, { "type": "Hostname", "address": name }],
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the testbed's node is ready",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }],
    }});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

async fn reconcile(pod: Arc<Pod>, state: Arc<State>) -> Result<Action, kube::Error> {
    let done = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        None => bind(&pod, &state).await,
        Some(node) if node != state.name => Ok(Action::await_change()),
        Some(_) if pod.metadata.deletion_timestamp.is_some() => complete_deletion(&pod, &state).await,
        Some(_) => {
            state.runs.ensure(&pod, state.ip(&pod));
            report(&pod, &state).await
        }
    };
    match done {
        // The pod is gone, or it has changed, which is another event.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            Ok(Action::await_change())
        }
        other => other,
    }
}

async fn bind(pod: &Pod, state: &State) -> kube::Result<Action> {
    let gated = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref())
        .is_some_and(|gates| !gates.is_empty());
    if gated || pod.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": pod.name_any(), "uid": pod.uid() },
        "target": { "apiVersion": "v1", "kind": "Node", "name": state.name },
    });
    let _: Status = api(pod, state)
        .create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding)
        .await?;
    Ok(Action::await_change())
}

async fn report(pod: &Pod, state: &State) -> kube::Result<Action> {
    let ip = state.ip(pod);
    let namespace = pod.namespace().unwrap_or_default();
    let desired = {
        let told = state.told.lock();
        let fares = |container: &Container| {
            let image = container.image.as_deref().unwrap_or_default();
            let told = || StateSource::Told(told.rules.behaviour(&namespace, image));
            state.runs.observed(pod, &container.name).map_or_else(told, StateSource::Observed)
        };
        status::desired(pod, ip, HOST_IP, Timestamp::now(), fares)
    };
    if let Some(desired) = desired
        && pod.status.as_ref() != Some(&desired)
    {
        let patch = status::patch(pod, &desired);
        api(pod, state)
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
    }
    Ok(Action::await_change())
}

async fn complete_deletion(pod: &Pod, state: &State) -> kube::Result<Action> {
    // A grace period of zero: only finalizers keep the pod, and the node must not remove those.
    if pod.metadata.deletion_grace_period_seconds == Some(0) {
        return Ok(Action::await_change());
    }
    if !state.runs.end(pod) {
        return Ok(Action::await_change());
    }
    let left = {
        let told = state.told.lock();
        if pod.namespace().is_some_and(|namespace| told.held.contains(&namespace)) {
            return Ok(Action::await_change());
        }
        told.deletion_delay.saturating_sub(state.terminating_since(pod).elapsed())
    };
    if !left.is_zero() {
        return Ok(Action::requeue(left));
    }
    let params = DeleteParams::default()
        .grace_period(0)
        .preconditions(Preconditions { uid: pod.uid(), resource_version: None });
    api(pod, state).delete(&pod.name_any(), &params).await?;
    if let Some(facts) = state.pods.lock().remove(&pod.uid().unwrap_or_default()) {
        state.processes.forget(facts.ip);
    }
    Ok(Action::await_change())
}

fn api(pod: &Pod, state: &State) -> Api<Pod> {
    Api::namespaced(state.client.clone(), &pod.namespace().unwrap_or_default())
}

impl State {
    fn ip(&self, pod: &Pod) -> Ipv4Addr {
        self.with_facts(pod, |facts| facts.ip)
    }

    fn terminating_since(&self, pod: &Pod) -> Instant {
        self.with_facts(pod, |facts| *facts.terminating_since.get_or_insert_with(Instant::now))
    }

    fn with_facts<T>(&self, pod: &Pod, look: impl FnOnce(&mut PodFacts) -> T) -> T {
        let reported = || pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok();
        let mut pods = self.pods.lock();
        let facts = pods
            .entry(pod.uid().unwrap_or_default())
            .or_insert_with(|| PodFacts { ip: reported().unwrap_or_else(next_ip), terminating_since: None });
        look(facts)
    }
}

/// The next address of 10.128.0.0/9, unique among all nodes of this process.
///
/// Loopback addresses, on which a process could listen, are not allowed in an `EndpointSlice`.
fn next_ip() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let offset = NEXT.fetch_add(1, Ordering::Relaxed) & 0x007f_ffff;
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() | offset)
}
