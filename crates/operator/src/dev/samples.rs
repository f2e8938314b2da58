//! Applies the samples as a person would, and waits for them.

use std::time::Duration;

use anyhow::{Context, Result};
use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, samples::SAMPLES};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};

use super::Console;

/// The field manager of the samples, which is not the operator's.
const MANAGER: &str = "coder-k8s-dev";
/// How long the other samples wait for the control plane that applies the license.
const LICENSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates the namespaces of the samples.
pub(crate) async fn namespaces(client: &Client) -> Result<()> {
    for sample in parsed()? {
        ensure_namespace(client, &namespace(&sample)).await?;
    }
    Ok(())
}

fn namespace(sample: &DynamicObject) -> String {
    sample.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned())
}

/// Applies every sample, first the control plane that applies the license.
///
/// One coderd serves all of them. A sample that asks before the license is applied learns that there is none, and asks
/// again only after minutes.
pub(crate) async fn apply(client: &Client, console: &Console) -> Result<()> {
    let (first, others): (Vec<_>, Vec<_>) = parsed()?.into_iter().partition(applies_license);
    put(client, &first, console).await?;
    if let Ok(outcome) = tokio::time::timeout(LICENSE_TIMEOUT, wait(client, &first)).await {
        outcome?;
    }
    put(client, &others, console).await
}

async fn put(client: &Client, samples: &[DynamicObject], console: &Console) -> Result<()> {
    for sample in samples {
        let namespace = namespace(sample);
        let name = sample.metadata.name.clone().unwrap_or_default();
        api(client, sample)?
            .patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(sample))
            .await
            .with_context(|| format!("cannot apply the sample {namespace}/{name}"))?;
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
        let name = sample.metadata.name.clone().unwrap_or_default();
        let api = api(client, sample)?;
        let ready = can_be_ready(sample);
        let settled = |object: DynamicObject| is_observed(&object) && (!ready || is_ready(&object));
        while !api.get_opt(&name).await?.is_some_and(settled) {
            tokio::time::sleep(Duration::from_millis(100)).await;
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

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("object", |types| types.kind.as_str())
}

fn api(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let resource = [
        ApiResource::erase::<CoderControlPlane>(&()),
        ApiResource::erase::<CoderProvisioner>(&()),
        ApiResource::erase::<CoderWorkspaceProxy>(&()),
    ]
    .into_iter()
    .find(|resource| resource.kind == kind(object))
    .with_context(|| format!("{} is not a kind of this operator", kind(object)))?;
    Ok(match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::default_namespaced_with(client.clone(), &resource),
    })
}

async fn ensure_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    Api::<Namespace>::all(client.clone())
        .patch(name, &PatchParams::apply(MANAGER), &Patch::Apply(&namespace))
        .await
        .with_context(|| format!("cannot create the namespace {name}"))?;
    Ok(())
}
