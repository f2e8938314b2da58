//! Applies the samples as a person would, with a simulated coderd behind them, and waits for them.

use std::{io, net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use coder_k8s_api::samples::SAMPLES;
use coder_k8s_coderd::Resolve;
use coder_k8s_testbed::{CoderSim, codersim::Mode};
use futures::future::BoxFuture;
use kube::{Client, ResourceExt, api::DynamicObject};
use secrecy::ExposeSecret;

use super::{Console, api, apply_namespace, apply_secret, kind};
use crate::intervals::{DEV_LICENSE_TIMEOUT, DEV_POLL_PERIOD};

/// The simulated coderd, which stops when dropped. The node starts no containers, so that one simulator serves every
/// control plane. It accepts the license and the token in the Secrets of the samples.
pub(super) struct Coderd {
    sim: CoderSim,
}

impl Coderd {
    pub(super) async fn start(console: &Console) -> Result<Self> {
        let sim = CoderSim::start(Mode::Unlicensed).await?;
        console.line(&format!("a simulated coderd serves all control planes at {}", sim.url()));
        Ok(Self { sim })
    }

    /// Resolves the name of any Service to the simulator.
    pub(super) fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(AnyHost(self.sim.address()))
    }

    /// Creates the Secrets that the samples name, with a license, tokens and a database URL.
    pub(super) async fn fill_secrets(&self, client: &Client) -> Result<()> {
        let license = CoderSim::license().feature_set("premium").build();
        let token = self.sim.owner_token();
        for (name, key, value) in [
            ("coder-license", "license", license.expose_secret()),
            ("coder-token", "token", token.expose_secret()),
            ("coder-bootstrap", "token", token.expose_secret()),
            ("coderworkspaceproxy-token", "token", "00000000-0000-0000-0000-000000000000:supplied"),
            ("coder-db-app", "uri", "postgres://coder@database.example/coder"),
        ] {
            apply_secret(client, name, key, value).await?;
        }
        Ok(())
    }
}

struct AnyHost(SocketAddr);

impl Resolve for AnyHost {
    fn resolve(&self, _host: String, _port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(async { Ok(vec![self.0]) })
    }
}

/// Creates the namespaces of the samples.
pub(crate) async fn namespaces(client: &Client) -> Result<()> {
    for sample in parsed()? {
        apply_namespace(client, &sample.namespace().unwrap_or_default()).await?;
    }
    Ok(())
}

/// Applies every sample, first the control plane that applies the license.
///
/// One coderd serves all of them. A sample that asks before the license is applied learns that there is none, and asks
/// again only after minutes.
pub(crate) async fn apply(client: &Client, console: &Console) -> Result<()> {
    let (first, others): (Vec<_>, Vec<_>) = parsed()?.into_iter().partition(applies_license);
    put(client, &first, console).await?;
    if let Ok(outcome) = tokio::time::timeout(DEV_LICENSE_TIMEOUT, wait(client, &first)).await {
        outcome?;
    }
    put(client, &others, console).await
}

async fn put(client: &Client, samples: &[DynamicObject], console: &Console) -> Result<()> {
    for sample in samples {
        super::apply(client, serde_json::to_value(sample)?).await?;
        let (namespace, name) = (sample.namespace().unwrap_or_default(), sample.name_any());
        console.line(&format!("applied {} {namespace}/{name}", kind(sample)));
    }
    Ok(())
}

/// Waits until every sample is reconciled, and is ready if it can be ready here.
pub(crate) async fn settled(client: &Client) -> Result<()> {
    wait(client, &parsed()?).await
}

async fn wait(client: &Client, samples: &[DynamicObject]) -> Result<()> {
    for sample in samples {
        let name = sample.name_any();
        let api = api(client, sample)?;
        let ready = can_be_ready(sample);
        let settled = |object: DynamicObject| is_observed(&object) && (!ready || is_ready(&object));
        while !api.get_opt(&name).await?.is_some_and(settled) {
            tokio::time::sleep(DEV_POLL_PERIOD).await;
        }
    }
    Ok(())
}

fn applies_license(sample: &DynamicObject) -> bool {
    sample.data.pointer("/spec/licenseSecretRef").is_some() && can_be_ready(sample)
}

/// Whether a sample can be ready here.
///
/// - A control plane: if it needs no license, or has a token to apply it with.
/// - A pool: if it has a token of its own, because its control plane has no database to get one from.
/// - A proxy: if it names a control plane, or has a supplied token.
fn can_be_ready(sample: &DynamicObject) -> bool {
    let given = |path: &str| sample.data.pointer(path);
    let token = given("/spec/operatorAccess/method").is_some_and(|method| method == "TokenSecret");
    let licensable = given("/spec/licenseSecretRef").is_none() || token;
    match kind(sample) {
        "CoderControlPlane" => licensable,
        "CoderProvisioner" => given("/spec/bootstrap").is_some(),
        // The operator asks an address for its entitlements when it gets one, and then rarely.
        _ => given("/spec/bootstrap").is_none(),
    }
}

fn is_ready(object: &DynamicObject) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.get("type").is_some_and(|t| t == "Ready") && c.get("status").is_some_and(|s| s == "True"))
}

fn is_observed(object: &DynamicObject) -> bool {
    let observed = object.data.pointer("/status/observedGeneration").and_then(serde_json::Value::as_i64);
    observed.is_some() && observed == object.metadata.generation
}

fn parsed() -> Result<Vec<DynamicObject>> {
    SAMPLES
        .iter()
        .map(|sample| serde_saphyr::from_str(sample.yaml).with_context(|| format!("sample {}", sample.file)))
        .collect()
}
