//! A licensed deployment whose coderd is simulated and whose other programs are real.
//!
//! No license for tests exists, so real daemons and proxies join the simulator: it speaks their wire. The pods of the
//! control plane are played; those of pools and proxies run the real program.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_coderd::{Client, Connector, Endpoint, Settings};
use coder_k8s_testbed::{
    Exit, Program, binaries,
    codersim::{CoderSim, Entry, Mode, SessionSeen},
    eventually,
};
use serde_json::{Value, json};

use coder_k8s_scenes::{
    coderd::CoderdScene,
    scene::{Scene, status},
};

use crate::{OPERATOR, real::IMAGE, real::NEXT_IMAGE};

/// An image that stands for nothing: control planes with it are simulated.
const SIMULATED: &str = "registry.example/simulated:v2.36.1";

/// How long a real program may take for a step. Several start at a time, and tests run beside each other.
pub const REAL: Duration = Duration::from_mins(3);

/// Runs the real coder for the images that tests ask for.
pub fn run_coder(scene: &Scene) {
    let coder = binaries::locate_coder().unwrap_or_else(|error| panic!("{error}"));
    for image in [IMAGE, NEXT_IMAGE] {
        scene.node().run_image(image, Program::coder(&coder)).unwrap();
    }
}

/// A namespace with a control plane `coder` that is licensed and simulated, for the operator and processes alike.
pub struct Simulated {
    pub coder: CoderdScene,
}

impl Simulated {
    /// The same, once the operator knows what the server is entitled to.
    pub async fn new(prefix: &str) -> Self {
        let coder = CoderdScene::new(&OPERATOR, prefix, Mode::Licensed).await;
        run_coder(&coder.scene);
        let host = format!("coder.{}.svc.cluster.local", coder.scene.namespace);
        coder.scene.node().host(&host, coder.sim.address());
        coder.plane(json!({"image": SIMULATED})).await;
        let answered = |plane: &CoderControlPlane| {
            status(plane).external_provisioner_daemons_entitlement.as_deref() == Some("entitled")
        };
        coder.scene.until("coder", answered).await;
        Self { coder }
    }

    pub fn scene(&self) -> &Scene {
        &self.coder.scene
    }

    pub fn sim(&self) -> &CoderSim {
        &self.coder.sim
    }

    /// A client with the rights of an owner.
    pub fn owner(&self) -> Client {
        let target = Endpoint::new(self.sim().url());
        Connector::new(Settings::on_loopback()).client(&target, Some(&self.sim().owner_token())).unwrap()
    }

    /// Waits until something holds, and gives what it found.
    pub async fn until<T>(&self, what: &str, holds: impl AsyncFn() -> Option<T>) -> T {
        let found = eventually(REAL, || async { holds().await.ok_or("not yet") });
        found.await.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.scene().log()))
    }

    /// The sessions that are open.
    pub fn open(&self) -> Vec<SessionSeen> {
        self.sim().sessions().into_iter().filter(|session| session.ended.is_none()).collect()
    }

    /// How the processes of the namespace ended so far.
    pub fn exits(&self) -> Vec<Exit> {
        self.scene().node().exits(&self.scene().namespace)
    }

    /// The requests that were refused for want of a credential or a right.
    pub fn refused(&self) -> Vec<Entry> {
        let refused = |entry: &Entry| matches!(entry.status, Some(401 | 403));
        self.sim().requests().into_iter().filter(refused).collect()
    }

    /// Runs the real program from a Deployment of the test's own, with this container and nothing else.
    pub async fn deploy(&self, name: &str, container: Value) {
        let namespace = &self.scene().namespace;
        let labels = json!({"app": name});
        let mut main = json!({"name": "main", "image": IMAGE, "command": ["coder"]});
        for (field, value) in container.as_object().unwrap() {
            main[field] = value.clone();
        }
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [main], "terminationGracePeriodSeconds": 60}}}});
        coder_k8s_scenes::apply(&self.scene().client, deployment).await;
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::real::show_logs(self.scene());
            for Entry { method, path, status, .. } in self.refused() {
                eprintln!("refused: {method} {path} {status:?}");
            }
        }
    }
}
