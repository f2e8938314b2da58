//! `coder-k8s dev`: a local cluster, the operator, the samples, and a line for everything that happens.
//!
//! The cluster is the testbed's: a real API server on loopback whose pods are played by a node that starts
//! no containers. With `--with-coderd` the node runs the real coderd for a control plane's Deployment, on a real
//! Postgres. Everything is gone when the command ends, however it ends.

mod coderd;
mod operator;
mod real;
mod samples;
mod watch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use coder_k8s_coderd::Resolve;
use coder_k8s_testbed::{Binaries, Cluster, Node};
use kube::Client;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{controller::options::duration, print::print};

/// What `dev` is asked to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// End as soon as every sample is settled, with exit code 0, instead of waiting for Ctrl-C
    #[arg(long, env = "CODER_K8S_DEV_UNTIL_READY")]
    until_ready: bool,

    /// Run the real coderd, unlicensed, with a real Postgres, for one control plane, instead of the samples with a
    /// simulated one. Builds coderd once, which takes minutes
    #[arg(long, env = "CODER_K8S_DEV_WITH_CODERD")]
    with_coderd: bool,

    /// With --until-ready: how long that may take
    #[arg(long, default_value = "2m", value_parser = duration, env = "CODER_K8S_DEV_TIMEOUT", value_name = "TIME")]
    timeout: Duration,

    /// What the operator logs: error, warn, info, debug, trace
    #[arg(long, default_value = "warn", env = "CODER_K8S_LOG_LEVEL")]
    log_level: String,
}

/// Runs until Ctrl-C, or until the samples are settled.
pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(dev(options));
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome
}

async fn dev(options: &Options) -> Result<()> {
    let say = Teller::new();
    let mut interrupted = Box::pin(interrupt()?);
    let (cluster, coder) = tokio::select! {
        started = start(options, &say) => started?,
        () = &mut interrupted => { say.line("interrupted"); return Ok(()) }
    };
    let outcome = tokio::select! {
        outcome = serve(&cluster, coder.as_deref(), options, &say) => outcome,
        () = &mut interrupted => Ok(()),
    };
    say.line("stopping the cluster");
    cluster.stop().await;
    if outcome.is_ok() {
        say.line("done: nothing is left behind");
    }
    outcome
}

/// Gets all programs and starts the cluster. Gives the path of the real coderd, if it is wanted.
async fn start(options: &Options, say: &Teller) -> Result<(Cluster, Option<PathBuf>)> {
    let binaries = Binaries::build(&mut |progress| say.line(&progress.to_string())).await?;
    let coder = if options.with_coderd { Some(real::program(say).await?) } else { None };
    let set_conditions = say.clone();
    let cluster = Cluster::builder()
        .binaries(binaries)
        .crds(coder_k8s_api::crds())
        .progress(move |line| set_conditions.line(line))
        .start()
        .await?;
    Ok((cluster, coder))
}

async fn serve(cluster: &Cluster, coder: Option<&Path>, options: &Options, say: &Teller) -> Result<()> {
    match coder {
        None => {
            let _node = node(cluster).await?;
            let client = greet(cluster, say);
            let coderd = coderd::Coderd::start(say).await?;
            let work = async {
                samples::namespaces(&client).await?;
                coderd.fill_secrets(&client).await?;
                samples::apply(&client, say).await?;
                until(options, say, "every sample is settled", samples::settled(&client)).await
            };
            Box::pin(beside_the_operator(cluster, &client, options, coderd.resolver(), work, say)).await
        }
        Some(coder) => {
            // The database is the last to go: coderd must not see it vanish.
            let postgres = real::postgres(say).await?;
            let database = postgres.database().await.context("cannot make a database")?;
            let node = node(cluster).await?;
            let client = greet(cluster, say);
            let real = real::Real::start(&node, coder, &client, say)?;
            let work = async {
                real.apply(&database.url()).await?;
                tokio::select! {
                    outcome = until(options, say, real::VERDICT, real.ready()) => outcome,
                    never = real.follow() => match never {},
                }
            };
            let outcome =
                Box::pin(beside_the_operator(cluster, &client, options, real.resolver(), work, say)).await;
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

/// Says how to look at the cluster.
fn greet(cluster: &Cluster, say: &Teller) -> Client {
    say.line("the cluster is up; in another terminal:");
    Teller::plain(&format!("    export KUBECONFIG={}", cluster.kubeconfig_path().display()));
    if let Ok(kubectl) = cluster.binaries().kubectl() {
        Teller::plain(&format!("    {} get coder --all-namespaces", kubectl.display()));
    }
    cluster.client()
}

/// With `--until-ready` waits for that and says so, and else goes on for ever.
async fn until(
    options: &Options,
    say: &Teller,
    verdict: &str,
    ready: impl Future<Output = Result<()>>,
) -> Result<()> {
    if !options.until_ready {
        say.line("watching; Ctrl-C ends it");
        return std::future::pending().await;
    }
    match tokio::time::timeout(options.timeout, ready).await {
        Ok(outcome) => outcome?,
        Err(_) => bail!("not within {:?}: {verdict}", options.timeout),
    }
    say.line(verdict);
    Ok(())
}

/// Runs the operator, tells what happens, and does some work until that ends.
async fn beside_the_operator(
    cluster: &Cluster,
    client: &Client,
    options: &Options,
    resolver: Arc<dyn Resolve>,
    work: impl Future<Output = Result<()>>,
    say: &Teller,
) -> Result<()> {
    let watching = watch::everything(client, say);
    tokio::pin!(watching);
    let stop = CancellationToken::new();
    let operator = operator::run(cluster, client, &options.log_level, resolver, stop.clone(), say);
    tokio::pin!(operator);
    let outcome = tokio::select! {
        outcome = work => outcome,
        () = &mut watching => bail!("the watch of the cluster ended"),
        outcome = &mut operator => return outcome.and_then(|()| bail!("the operator ended")),
    };
    stop.cancel();
    operator.await?;
    outcome
}

/// Waits for Ctrl-C or a request to end.
fn interrupt() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Tells a person what happens, with the seconds since the start.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    start: Arc<Instant>,
}

impl Teller {
    fn new() -> Self {
        Self { start: Arc::new(Instant::now()) }
    }

    /// A line with the time before it.
    pub(crate) fn line(&self, text: &str) {
        Self::plain(&format!("{:>6.1}s  {text}", self.start.elapsed().as_secs_f32()));
    }

    /// A line as it is. A reader that went away does not matter.
    pub(crate) fn plain(text: &str) {
        let _ = print(&format!("{text}\n"));
    }
}
