//! `coder-k8s dev`: a local cluster with the operator and the samples, shown live on a terminal and in lines elsewhere.
//!
//! The cluster is the testbed's: a real API server on loopback, and a node that plays pods and starts no containers.
//! coderd, its daemons and its proxies are simulated, or with a flag the real programs, as processes that the operator's own Deployments
//! start. Nothing is left when the command ends, however it ends.

mod console;
mod folder;
mod given;
mod real;
mod simulation;
mod story;
mod styled;
mod terminal;
mod view;
mod watch;
mod world;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use coder_k8s_coderd::Resolve;
use coder_k8s_engine::logs;
use coder_k8s_testbed::{Binaries, Cluster};
use kube::Client;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    controller::{self, options::duration},
    intervals::{DEV_CLUSTER_TIMEOUT, DEV_DAEMONS_INTERVAL, DEV_SHUTDOWN_TIMEOUT, DEV_VERIFY_INTERVAL},
    manifests::{self, Install},
};
use console::Console;
use folder::Folder;
use given::Manifest;
use simulation::Coderds;
use story::Login;
use styled::{Line, Style};
use world::{Id, Simulated, World};

/// The namespace of the samples, and of kubectl in another terminal.
const NAMESPACE: &str = "coder";

/// Flags of `dev`. The doc comments are the text of `--help`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Options {
    /// Stop as soon as everything is Ready, with exit code 0. Otherwise fail with what is missing
    #[arg(long, env = "CODER_K8S_DEV_UNTIL_READY")]
    until_ready: bool,

    /// More manifests to apply: a file, or a folder with files. Can be given several times
    #[arg(short, long, value_name = "PATH")]
    filename: Vec<PathBuf>,

    /// Run the real daemons and proxies, which connect to the simulated coderd. The first run builds them, which takes
    /// minutes
    #[arg(long, env = "CODER_K8S_DEV_WITH_DAEMONS", conflicts_with = "with_coderd")]
    with_daemons: bool,

    /// Run one control plane with the real coderd, unlicensed, and a real Postgres, instead of the samples with a
    /// simulated coderd. The first run builds coderd, which takes minutes
    #[arg(long, env = "CODER_K8S_DEV_WITH_CODERD")]
    with_coderd: bool,

    /// Print a line for every change instead of the live view, as it is where there is no terminal
    #[arg(long, env = "CODER_K8S_DEV_PLAIN")]
    plain: bool,

    /// Deadline of --until-ready
    #[arg(long, default_value = "2m", value_parser = duration, env = "CODER_K8S_DEV_TIMEOUT", value_name = "TIME")]
    timeout: Duration,

    /// Log level of the operator: error, warn, info, debug, trace
    #[arg(long, default_value = "warn", env = "CODER_K8S_LOG_LEVEL")]
    log_level: String,
}

/// What a newcomer is told about the cluster.
#[derive(Clone, Debug)]
struct Guide {
    title: String,
    /// The command that lets another terminal use the cluster.
    environment: String,
    /// What each command does, and the command.
    commands: Vec<(String, String)>,
    /// Lines that stay in view.
    pinned: Vec<String>,
}

type SharedGuide = Mutex<Guide>;

/// Runs until a signal, or with `--until-ready` until everything is Ready.
pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(dev(options));
    runtime.shutdown_timeout(DEV_SHUTDOWN_TIMEOUT);
    outcome
}

async fn dev(options: &Options) -> Result<()> {
    let given = given::read(&options.filename)?;
    if options.with_coderd {
        real::check_postgres()?;
    }
    let console = Console::new(options.plain);
    let mut interrupted = Box::pin(stop_signal()?);
    let (cluster, coder) = tokio::select! {
        started = start(options, &console) => started?,
        () = &mut interrupted => {
            console.end_progress();
            console.line("interrupted");
            return interruption(options);
        }
    };
    let world = Arc::new(World::new());
    let outcome = match Folder::create(&cluster, NAMESPACE) {
        Err(error) => Err(error),
        Ok(folder) => {
            let session = Session {
                cluster: &cluster,
                client: cluster.client(),
                guide: Mutex::new(guide(options, &cluster, &folder).await),
                folder,
                world,
                options,
                console: &console,
            };
            let outcome = tokio::select! {
                outcome = Box::pin(session.serve(coder.as_deref(), given)) => outcome,
                () = &mut interrupted => interruption(options),
            };
            session.conclude(outcome.is_ok());
            outcome
        }
    };
    console.line("stopping the cluster");
    cluster.stop().await;
    if outcome.is_ok() {
        console.line("done: nothing is left behind");
    }
    outcome
}

/// Ctrl-C is the usual end, except for a command that promised to wait for something.
fn interruption(options: &Options) -> Result<()> {
    if options.until_ready {
        bail!("interrupted before everything was Ready");
    }
    Ok(())
}

/// Catches the signals that end a program, those of a terminal included, so that the screen is restored.
fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    let stop = controller::stop_signal()?;
    Ok(async move {
        tokio::select! {
            _ = stop => {}
            _ = hangup.recv() => {}
            _ = quit.recv() => {}
        }
    })
}

/// Builds the programs that are not cached, and starts the cluster. The path is that of the real `coder`, if it is to
/// run.
async fn start(options: &Options, console: &Console) -> Result<(Cluster, Option<PathBuf>)> {
    let binaries = Binaries::build(&mut |progress| console.progress(&progress)).await;
    console.end_progress();
    let binaries = binaries?;
    let folder = binaries.kube_apiserver.parent().unwrap_or(Path::new("/"));
    console.line(&format!("the cluster's programs are in {}", folder.display()));
    let coder =
        if options.with_coderd || options.with_daemons { Some(real::program(console).await?) } else { None };
    let progress = console.clone();
    let cluster = Cluster::builder()
        .binaries(binaries)
        .crds(coder_k8s_api::crds())
        .ready_within(DEV_CLUSTER_TIMEOUT)
        .progress(move |line| progress.line(line))
        .start()
        .await?;
    Ok((cluster, coder))
}

async fn guide(options: &Options, cluster: &Cluster, folder: &Folder) -> Guide {
    let version = cluster.client().apiserver_version().await;
    let title =
        version.map_or_else(|_| String::new(), |version| format!("Kubernetes {}", version.git_version));
    if options.with_coderd { real::guide(title, folder) } else { story::guide(title, folder) }
}

/// A running cluster and what is shown of it.
struct Session<'a> {
    cluster: &'a Cluster,
    client: Client,
    folder: Folder,
    world: Arc<World>,
    guide: SharedGuide,
    options: &'a Options,
    console: &'a Console,
}

impl Session<'_> {
    /// Runs everything. Ends only with `--until-ready`, or with an error.
    async fn serve(&self, coder: Option<&Path>, given: Vec<Manifest>) -> Result<()> {
        let Self { client, console, options, .. } = self;
        let environment = self.guide.lock().environment.clone();
        console.line(&format!("the cluster is up; to use it in another terminal: {environment}"));
        let login = Login::random();
        let simulated = Simulated { coderd: !options.with_coderd, daemons: coder.is_none() };
        // Dropped after the node: coderd must not lose its database before it stops.
        let postgres = if options.with_coderd { Some(real::postgres(console).await?) } else { None };
        let database = match &postgres {
            Some(server) => Some(server.database().await.context("cannot create a database")?),
            None => None,
        };
        let node = Arc::new(self.cluster.node("dev").await.context("cannot start the node")?);
        if let Some(coder) = coder {
            real::run_images(&node, coder, options.with_coderd)?;
        }
        let outcome = if let Some(database) = &database {
            let real = real::RealCoderd::new(&node, client, &self.guide, console);
            let work = async {
                story::prepare(client, &database.url(), &login).await?;
                self.settle([real::manifests()?, given].concat()).await
            };
            let told = async { match real.follow(&login).await {} };
            Box::pin(self.with_operator(real.resolver(), simulated, work, told)).await
        } else {
            let coderds = Arc::new(Coderds::new(&node, console));
            let work = async {
                story::prepare(client, "postgres://coder@database.example/coder", &login).await?;
                story::license(client, &self.folder).await?;
                let mut samples = given::samples()?;
                if !simulated.daemons {
                    real::use_service(&mut samples);
                }
                self.settle([samples, given].concat()).await
            };
            let played = async {
                if simulated.daemons {
                    simulation::play(client, &coderds).await;
                }
                std::future::pending::<()>().await;
            };
            Box::pin(self.with_operator(coderds.clone(), simulated, work, played)).await
        };
        if outcome.is_err() {
            real::show_logs(&node, console);
        }
        outcome
    }

    /// Applies the manifests and waits until their objects are Ready. Returns with `--until-ready` alone.
    async fn settle(&self, manifests: Vec<Manifest>) -> Result<()> {
        let Self { world, console, options, .. } = self;
        let expected = given::apply(&self.client, manifests, console).await?;
        if options.until_ready {
            let timeout = options.timeout;
            if tokio::time::timeout(timeout, world.until_ready(&expected)).await.is_err() {
                bail!("not everything is Ready after {timeout:?}:{}", self.missing(&expected));
            }
            console.line("everything is Ready");
            return Ok(());
        }
        world.until_ready(&expected).await;
        console.line("everything is Ready");
        if !console.is_interactive() {
            self.summarize("TRY NEXT, in another terminal");
            console.line("watching; Ctrl-C ends it");
        }
        std::future::pending().await
    }

    fn missing(&self, expected: &[Id]) -> String {
        let missing = self.world.seen().missing(expected);
        missing.iter().fold(String::new(), |text, line| text + "\n  " + line)
    }

    /// Runs the operator and the view, and returns when `work` ends. `beside` never ends.
    async fn with_operator(
        &self,
        resolver: Arc<dyn Resolve>,
        simulated: Simulated,
        work: impl Future<Output = Result<()>>,
        beside: impl Future<Output = ()>,
    ) -> Result<()> {
        let Self { client, world, console, .. } = self;
        let stop = CancellationToken::new();
        let operator = self.run_operator(resolver, stop.clone());
        tokio::pin!(operator);
        let shown = async {
            if console.is_interactive() {
                return view::run(console, world, &self.guide).await;
            }
            std::future::pending().await
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            outcome = shown => outcome,
            () = watch::everything(client, world, simulated, console) => bail!("the watch of the cluster stopped unexpectedly"),
            () = beside => bail!("the simulation stopped unexpectedly"),
            outcome = &mut operator => return outcome.and_then(|()| bail!("the operator stopped unexpectedly")),
        };
        stop.cancel();
        operator.await?;
        outcome
    }

    /// Runs the operator in this process until `stop`, with exactly the permissions of its manifests.
    async fn run_operator(&self, resolver: Arc<dyn Resolve>, stop: CancellationToken) -> Result<()> {
        #[derive(clap::Parser)]
        struct Defaults {
            #[command(flatten)]
            options: controller::Options,
        }
        let Self { client, console, .. } = self;
        let install = Install::default();
        for object in
            manifests::objects(&install)?.into_iter().filter(|object| object["kind"] != "Deployment")
        {
            given::apply_value(client, object).await.context("cannot install the RBAC of the operator")?;
        }
        let kubeconfig = self.cluster.kubeconfig_for_account(&install.namespace, "coder-k8s").await?;
        let log = (*console).clone();
        let logs = logs::init_to(&self.options.log_level, console.has_colours(), move |line| log.log(line))?;
        let mut options = Defaults::try_parse_from(["dev"])?.options;
        options.kubeconfig = Some(kubeconfig);
        options.allowed_address_ranges = vec!["127.0.0.0/8".parse()?];
        // There is no other instance, and a laptop that slept must not lose a lease.
        options.leader_elect = false;
        options.verify_interval = DEV_VERIFY_INTERVAL;
        options.daemons_interval = DEV_DAEMONS_INTERVAL;
        for address in [&mut options.health_addr, &mut options.metrics_addr, &mut options.admin_addr] {
            *address = "127.0.0.1:0".parse()?;
        }
        console.line("starting the operator with the permissions of its manifests");
        controller::control(options, Some(logs), Some(resolver), stop).await
    }

    /// Says what exists when the view is gone.
    fn conclude(&self, well: bool) {
        if self.options.until_ready && well {
            self.summarize("TRY NEXT, while `coder-k8s dev` runs, in another terminal");
        } else if self.console.is_interactive() {
            self.console.lines(&view::table(&self.world.seen()));
        }
    }

    /// Prints the table and the commands.
    fn summarize(&self, heading: &str) {
        let guide = self.guide.lock().clone();
        let blank = || [Line::default()];
        let pinned = guide.pinned.iter().map(|line| Line::new(Style::Plain, line));
        let table = view::table(&self.world.seen());
        let commands = view::commands(&guide, heading);
        let all =
            blank().into_iter().chain(table).chain(pinned).chain(blank()).chain(commands).chain(blank());
        self.console.lines(&all.collect::<Vec<_>>());
    }
}
