//! Where a life is lived: an API server in memory, or a real cluster.

use std::{
    path::PathBuf,
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use coder_k8s_api::crds;
use coder_k8s_testbed::{Memory, memory::Kinds};
use kube::Client;

use crate::{Operator, audit::listed, requests, scene::Scene, writes};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// An API server in memory.
    Memory,
    /// A real API server, etcd and controller-manager.
    Cluster,
}

impl On {
    /// What to add to the command that lives a seed again.
    pub fn flag(self) -> &'static str {
        if self == Self::Cluster { " --on cluster" } else { "" }
    }
}

enum Server {
    Memory(Memory),
    Cluster(Scene),
}

/// The place, with a namespace of one life.
pub struct World {
    server: Server,
    pub client: Client,
    pub namespace: String,
    folder: PathBuf,
}

impl World {
    pub async fn new(on: On, seed: u64) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let folder = std::env::temp_dir().join(format!("coder-k8s-soak-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        if on == On::Memory {
            static KINDS: LazyLock<Kinds> = LazyLock::new(|| Kinds::new(&crds()).unwrap());
            let memory = Memory::start(&KINDS).await.unwrap();
            let client = memory.client().unwrap();
            return Self { server: Server::Memory(memory), client, namespace: "default".to_owned(), folder };
        }
        let scene = Scene::unmanaged(&format!("soak-{seed}")).await;
        let (client, namespace) = (scene.client.clone(), scene.namespace.clone());
        Self { server: Server::Cluster(scene), client, namespace, folder }
    }

    /// Starts an operator that watches this namespace alone. It may not lead yet.
    pub fn operator(&self) -> Operator {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let args = [
            "--lease-duration=2s",
            "--renew-deadline=1500ms",
            "--retry-period=300ms",
            "--entitlements-interval=1s",
            "--verify-interval=2s",
            "--coderd-timeout=2s",
            "--cleanup-timeout=20s",
            "--log-level=info",
        ];
        match &self.server {
            Server::Memory(memory) => {
                let user = format!("soak-{}", COUNT.fetch_add(1, Ordering::SeqCst));
                let kubeconfig = self.folder.join(&user);
                std::fs::write(&kubeconfig, memory.kubeconfig(&user)).unwrap();
                let output = self.folder.join(format!("{user}.log"));
                let scope = [
                    format!("--watch-namespaces={}", self.namespace),
                    format!("--leader-elect-namespace={}", self.namespace),
                ];
                let args: Vec<_> = scope.iter().map(String::as_str).chain(args).collect();
                Operator::start_with(user, &kubeconfig, output, &args)
            }
            Server::Cluster(scene) => scene.start(&args),
        }
    }

    /// What operators wrote so far, but for their lease.
    pub fn written(&self, users: &[String]) -> Vec<String> {
        match &self.server {
            Server::Memory(memory) => {
                let all = memory.asked();
                let ours = all.iter().filter(|asked| {
                    users.contains(&asked.user) && asked.method != "GET" && asked.resource != "leases"
                });
                ours.map(|asked| format!("{} {} {} {}", asked.method, asked.resource, asked.name, asked.code))
                    .collect()
            }
            Server::Cluster(scene) => {
                let all = requests(scene.cluster(), |user| users.iter().any(|ours| ours == user));
                listed(writes(&all))
            }
        }
    }

    /// Ends every watch, where that is possible without harm to other lives.
    pub fn break_watches(&self) {
        if let Server::Memory(memory) = &self.server {
            memory.break_watches();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
