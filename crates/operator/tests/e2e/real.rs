//! A control plane whose coderd is the real one, with a database of its own.

use std::{net::SocketAddr, time::Duration};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_coderd::Endpoint;
use coder_k8s_testbed::{
    Resolver, contract, eventually,
    postgres::{self, Database},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use coder_k8s_scenes::scene::{Scene, condition};

use crate::{OPERATOR, simulated::run_coder};

/// The image that control planes of tests ask for.
pub const IMAGE: &str = "ghcr.io/coder/coder:v2.36.1";
/// Another name for the same program, for changes of image.
pub const NEXT_IMAGE: &str = "registry.example/coder:v2.36.1";

/// A first start runs hundreds of migrations, and tests run beside each other.
const FIRST_START: Duration = Duration::from_mins(4);

/// A namespace in which a control plane `coder` is the real one.
pub struct Real {
    pub scene: Scene,
    pub database: Database<'static>,
    pub resolver: Resolver,
    _hosts: AbortOnDropHandle<()>,
}

impl Real {
    /// A namespace and a database, whose URL is in the Secret `db`; no control plane yet.
    pub async fn new(prefix: &str) -> Self {
        let scene = Scene::new(&OPERATOR, prefix).await;
        run_coder(&scene);
        let database = postgres::shared().await.database().await.unwrap();
        let resolver = scene.node().resolver(scene.client.clone());
        let hosts = follow(&scene, resolver.clone());
        let real = Self { scene, database, resolver, _hosts: AbortOnDropHandle::new(hosts) };
        real.secret("db", "url", &real.database.url().into()).await;
        real
    }

    /// The same, with a control plane `coder` that has this in its spec besides what every one here has, once coderd
    /// serves.
    pub async fn serving(prefix: &str, more: Value) -> Self {
        let real = Self::new(prefix).await;
        real.plane(more).await;
        real.served().await;
        real
    }

    /// The same, with an owner whose token is in the Secret `token`, which the control plane names.
    pub async fn owned(prefix: &str, more: Value) -> (Self, SecretString) {
        let mut spec =
            json!({"operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}}});
        merge(&mut spec, &more);
        let real = Self::serving(prefix, spec).await;
        let token = contract::set_up(&real.target().await).await.unwrap();
        real.secret("token", "token", &token).await;
        (real, token)
    }

    /// Makes the control plane `coder`, which talks to nobody outside this machine.
    pub async fn plane(&self, more: Value) {
        let literal = |(name, value): (&str, &str)| json!({"name": name, "value": value});
        let mut env: Vec<_> = [
            ("CODER_TELEMETRY_ENABLE", "false"),
            ("CODER_UPDATE_CHECK", "false"),
            ("CODER_PROVISIONER_DAEMONS", "0"),
            ("CODER_DERP_SERVER_STUN_ADDRESSES", "disable"),
            ("CODER_OAUTH2_GITHUB_DEFAULT_PROVIDER_ENABLE", "false"),
            ("CODER_AI_GATEWAY_ENABLED", "false"),
            ("CODER_DANGEROUS_DISABLE_RATE_LIMITS", "true"),
        ]
        .map(literal)
        .into();
        env.push(json!({"name": "CODER_PG_CONNECTION_URL",
            "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}));
        let mut spec = json!({"image": IMAGE, "extraEnv": env, "readinessProbe": {"periodSeconds": 1},
            // As a variable this one is fatal in the pinned release.
            "extraArgs": ["--external-auth-github-default-provider-enable=false"]});
        merge(&mut spec, &more);
        self.scene.plane("coder", spec).await;
    }

    /// Waits until a pod is ready; a first start takes its time.
    pub async fn served(&self) -> CoderControlPlane {
        let served = eventually(FIRST_START, || async {
            let plane = self.scene.api::<CoderControlPlane>().get("coder").await;
            let plane = plane.map_err(|error| error.to_string())?;
            let ready = condition(&plane, "DeploymentReady").is_some_and(|c| c.status == "True");
            if ready { Ok(plane) } else { Err(serde_json::to_string(&plane.status).unwrap()) }
        });
        served.await.unwrap_or_else(|error| panic!("coderd does not serve: {error}"))
    }

    /// The name of the Service.
    pub fn host(&self) -> String {
        host(&self.scene.namespace)
    }

    /// Where a ready pod answers right now.
    pub async fn address(&self) -> SocketAddr {
        self.resolver.find(&self.host(), 80).await.unwrap()[0]
    }

    /// The same for a client of coderd.
    pub async fn target(&self) -> Endpoint {
        Endpoint::new(format!("http://{}", self.address().await))
    }

    /// Puts a value into a Secret, which may be new.
    pub async fn secret(&self, name: &str, key: &str, value: &SecretString) {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": self.scene.namespace},
            "stringData": {key: value.expose_secret()}});
        coder_k8s_scenes::apply(&self.scene.client, secret).await;
    }

    /// Waits until a condition says something, and returns the object.
    pub async fn until_condition(&self, type_: &str, status: &str, reason: &str) -> CoderControlPlane {
        self.scene.until_condition("coder", type_, status, Some(reason)).await
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show_logs(&self.scene);
        }
    }
}

/// Shows the last lines of every process of a namespace.
pub fn show_logs(scene: &Scene) {
    for (name, tail) in scene.node().logs(&scene.namespace) {
        let short = |line: &str| line.chars().take(400).collect::<String>();
        let lines: Vec<_> = tail.lines().map(short).collect();
        eprintln!("the last lines of {name}:\n{}", lines.join("\n"));
    }
}

fn host(namespace: &str) -> String {
    format!("coder.{namespace}.svc.cluster.local")
}

fn merge(into: &mut Value, more: &Value) {
    for (field, value) in more.as_object().unwrap() {
        into[field] = value.clone();
    }
}

/// Tells the operator where the Service leads, for as long as the test runs.
fn follow(scene: &Scene, resolver: Resolver) -> tokio::task::JoinHandle<()> {
    let (operator, host) = (scene.operator(), host(&scene.namespace));
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let found = resolver.find(&host, 80).await.ok().and_then(|all| all.first().copied());
            if let Some(address) = found.filter(|found| told != Some(*found)) {
                operator.host(&host, address);
                told = Some(address);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}
