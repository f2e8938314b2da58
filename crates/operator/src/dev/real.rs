//! The real coderd of the local cluster: unmodified and unlicensed, started by the Deployment of a control plane.
//!
//! The node runs coderd as a process for the images below. The control plane is a sample without its license, with
//! settings that keep coderd from calling anything outside this machine.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use coder_k8s_api::{CoderControlPlane, condition::kind, samples::SAMPLES};
use coder_k8s_coderd::Resolve;
use coder_k8s_testbed::{
    Node, Postgres, Program, Resolver,
    binaries::{self, CODER_VERSION},
    postgres::Programs,
};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Console, NAMESPACE, apply, apply_namespace, apply_secret};
use crate::intervals::DEV_POLL_PERIOD;

const SAMPLE: &str = "controlplane-licensed.yaml";
const NAME: &str = "coder";

/// Printed when coderd and the operator access are ready.
pub(super) const READY: &str = "the real coderd serves, and the operator has access to it";

/// The images that the node has. All run the same program, so that you can try a change of the image.
const IMAGES: [&str; 2] = ["ghcr.io/coder/coder:latest", "ghcr.io/coder/coder:v2.36.1"];

/// Settings that keep coderd from calling anything outside this machine.
const OFFLINE: [(&str, &str); 6] = [
    ("CODER_TELEMETRY_ENABLE", "false"),
    ("CODER_UPDATE_CHECK", "false"),
    ("CODER_PROVISIONER_DAEMONS", "0"),
    ("CODER_DERP_SERVER_STUN_ADDRESSES", "disable"),
    ("CODER_OAUTH2_GITHUB_DEFAULT_PROVIDER_ENABLE", "false"),
    ("CODER_AI_GATEWAY_ENABLED", "false"),
];

/// Returns the path of coderd, and builds it if it is not cached. Checks for Postgres first, because the build takes
/// minutes.
pub(super) async fn program(console: &Console) -> Result<PathBuf> {
    Programs::locate().context("--with-coderd needs Postgres")?;
    let coder = binaries::build_coder(&mut |progress| console.line(&progress.to_string())).await;
    coder.context("cannot build the real coderd")
}

/// Starts Postgres, which stops when dropped.
pub(super) async fn postgres(console: &Console) -> Result<Postgres> {
    let server = Postgres::start().await.context("cannot start Postgres")?;
    console.line(&format!("Postgres is up on port {}", server.port()));
    Ok(server)
}

/// A control plane whose pods are processes of this machine.
pub(super) struct RealCoderd<'a> {
    client: Client,
    resolver: Resolver,
    /// The address that was printed last.
    address: Mutex<Option<SocketAddr>>,
    console: &'a Console,
}

impl<'a> RealCoderd<'a> {
    /// Tells the node to run coderd for its images.
    pub(super) fn start(node: &Node, coder: &Path, client: &Client, console: &'a Console) -> Result<Self> {
        for image in IMAGES {
            node.run_image(image, Program::coder(coder)).context("cannot set up the node")?;
        }
        Ok(Self {
            client: client.clone(),
            resolver: node.resolver(client.clone()),
            address: Mutex::default(),
            console,
        })
    }

    /// Resolves the Service to the processes behind it.
    pub(super) fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(self.resolver.clone())
    }

    /// Applies the control plane and its database Secret. The license is left out, because the real coderd accepts no
    /// license of the simulator.
    pub(super) async fn apply(&self, database: &str) -> Result<()> {
        apply_namespace(&self.client, NAMESPACE).await?;
        apply_secret(&self.client, "coder-db-app", "uri", database).await?;
        apply(&self.client, sample()?).await?;
        self.console
            .line(&format!("applied CoderControlPlane {NAMESPACE}/{NAME}: {SAMPLE} without its license"));
        Ok(())
    }

    /// Waits until coderd serves and the operator has access to it.
    pub(super) async fn ready(&self) -> Result<()> {
        while !(self.is_ready().await && self.address.lock().is_some()) {
            tokio::time::sleep(DEV_POLL_PERIOD).await;
        }
        Ok(())
    }

    /// Prints the address of coderd whenever it changes, and once that the operator has access.
    pub(super) async fn follow(&self) -> Infallible {
        let mut had_access = false;
        loop {
            let found = self.resolver.find(&format!("{NAME}.{NAMESPACE}.svc"), 80).await;
            if let Some(address) = found.ok().and_then(|all| all.first().copied())
                && self.address.lock().replace(address) != Some(address)
            {
                self.console.line(&format!(
                    "coderd {CODER_VERSION} answers at http://{address} (API only: this build has no dashboard)"
                ));
            }
            if !had_access && self.is_ready().await {
                had_access = true;
                self.console
                    .line("the operator has access to coderd through its own account in the database");
            }
            tokio::time::sleep(DEV_POLL_PERIOD).await;
        }
    }

    /// Whether the control plane and its operator access are ready for the current generation.
    async fn is_ready(&self) -> bool {
        let planes = Api::<CoderControlPlane>::namespaced(self.client.clone(), NAMESPACE);
        let Ok(plane) = planes.get(NAME).await else { return false };
        let status = plane.status.unwrap_or_default();
        let holds = |type_: &str| {
            let mut all = status.workload.conditions.iter();
            all.any(|c| {
                c.type_ == type_ && c.status == "True" && c.observed_generation == plane.metadata.generation
            })
        };
        holds(kind::READY) && holds(kind::OPERATOR_ACCESS_READY) && status.version.is_some()
    }
}

/// Prints the last lines of coderd's logs.
pub(super) fn show_logs(node: &Node) {
    for (name, tail) in node.logs(NAMESPACE) {
        Console::plain(&format!("the last lines of {name}:\n{tail}"));
    }
}

/// The sample with the settings that it needs on this machine.
fn sample() -> Result<Value> {
    let found = SAMPLES.iter().find(|sample| sample.file == SAMPLE).context("no such sample")?;
    let mut object: Value = serde_saphyr::from_str(found.yaml)?;
    let spec = object.get_mut("spec").and_then(Value::as_object_mut).context("a sample without a spec")?;
    spec.remove("licenseSecretRef");
    // The pinned release exits if this is set by its environment variable.
    spec.insert("extraArgs".to_owned(), json!(["--external-auth-github-default-provider-enable=false"]));
    spec.insert("readinessProbe".to_owned(), json!({"periodSeconds": 1}));
    let env =
        spec.get_mut("extraEnv").and_then(Value::as_array_mut).context("a sample without a database")?;
    // Without an access URL, coderd gets the address of the Service, which resolves to the process.
    env.retain(|entry| entry.get("name") != Some(&json!("CODER_ACCESS_URL")));
    env.extend(OFFLINE.map(|(name, value)| json!({"name": name, "value": value})));
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_keeps_its_database_and_is_a_control_plane() {
        let object = sample().unwrap();
        let plane: CoderControlPlane = serde_json::from_value(object).unwrap();
        assert_eq!(plane.metadata.name.as_deref(), Some(NAME));
        assert_eq!(plane.metadata.namespace.as_deref(), Some(NAMESPACE));
        assert!(IMAGES.contains(&plane.spec.image.as_ref()));
        assert!(IMAGES.iter().any(|image| image.ends_with(CODER_VERSION)));
        assert!(plane.spec.license_secret_ref.is_none());
        assert!(plane.spec.pod.extra_env.iter().any(|entry| entry.name == "CODER_PG_CONNECTION_URL"));
    }
}
