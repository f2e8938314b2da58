//! The operator in the local cluster: runs in this process, with exactly the permissions of its manifests.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use coder_k8s_coderd::Resolve;
use coder_k8s_engine::logs;
use coder_k8s_testbed::Cluster;
use kube::{
    Client,
    api::{Api, DynamicObject, Patch, PatchParams},
    discovery,
};
use tokio_util::sync::CancellationToken;

use super::Console;
use crate::{
    controller,
    manifests::{self, Install},
};

#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    options: controller::Options,
}

/// Runs the operator in this process until `stop`.
pub(super) async fn run(
    cluster: &Cluster,
    client: &Client,
    log_level: &str,
    resolver: Arc<dyn Resolve>,
    stop: CancellationToken,
    console: &Console,
) -> Result<()> {
    let install = Install::default();
    grant(client, &install).await.context("cannot install the RBAC of the operator")?;
    let kubeconfig = cluster.kubeconfig_for_account(&install.namespace, "coder-k8s").await?;
    let logs = logs::init(logs::Format::Human, log_level)?;
    let mut options = Defaults::try_parse_from(["dev"])?.options;
    options.kubeconfig = Some(kubeconfig);
    options.leader_elect_namespace = Some(install.namespace);
    for address in [&mut options.health_addr, &mut options.metrics_addr, &mut options.admin_addr] {
        *address = "127.0.0.1:0".parse()?;
    }
    console.line("starting the operator with the permissions of its manifests");
    controller::control(options, Some(logs), Some(resolver), stop).await
}

/// Applies the manifests of the operator, without its Deployment.
async fn grant(client: &Client, install: &Install) -> Result<()> {
    let desired = manifests::objects(install)?.into_iter().filter(|object| object["kind"] != "Deployment");
    for object in desired {
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.clone().unwrap_or_default();
        let (resource, _) = discovery::pinned_kind(client, &(&types).try_into()?).await?;
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let name = object.metadata.name.clone().unwrap_or_default();
        api.patch(&name, &PatchParams::apply("coder-k8s-dev"), &Patch::Apply(&object)).await?;
    }
    Ok(())
}
