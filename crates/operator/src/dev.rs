//! `coder-k8s dev`: runs a local cluster with the operator and the samples, and prints a line for every change.
//!
//! The cluster is the testbed's: a real API server on loopback, and a node that simulates pods and starts no
//! containers. With `--with-coderd` the node runs the real coderd for the Deployment of a control plane, with a real
//! Postgres. Nothing is left when the command ends, however it ends.

mod real;
mod samples;
mod watch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use coder_k8s_coderd::Resolve;
use coder_k8s_engine::logs;
use coder_k8s_testbed::{Binaries, Cluster, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    controller::{self, options::duration},
    intervals::DEV_SHUTDOWN_TIMEOUT,
    manifests::{self, Install},
    print::print,
};

/// The namespace of the Secrets that the samples name.
const NAMESPACE: &str = "coder";

/// Flags of `dev`. The doc comments are the text of `--help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Exit with code 0 as soon as every sample is settled, instead of waiting for Ctrl-C
    #[arg(long, env = "CODER_K8S_DEV_UNTIL_READY")]
    until_ready: bool,

    /// Run one control plane with the real coderd, unlicensed, and a real Postgres, instead of the samples with a
    /// simulated coderd. The first run builds coderd, which takes minutes
    #[arg(long, env = "CODER_K8S_DEV_WITH_CODERD")]
    with_coderd: bool,

    /// Deadline of --until-ready
    #[arg(long, default_value = "2m", value_parser = duration, env = "CODER_K8S_DEV_TIMEOUT", value_name = "TIME")]
    timeout: Duration,

    /// Log level of the operator: error, warn, info, debug, trace
    #[arg(long, default_value = "warn", env = "CODER_K8S_LOG_LEVEL")]
    log_level: String,
}

/// Runs until Ctrl-C or SIGTERM, or with `--until-ready` until the samples are settled.
pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(dev(options));
    runtime.shutdown_timeout(DEV_SHUTDOWN_TIMEOUT);
    outcome
}

async fn dev(options: &Options) -> Result<()> {
    let console = Console::new();
    let mut interrupted = Box::pin(controller::stop_signal()?);
    let (cluster, coder) = tokio::select! {
        started = start(options, &console) => started?,
        _ = &mut interrupted => { console.line("interrupted"); return Ok(()) }
    };
    let outcome = tokio::select! {
        outcome = serve(&cluster, coder.as_deref(), options, &console) => outcome,
        _ = &mut interrupted => Ok(()),
    };
    console.line("stopping the cluster");
    cluster.stop().await;
    if outcome.is_ok() {
        console.line("done: nothing is left behind");
    }
    outcome
}

/// Builds the programs that are not cached, and starts the cluster. The path is that of the real coderd, with
/// `--with-coderd`.
async fn start(options: &Options, console: &Console) -> Result<(Cluster, Option<PathBuf>)> {
    let binaries = Binaries::build(&mut |progress| console.line(&progress.to_string())).await?;
    let coder = if options.with_coderd { Some(real::program(console).await?) } else { None };
    let progress = console.clone();
    let cluster = Cluster::builder()
        .binaries(binaries)
        .crds(coder_k8s_api::crds())
        .progress(move |line| progress.line(line))
        .start()
        .await?;
    Ok((cluster, coder))
}

async fn serve(cluster: &Cluster, coder: Option<&Path>, options: &Options, console: &Console) -> Result<()> {
    match coder {
        None => {
            let _node = node(cluster).await?;
            let client = greet(cluster, console);
            let coderd = samples::Coderd::start(console).await?;
            let work = async {
                samples::namespaces(&client).await?;
                coderd.fill_secrets(&client).await?;
                samples::apply(&client, console).await?;
                until(options, console, "every sample is settled", samples::settled(&client)).await
            };
            Box::pin(with_operator(cluster, &client, options, coderd.resolver(), work, console)).await
        }
        Some(coder) => {
            // Dropped last: coderd must not lose its database before it stops.
            let postgres = real::postgres(console).await?;
            let database = postgres.database().await.context("cannot create a database")?;
            let node = node(cluster).await?;
            let client = greet(cluster, console);
            let real = real::RealCoderd::start(&node, coder, &client, console)?;
            let work = async {
                real.apply(&database.url()).await?;
                tokio::select! {
                    outcome = until(options, console, real::READY, real.ready()) => outcome,
                    never = real.follow() => match never {},
                }
            };
            let outcome =
                Box::pin(with_operator(cluster, &client, options, real.resolver(), work, console)).await;
            if outcome.is_err() {
                real::show_logs(&node);
            }
            outcome
        }
    }
}

async fn node(cluster: &Cluster) -> Result<Node> {
    cluster.node("dev").await.context("cannot start the node")
}

/// Prints how to inspect the cluster.
fn greet(cluster: &Cluster, console: &Console) -> Client {
    console.line("the cluster is up; to inspect it, run in another terminal:");
    Console::plain(&format!("    export KUBECONFIG={}", cluster.kubeconfig_path().display()));
    if let Ok(kubectl) = cluster.binaries().kubectl() {
        Console::plain(&format!("    {} get coder --all-namespaces", kubectl.display()));
    }
    cluster.client()
}

/// With `--until-ready` waits for `ready` and prints `milestone`. Without it never returns.
async fn until(
    options: &Options,
    console: &Console,
    milestone: &str,
    ready: impl Future<Output = Result<()>>,
) -> Result<()> {
    if !options.until_ready {
        console.line("watching; Ctrl-C ends it");
        return std::future::pending().await;
    }
    match tokio::time::timeout(options.timeout, ready).await {
        Ok(outcome) => outcome?,
        Err(_) => bail!("timed out after {:?} waiting for: {milestone}", options.timeout),
    }
    console.line(milestone);
    Ok(())
}

/// Runs the operator, prints every change, and returns when `work` ends.
async fn with_operator(
    cluster: &Cluster,
    client: &Client,
    options: &Options,
    resolver: Arc<dyn Resolve>,
    work: impl Future<Output = Result<()>>,
    console: &Console,
) -> Result<()> {
    let watching = watch::everything(client, console);
    tokio::pin!(watching);
    let stop = CancellationToken::new();
    let operator = run_operator(cluster, client, &options.log_level, resolver, stop.clone(), console);
    tokio::pin!(operator);
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = &mut watching => bail!("the watch of the cluster stopped unexpectedly"),
        outcome = &mut operator => return outcome.and_then(|()| bail!("the operator stopped unexpectedly")),
    };
    stop.cancel();
    operator.await?;
    outcome
}

/// Runs the operator in this process until `stop`, with exactly the permissions of its manifests.
async fn run_operator(
    cluster: &Cluster,
    client: &Client,
    log_level: &str,
    resolver: Arc<dyn Resolve>,
    stop: CancellationToken,
    console: &Console,
) -> Result<()> {
    #[derive(clap::Parser)]
    struct Defaults {
        #[command(flatten)]
        options: controller::Options,
    }
    let install = Install::default();
    for object in manifests::objects(&install)?.into_iter().filter(|object| object["kind"] != "Deployment") {
        apply(client, object).await.context("cannot install the RBAC of the operator")?;
    }
    let kubeconfig = cluster.kubeconfig_for_account(&install.namespace, "coder-k8s").await?;
    let logs = logs::init(logs::Format::Human, log_level)?;
    let mut options = Defaults::try_parse_from(["dev"])?.options;
    options.kubeconfig = Some(kubeconfig);
    options.allowed_address_ranges = vec!["127.0.0.0/8".parse()?];
    options.leader_elect_namespace = Some(install.namespace);
    for address in [&mut options.health_addr, &mut options.metrics_addr, &mut options.admin_addr] {
        *address = "127.0.0.1:0".parse()?;
    }
    console.line("starting the operator with the permissions of its manifests");
    controller::control(options, Some(logs), Some(resolver), stop).await
}

/// Applies an object of any kind, as a person would, not as the operator does.
async fn apply(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let (name, params) = (object.name_any(), PatchParams::apply("coder-k8s-dev").force());
    let applied = api(client, &object)?.patch(&name, &params, &Patch::Apply(&object)).await;
    applied.with_context(|| format!("cannot apply {} {name}", kind(&object)))?;
    Ok(())
}

async fn apply_namespace(client: &Client, name: &str) -> Result<()> {
    apply(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await
}

/// Applies a Secret in the namespace of the samples.
async fn apply_secret(client: &Client, name: &str, key: &str, value: &str) -> Result<()> {
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    let data = json!({key: value});
    apply(client, json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}))
        .await
}

/// The API of an object's kind, in its namespace if it has one.
fn api(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.as_ref().context("an object without a kind")?;
    let resource = ApiResource::from_gvk(&types.try_into()?);
    Ok(match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("object", |types| types.kind.as_str())
}

/// Prints lines to standard output, with the seconds since the start.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    start: Arc<Instant>,
}

impl Console {
    fn new() -> Self {
        Self { start: Arc::new(Instant::now()) }
    }

    /// Prints a line with the time before it.
    pub(crate) fn line(&self, text: &str) {
        Self::plain(&format!("{:>6.1}s  {text}", self.start.elapsed().as_secs_f32()));
    }

    /// Prints a line without the time. A closed pipe is ignored.
    pub(crate) fn plain(text: &str) {
        let _ = print(&format!("{text}\n"));
    }
}
