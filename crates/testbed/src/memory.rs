//! An API server in memory, for tests that start the operator many times, where a real server would take too long.
//!
//! It stores objects with versions, field owners and watches, applies the defaults of CRDs, rolls out Deployments,
//! ends pods and collects garbage. It authenticates nobody, validates nothing and serves only the resources that the
//! operator uses. What it does, it does as the real server: the same checks run against both (`tests/it/alike.rs`).

mod apply;
mod controllers;
mod defaults;
mod kinds;
mod refusal;
mod selector;
mod serve;
mod store;
mod target;
mod write;

use std::{io, net::SocketAddr, sync::Arc};

use tokio::task::JoinHandle;

pub use kinds::Kinds;
pub use store::Asked;
use store::Store;

/// A running server. Dropping it drops all objects.
#[derive(Debug)]
pub struct Memory {
    address: SocketAddr,
    store: Arc<Store>,
    tasks: [JoinHandle<()>; 2],
}

impl Memory {
    /// Starts an empty server on a free port.
    pub async fn start(kinds: &Kinds) -> io::Result<Self> {
        let store = Arc::new(Store::new(kinds.clone()));
        let (address, serving) = serve::start(store.clone()).await?;
        let controlling = tokio::spawn(controllers::run(store.clone()));
        Ok(Self { address, store, tasks: [serving, controlling] })
    }

    /// A client for the test itself.
    pub fn client(&self) -> Result<kube::Client, kube::Error> {
        let uri = self.url("tests").parse().map_err(|error| kube::Error::Service(Box::new(error)))?;
        kube::Client::try_from(kube::Config::new(uri))
    }

    /// A kubeconfig for a program. Its requests are recorded with this user.
    pub fn kubeconfig(&self, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: memory\n\
             clusters: [{{name: memory, cluster: {{server: \"{}\"}}}}]\n\
             contexts: [{{name: memory, context: {{cluster: memory, user: memory}}}}]\n\
             users: [{{name: memory, user: {{}}}}]\n",
            self.url(user)
        )
    }

    /// Requests so far, without watches.
    pub fn asked(&self) -> Vec<Asked> {
        self.store.asked()
    }

    /// Whether deleted pods stay terminating until a request deletes them with a grace period of zero.
    pub fn hold_deletions(&self, hold: bool) {
        self.store.hold_deletions(hold);
    }

    /// Closes every watch, as a restart of the server does.
    pub fn break_watches(&self) {
        self.store.break_watches();
    }

    /// Whether watches stay silent, as on a network that hangs. What they missed is shown afterwards.
    pub fn withhold_watches(&self, withhold: bool) {
        self.store.withheld.send_replace(withhold);
    }

    /// Forgets the history of changes, as the compaction of etcd does: a watch that has not seen all of it gets 410 Gone.
    pub fn compact(&self) {
        self.store.compact();
    }

    fn url(&self, user: &str) -> String {
        format!("http://{}/as/{user}", self.address)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
