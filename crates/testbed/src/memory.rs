//! An API server in memory, for many short lives of the operator where a real one would take too long.
//!
//! It keeps objects, versions, field owners and watches, fills in the defaults of CRDs, rolls Deployments out, ends pods
//! and collects garbage. It authenticates nobody, validates nothing and knows only the resources that the operator
//! touches. What it does it does as the real one: the same checks run against both (`tests/it/alike.rs`).

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

/// The server. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Memory {
    address: SocketAddr,
    store: Arc<Store>,
    tasks: [JoinHandle<()>; 2],
}

impl Memory {
    /// Starts a server.
    pub async fn start(kinds: &Kinds) -> io::Result<Self> {
        let store = Arc::new(Store::new(kinds.clone()));
        let (address, serving) = serve::start(store.clone()).await?;
        let controlling = tokio::spawn(controllers::run(store.clone()));
        Ok(Self { address, store, tasks: [serving, controlling] })
    }

    /// A client of the tests.
    pub fn client(&self) -> Result<kube::Client, kube::Error> {
        let uri = self.url("tests").parse().map_err(|error| kube::Error::Service(Box::new(error)))?;
        kube::Client::try_from(kube::Config::new(uri))
    }

    /// The file that lets a program work on it. Its requests are kept under the name of the user.
    pub fn kubeconfig(&self, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: memory\n\
             clusters: [{{name: memory, cluster: {{server: \"{}\"}}}}]\n\
             contexts: [{{name: memory, context: {{cluster: memory, user: memory}}}}]\n\
             users: [{{name: memory, user: {{}}}}]\n",
            self.url(user)
        )
    }

    /// What was asked so far, watches left out.
    pub fn asked(&self) -> Vec<Asked> {
        self.store.asked()
    }

    /// Whether pods that were told to end wait for somebody to delete them at once.
    pub fn hold_deletions(&self, hold: bool) {
        self.store.hold_deletions(hold);
    }

    /// Ends every watch, as a server that restarts does.
    pub fn break_watches(&self) {
        self.store.break_watches();
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
