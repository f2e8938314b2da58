//! `coder-k8s dev`: a local cluster, the operator, the samples, and a line for everything that happens.
//!
//! The cluster is the testbed's: a real API server on loopback whose pods are played by a node that starts
//! no containers. It is gone when the command ends, however it ends.

mod coderd;
mod operator;
mod samples;
mod watch;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use coder_k8s_testbed::{Binaries, Cluster};
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
    let cluster = tokio::select! {
        cluster = start(&say) => cluster?,
        () = &mut interrupted => { say.line("interrupted"); return Ok(()) }
    };
    let outcome = tokio::select! {
        outcome = serve(&cluster, options, &say) => outcome,
        () = &mut interrupted => Ok(()),
    };
    say.line("stopping the cluster");
    cluster.stop().await;
    if outcome.is_ok() {
        say.line("done: nothing is left behind");
    }
    outcome
}

async fn start(say: &Teller) -> Result<Cluster> {
    let binaries = Binaries::build(&mut |progress| say.line(&progress.to_string())).await?;
    let tell = say.clone();
    Ok(Cluster::builder()
        .binaries(binaries)
        .crds(coder_k8s_api::crds())
        .progress(move |line| tell.line(line))
        .start()
        .await?)
}

async fn serve(cluster: &Cluster, options: &Options, say: &Teller) -> Result<()> {
    let _node = cluster.node("dev").await.context("cannot start the node")?;
    let client = cluster.client();
    say.line("the cluster is up; in another terminal:");
    Teller::plain(&format!("    export KUBECONFIG={}", cluster.kubeconfig_path().display()));
    if let Ok(kubectl) = cluster.binaries().kubectl() {
        Teller::plain(&format!("    {} get coder --all-namespaces", kubectl.display()));
    }
    let watching = watch::everything(&client, say);
    tokio::pin!(watching);
    let stop = CancellationToken::new();
    let coderd = coderd::Coderd::start(say).await?;
    let operator = operator::run(cluster, &client, &options.log_level, coderd.resolver(), stop.clone(), say);
    tokio::pin!(operator);
    let settled = async {
        samples::namespaces(&client).await?;
        coderd.fill_secrets(&client).await?;
        samples::apply(&client, say).await?;
        if options.until_ready {
            match tokio::time::timeout(options.timeout, samples::settled(&client)).await {
                Ok(outcome) => outcome?,
                Err(_) => bail!("the samples did not settle within {:?}", options.timeout),
            }
            say.line("every sample is settled");
        } else {
            say.line("watching; Ctrl-C ends it");
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = settled => outcome,
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
