//! What runs in the pods of `dev` where no real program does: a simulated coderd for each control plane, and the
//! daemons and proxies that connect to it.
//!
//! The node starts no containers for them. A pod that it reports as ready counts as a process that runs: the daemon of
//! such a pod connects with the key in its environment, and leaves when the pod ends.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
};

use coder_k8s_api::names::{component, label};
use coder_k8s_coderd::Resolve;
use coder_k8s_testbed::{
    CoderSim, Node,
    codersim::{Mode, Session},
};
use futures::{StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{EnvVar, Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Mutex;

use super::console::Console;
use crate::intervals::DEV_POLL_PERIOD;

/// A simulated coderd for each host that somebody calls. They stop when dropped.
pub(super) struct Coderds {
    sims: Mutex<HashMap<String, Arc<CoderSim>>>,
    /// Tells the processes of the node where each one is.
    node: Weak<Node>,
    console: Console,
}

impl Coderds {
    pub(super) fn new(node: &Arc<Node>, console: &Console) -> Self {
        Self { sims: Mutex::default(), node: Arc::downgrade(node), console: console.clone() }
    }

    /// The simulator behind a host, which starts with the first call.
    async fn at(&self, host: &str) -> io::Result<SocketAddr> {
        let name = host.trim_end_matches('.').trim_end_matches(".cluster.local").to_owned();
        let mut sims = self.sims.lock().await;
        if let Some(sim) = sims.get(&name) {
            return Ok(sim.address());
        }
        let sim = CoderSim::start(Mode::Unlicensed).await?;
        let address = sim.address();
        if let Some(node) = self.node.upgrade() {
            node.host(host, address);
        }
        self.console.line(&format!("a simulated coderd answers for {name} at {}", sim.url()));
        sims.insert(name, Arc::new(sim));
        Ok(address)
    }

    async fn all(&self) -> Vec<Arc<CoderSim>> {
        self.sims.lock().await.values().cloned().collect()
    }
}

impl Resolve for Coderds {
    fn resolve(&self, host: String, _port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(vec![self.at(&host).await?]) })
    }
}

/// Connects the daemons and proxies of all ready pods until it is dropped.
pub(super) async fn play(client: &Client, coderds: &Coderds) {
    let labels = format!("{} in ({}, {})", label::NAME, component::PROVISIONER, component::WORKSPACE_PROXY);
    let config = watcher::Config::default().labels(&labels);
    let mut events = watcher(Api::<Pod>::all(client.clone()), config).default_backoff().boxed();
    let mut player = Player { client, coderds, connected: HashMap::new(), waiting: HashMap::new() };
    loop {
        let retry = !player.waiting.is_empty();
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => player.see(pod).await,
                Some(Ok(watcher::Event::Delete(pod))) => player.end(&pod.uid().unwrap_or_default()),
                Some(_) => {}
                None => return,
            },
            // coderd may not know the key yet.
            () = tokio::time::sleep(DEV_POLL_PERIOD), if retry => player.try_again().await,
        }
    }
}

/// What the process of a pod holds.
enum Connection {
    Daemon(#[expect(dead_code, reason = "connected until it is dropped")] Session),
    Proxy { name: String, sim: Arc<CoderSim> },
}

struct Player<'a> {
    client: &'a Client,
    coderds: &'a Coderds,
    /// By the UID of the pod.
    connected: HashMap<String, Connection>,
    /// Pods that are not connected yet, by UID.
    waiting: HashMap<String, Pod>,
}

impl Player<'_> {
    async fn see(&mut self, pod: Pod) {
        let uid = pod.uid().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() || !is_ready(&pod) {
            return self.end(&uid);
        }
        if self.connected.contains_key(&uid) {
            return;
        }
        match self.connect(&pod).await {
            Some(connection) => {
                self.waiting.remove(&uid);
                self.connected.insert(uid, connection);
            }
            None => {
                self.waiting.insert(uid, pod);
            }
        }
    }

    async fn try_again(&mut self) {
        for (_, pod) in std::mem::take(&mut self.waiting) {
            self.see(pod).await;
        }
    }

    /// The process ends. coderd no longer reaches a proxy when its last pod is gone.
    fn end(&mut self, uid: &str) {
        self.waiting.remove(uid);
        let Some(Connection::Proxy { name, sim }) = self.connected.remove(uid) else { return };
        let same =
            |other: &Connection| matches!(other, Connection::Proxy { name: other, .. } if *other == name);
        if !self.connected.values().any(same) {
            sim.set_proxy_status(&name, "unreachable", "");
        }
    }

    async fn connect(&self, pod: &Pod) -> Option<Connection> {
        let variable = |name| variable(pod, name);
        if let Some(key) = variable("CODER_PROVISIONER_DAEMON_KEY") {
            let name = daemon_name(pod, variable("CODER_PROVISIONER_DAEMON_NAME")?);
            let key = self.secret(pod, key).await?;
            let sims = self.coderds.all().await;
            return sims.iter().find_map(|sim| sim.connect(&key, &name)).map(Connection::Daemon);
        }
        let token = self.secret(pod, variable("CODER_PROXY_SESSION_TOKEN")?).await?;
        for sim in self.coderds.all().await {
            let own = |token_of: &SecretString| token_of.expose_secret() == token.expose_secret();
            if let Some(proxy) = sim.proxies().into_iter().find(|proxy| !proxy.deleted && own(&proxy.token)) {
                sim.set_proxy_status(&proxy.name, "ok", coder_k8s_testbed::binaries::CODER_VERSION);
                return Some(Connection::Proxy { name: proxy.name, sim });
            }
        }
        None
    }

    /// The value of a variable that comes from a Secret.
    async fn secret(&self, pod: &Pod, variable: &EnvVar) -> Option<SecretString> {
        let source = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &pod.namespace()?);
        let secret = secrets.get_opt(&source.name).await.ok()??;
        let value = secret.data?.remove(&source.key)?;
        String::from_utf8(value.0).ok().map(SecretString::from)
    }
}

fn variable<'a>(pod: &'a Pod, name: &str) -> Option<&'a EnvVar> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().flat_map(|container| container.env.iter().flatten()).find(|entry| entry.name == name)
}

/// The name of a daemon, as the kubelet expands it.
fn daemon_name(pod: &Pod, variable: &EnvVar) -> String {
    let name = variable.value.clone().unwrap_or_default();
    name.replace("$(POD_NAME)", &pod.name_any()).replace("$(POD_UID)", &pod.uid().unwrap_or_default())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}
