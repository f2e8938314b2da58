//! The pods of a node whose containers are processes.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::container::{Observed, Task};
use super::processes::Processes;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Running pods by uid.
pub(super) struct Runs {
    client: Client,
    processes: Arc<Processes>,
    pods: Store<Pod>,
    changed: UnboundedSender<()>,
    all: Mutex<HashMap<String, Run>>,
}

struct Run {
    stop: CancellationToken,
    containers: HashMap<String, Arc<Mutex<Observed>>>,
    task: AbortOnDropHandle<()>,
}

impl Runs {
    pub(super) fn new(
        client: Client,
        processes: Arc<Processes>,
        pods: Store<Pod>,
        changed: UnboundedSender<()>,
    ) -> Self {
        Self { client, processes, pods, changed, all: Mutex::default() }
    }

    /// Starts the containers of a pod that have a program, unless they were started before.
    pub(super) fn ensure(&self, pod: &Arc<Pod>, ip: Ipv4Addr) {
        let mut all = self.all.lock();
        let uid = pod.uid().unwrap_or_default();
        if all.contains_key(&uid) {
            return;
        }
        all.retain(|_, run| !run.task.is_finished());
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut tasks = Vec::new();
        let mut observed = HashMap::new();
        let stop = CancellationToken::new();
        for container in containers {
            let Some(program) = self.processes.program(container) else { continue };
            let address = match self.processes.place(pod, ip) {
                Ok(address) => address,
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "no address for a pod");
                    return;
                }
            };
            let seen = Arc::new(Mutex::new(Observed::new()));
            observed.insert(container.name.clone(), seen.clone());
            tasks.push(Task {
                client: self.client.clone(),
                processes: self.processes.clone(),
                pod: pod.clone(),
                container: container.clone(),
                program,
                address,
                observed: seen,
                changed: self.changed.clone(),
                stop: stop.clone(),
            });
        }
        if tasks.is_empty() {
            return;
        }
        let (pods, changed, gone) = (self.pods.clone(), self.changed.clone(), stop.clone());
        let reference = ObjectRef::from_obj(&**pod);
        let task = tokio::spawn({
            let uid = uid.clone();
            async move {
                let mut running = futures::future::join_all(tasks.into_iter().map(Task::run));
                tokio::select! {
                    _ = &mut running => {}
                    // A forced deletion removes the pod object at once, so no event with a deletionTimestamp arrives.
                    () = until_gone(&pods, &reference, &uid) => {
                        gone.cancel();
                        running.await;
                    }
                }
                let _ = changed.unbounded_send(());
            }
        });
        all.insert(uid, Run { stop, containers: observed, task: AbortOnDropHandle::new(task) });
    }

    /// State of a container. `None` if it is not a process.
    pub(super) fn observed(&self, pod: &Pod, container: &str) -> Option<Observed> {
        let all = self.all.lock();
        let seen = all.get(&pod.uid()?)?.containers.get(container)?.lock().clone();
        Some(seen)
    }

    /// Asks the processes of a pod to stop. Returns whether all of them have exited.
    pub(super) fn end(&self, pod: &Pod) -> bool {
        let mut all = self.all.lock();
        let uid = pod.uid().unwrap_or_default();
        let Some(run) = all.get(&uid) else { return true };
        run.stop.cancel();
        let ended = run.task.is_finished();
        if ended {
            all.remove(&uid);
        }
        ended
    }

    /// Stops managing the processes, without killing them.
    pub(super) fn abandon(&self) {
        self.all.lock().clear();
    }
}

async fn until_gone(pods: &Store<Pod>, reference: &ObjectRef<Pod>, uid: &str) {
    while pods.get(reference).is_some_and(|pod| pod.uid().as_deref() == Some(uid)) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
