//! The daemons in the pods of a pool, played by the test.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_testbed::{
    codersim::{Mode, Session},
    eventually,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{ResourceExt, api::ListParams};
use secrecy::SecretString;
use serde_json::Value;

use crate::{
    Installation, PATIENCE,
    pool::{PoolScene, SECRET, message},
    writes,
};

/// The pods of the pool.
const LABELS: &str = "app.kubernetes.io/name=coder-provisioner,app.kubernetes.io/instance=pool";

/// A pool whose daemons come and go as the test says.
pub struct DaemonScene {
    /// The pool.
    pub pool: PoolScene,
    sessions: BTreeMap<String, Session>,
}

impl DaemonScene {
    /// A pool that is ready, with nobody connected.
    pub async fn new(installation: &'static Installation, prefix: &str, spec: Value) -> Self {
        Self::of(PoolScene::plane(installation, prefix, Mode::Licensed).await, spec).await
    }

    /// The same for a control plane that is there.
    pub async fn of(pool: PoolScene, spec: Value) -> Self {
        pool.make(spec).await;
        pool.until_ready().await;
        Self { pool, sessions: BTreeMap::new() }
    }

    /// The ready pods that stay, oldest first.
    pub async fn pods(&self) -> Vec<Pod> {
        let labels = ListParams::default().labels(LABELS);
        let mut all = self.pool.scene.api::<Pod>().list(&labels).await.unwrap().items;
        all.retain(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod));
        all.sort_by_key(|pod| (pod.creation_timestamp().map(|time| time.0), pod.name_any()));
        all
    }

    /// Waits until so many pods are ready and none is going, and returns their names.
    pub async fn until_pods(&self, count: usize) -> Vec<String> {
        let labels = ListParams::default().labels(LABELS);
        let found = eventually(PATIENCE, || async {
            let all = self.pool.scene.api::<Pod>().list(&labels).await.map_err(|error| error.to_string())?;
            let names: Vec<_> = self.pods().await.iter().map(ResourceExt::name_any).collect();
            if names.len() == count && all.items.len() == count {
                Ok(names)
            } else {
                Err(format!("{names:?}"))
            }
        });
        found.await.unwrap()
    }

    /// Connects a daemon with the key that the Secret holds now.
    pub async fn connect(&mut self, name: &str) {
        let secret: Secret = self.pool.scene.until_exists(SECRET).await;
        let material = String::from_utf8(secret.data.unwrap()["key"].0.clone()).unwrap();
        let session = self.pool.sim.connect(&SecretString::from(material), name);
        self.sessions.insert(name.to_owned(), session.unwrap_or_else(|| panic!("{name} is refused")));
    }

    /// Connects the daemons of all ready pods.
    pub async fn connect_all(&mut self) -> Vec<String> {
        let names: Vec<_> = self.pods().await.iter().map(ResourceExt::name_any).collect();
        for name in &names {
            self.connect(name).await;
        }
        names
    }

    /// A daemon begins a job, or ends it.
    pub fn busy(&self, name: &str, busy: bool) {
        self.sessions[name].busy(busy);
    }

    /// Everybody leaves, so long ago that coderd no longer lists them.
    pub fn all_leave(&mut self) {
        self.sessions.clear();
        self.pool.sim.advance(Duration::from_secs(91));
    }

    /// Waits until the condition says something.
    pub async fn until_condition(&self, status: &str, reason: &str) -> String {
        let pool = self.pool.until_condition("DaemonsConnected", status, reason).await;
        message(&pool, "DaemonsConnected")
    }

    /// How often the operator has written the pool so far.
    pub fn writes(&self) -> usize {
        let all = self.pool.scene.requests_in(&self.pool.scene.namespace);
        let written = writes(&all);
        written.iter().filter(|event| event.resource == "coderprovisioners").count()
    }
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}
