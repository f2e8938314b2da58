//! The real programs of `dev`: coderd, unmodified and unlicensed, started by the Deployment of a control plane, or the
//! daemons and proxies that connect to a simulated one.
//!
//! The node runs the program for the images below. The control plane of the real coderd is the sample without its license, with
//! settings that keep coderd from calling anything outside this machine.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use coder_k8s_api::{CoderKind, samples::SAMPLES};
use coder_k8s_coderd::Resolve;
use coder_k8s_testbed::{
    Node, Postgres, Program, Resolver,
    binaries::{self, CODER_VERSION},
    postgres::Programs,
};
use kube::Client;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::{
    Guide, NAMESPACE, SharedGuide,
    console::Console,
    folder::Folder,
    given::{self, Manifest},
    story::Login,
    styled::{Line, Style},
};
use crate::intervals::DEV_POLL_PERIOD;

const SAMPLE: &str = "controlplane.yaml";
const NAME: &str = "coder";

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

/// Fails if Postgres is not installed. Called before anything is built.
pub(super) fn check_postgres() -> Result<()> {
    Programs::locate().context("--with-coderd needs Postgres")?;
    Ok(())
}

/// Returns the path of the real program, and builds it if it is not cached.
pub(super) async fn program(console: &Console) -> Result<PathBuf> {
    let coder = binaries::build_coder(&mut |progress| console.progress(&progress)).await;
    console.end_progress();
    coder.context("cannot build the real coderd")
}

/// Leads proxies and coderd to each other by their Services: access URLs have no DNS names here.
pub(super) fn use_service(samples: &mut [Manifest]) {
    let proxies = samples.iter_mut().map(|sample| &mut sample.object).filter(|object| {
        object.types.as_ref().is_some_and(|types| types.kind == CoderKind::WorkspaceProxy.as_str())
    });
    for proxy in proxies {
        if let Some(spec) = proxy.data.pointer_mut("/spec").and_then(Value::as_object_mut) {
            let url = format!("http://{NAME}.{NAMESPACE}.svc.cluster.local");
            spec.insert("primaryAccessURL".to_owned(), url.into());
            spec.remove("accessURL");
        }
    }
}

/// Tells the node to run coderd for its images, or only daemons and proxies.
pub(super) fn run_images(node: &Node, coder: &Path, with_coderd: bool) -> Result<()> {
    for image in IMAGES {
        let program = Program::coder(coder);
        let program = if with_coderd { program } else { program.commands_only() };
        node.run_image(image, program).context("cannot set up the node")?;
    }
    Ok(())
}

/// Starts Postgres, which stops when dropped.
pub(super) async fn postgres(console: &Console) -> Result<Postgres> {
    let server = Postgres::start().await.context("cannot start Postgres")?;
    console.line(&format!("Postgres is up on port {}", server.port()));
    Ok(server)
}

/// A control plane whose pods are processes of this machine.
pub(super) struct RealCoderd<'a> {
    resolver: Resolver,
    guide: &'a SharedGuide,
    console: &'a Console,
}

impl<'a> RealCoderd<'a> {
    pub(super) fn new(node: &Node, client: &Client, guide: &'a SharedGuide, console: &'a Console) -> Self {
        Self { resolver: node.resolver(client.clone()), guide, console }
    }

    /// Resolves the Service to the processes behind it.
    pub(super) fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(self.resolver.clone())
    }

    /// Tells the address of coderd whenever it changes, and how to log in.
    pub(super) async fn follow(&self, login: &Login) -> Infallible {
        let mut known = None;
        loop {
            let found = self.resolver.find(&format!("{NAME}.{NAMESPACE}.svc"), 80).await;
            let found = found.ok().and_then(|all| all.first().copied());
            if let Some(address) = found.filter(|_| found != known) {
                known = found;
                self.tell(address, login);
            }
            tokio::time::sleep(DEV_POLL_PERIOD).await;
        }
    }

    /// The password is that of a deployment which ends with this process.
    fn tell(&self, address: SocketAddr, login: &Login) {
        let Login { email, password } = login;
        let password = password.expose_secret();
        let pinned = [
            format!(
                "coderd {CODER_VERSION} answers at http://{address} (API only: this build has no dashboard)"
            ),
            format!("log in as {email} with the password {password}"),
        ];
        for line in &pinned {
            self.console.line(line);
        }
        let mut guide = self.guide.lock();
        guide.pinned = pinned.into();
        if let Some((_, command)) = guide.commands.first_mut() {
            *command = format!(
                "curl -s http://{address}/api/v2/users/login -d '{{\"email\":\"{email}\",\"password\":\"{password}\"}}'"
            );
        }
    }
}

/// What to try with the real coderd.
pub(super) fn guide(title: String, folder: &Folder) -> Guide {
    let commands = [
        ("log in: coderd answers with a session token", "kubectl get coder".to_owned()),
        (
            "another image: watch the rollout",
            format!(
                "kubectl patch ccp {NAME} --type merge -p '{{\"spec\":{{\"image\":\"ghcr.io/coder/coder:latest\"}}}}'"
            ),
        ),
        ("delete it", "kubectl delete coder --all".to_owned()),
    ];
    Guide {
        title,
        environment: format!(". {}", folder.typed("env")),
        commands: commands.map(|(what, command)| (what.to_owned(), command)).into(),
        pinned: Vec::new(),
    }
}

/// Prints the last lines of the logs of all processes.
pub(super) fn show_logs(node: &Node, console: &Console) {
    for (name, tail) in node.logs(NAMESPACE) {
        let head = Line::new(Style::Bold, &format!("the last lines of {name}:"));
        let lines = tail.lines().map(|line| Line::new(Style::Plain, line));
        console.lines(&std::iter::once(head).chain(lines).collect::<Vec<_>>());
    }
}

/// The sample with the settings that it needs on this machine. The license is left out, because the real coderd accepts
/// no license of the simulator.
pub(super) fn manifests() -> Result<Vec<Manifest>> {
    let found = SAMPLES.iter().find(|sample| sample.file == SAMPLE).context("no such sample")?;
    let mut manifests = given::sample(found)?;
    for manifest in &mut manifests {
        let spec = manifest.object.data.get_mut("spec").and_then(Value::as_object_mut);
        let spec = spec.context("a sample without a spec")?;
        spec.remove("licenseSecretRef");
        // The pinned release exits if this is set by its environment variable.
        spec.insert("extraArgs".to_owned(), json!(["--external-auth-github-default-provider-enable=false"]));
        spec.insert("readinessProbe".to_owned(), json!({"periodSeconds": 1}));
        let env = spec.get_mut("extraEnv").and_then(Value::as_array_mut);
        let env = env.context("a sample without a database")?;
        // Without an access URL, coderd gets the address of the Service, which resolves to the process.
        env.retain(|entry| entry.get("name") != Some(&json!("CODER_ACCESS_URL")));
        env.extend(OFFLINE.map(|(name, value)| json!({"name": name, "value": value})));
    }
    Ok(manifests)
}

#[cfg(test)]
mod tests {
    use coder_k8s_api::CoderControlPlane;

    use super::*;

    #[test]
    fn the_sample_keeps_its_database_and_is_a_control_plane() {
        let [manifest] = &manifests().unwrap()[..] else { panic!("one object") };
        let plane: CoderControlPlane =
            serde_json::from_value(serde_json::to_value(&manifest.object).unwrap()).unwrap();
        assert_eq!(plane.metadata.name.as_deref(), Some(NAME));
        assert_eq!(plane.metadata.namespace.as_deref(), Some(NAMESPACE));
        assert!(IMAGES.contains(&plane.spec.image.as_ref()));
        assert!(IMAGES.iter().any(|image| image.ends_with(CODER_VERSION)));
        assert!(plane.spec.license_secret_ref.is_none());
        assert!(plane.spec.pod.extra_env.iter().any(|entry| entry.name == "CODER_PG_CONNECTION_URL"));
    }
}
