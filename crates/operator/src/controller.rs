//! The controller process: starts clients, watches, servers and the election, runs the queues, and shuts down in order.
//!
//! Every instance watches and is ready; only the one that holds the lease reconciles. An instance that loses the lease
//! writes nothing from that moment on and exits with an error. On SIGTERM or SIGINT it finishes the running reconciles and
//! then releases the lease, so that a successor takes over at once. Nothing here knows what a reconcile does.

pub(crate) mod children;
mod cleanup;
mod consent_poll;
mod context;
mod dispatch;
mod gauges;
mod grant_sweep;
mod kinds;
pub(crate) mod options;
pub(crate) mod pods;
mod referenced;
pub(crate) mod secrets;
mod watches;
pub(crate) mod workspaces;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use coder_k8s_coderd::{
    AddressPolicy, Connector, Resolve,
    postgres::{self, Postgres},
};
use coder_k8s_engine::{
    address::Address,
    client::{self, ClientSettings},
    crds::Crds,
    fence::Fence,
    health::{self, Bound, Readiness},
    lease::{self, ElectionEnd, Heartbeat},
    logs,
    metrics::Metrics,
    outage::Outage,
};
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

pub(crate) use cleanup::CleanupAttempt;
pub(crate) use context::Context;
#[cfg(test)]
pub(crate) use gauges::exported_conditions;
pub(crate) use kinds::CoderResource;
use options::ADMIN_ADDR;
pub(crate) use options::Options;

use crate::{intervals::LEASE_RELEASE_TIMEOUT, metrics::CoderMetrics, version};
use context::ExternalClients;
use watches::{OPTIONAL_CRDS, Watches};

pub(crate) use watches::Scope;

/// How many objects a queue that calls coderd handles at a time. The number is large because each waits for its own server,
/// and one server that hangs must not delay the objects of others.
const CODERD_CONCURRENCY: usize = 512;

/// The command that installs or updates the CRDs of this release.
const INSTALL_CRDS: &str = "coder-k8s crds | kubectl apply --server-side -f -";

/// Runs the controller in this process until a signal ends it.
pub(crate) fn run(options: Options, idle_flags: &[&str]) -> Result<()> {
    let logs = logs::init(options.log_format, &options.log_level)?;
    for flag in idle_flags {
        tracing::warn!("{flag} has no effect in this release");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let (stop, signal) = (CancellationToken::new(), stop_signal()?);
        let stopping = async {
            // Outside of the macro, which evaluates its arguments only at a log level that shows them.
            let signal = signal.await;
            tracing::info!("received {signal}: stopping");
            stop.cancel();
            std::future::pending().await
        };
        tokio::select! {
            outcome = control(options, Some(logs), None, stop.clone()) => outcome,
            never = stopping => never,
        }
    });
    // Does not wait for a DNS lookup that hangs, which tokio runs on a thread of its own.
    runtime.shutdown_background();
    outcome
}

/// Catches SIGTERM and SIGINT from now on. The future ends with the name of the first that arrives.
pub(crate) fn stop_signal() -> Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Runs the controller until `stop`. `resolver` finds coderd where the DNS names of Services do not resolve, as outside a
/// cluster.
pub(crate) async fn control(
    options: Options,
    logs: Option<logs::Handle>,
    resolver: Option<Arc<dyn Resolve>>,
    stop: CancellationToken,
) -> Result<()> {
    let election = options.leader_elect.then(|| options.lease());
    if let Some(election) = &election {
        election.validate()?;
    }
    let (metrics, readiness, outage) = (Metrics::new(), Readiness::default(), Outage::default());
    let coder_metrics = CoderMetrics::new(&metrics);
    let fence = if election.is_some() { Fence::closed() } else { Fence::always_open() };
    let config = kube_config(&options).await?;
    let settings = |fence| ClientSettings {
        deadline: options.request_timeout,
        fence,
        outage: outage.clone(),
        ..ClientSettings::new(metrics.clone())
    };
    let fenced = ClientSettings { faults: injected_faults(), ..settings(Some(fence.clone())) };
    let addresses = AddressPolicy::new(options.allowed_address_ranges.clone(), api_servers(&config));
    let client = client::build(config.clone(), fenced).with_context(|| cannot_call(&config))?;
    // Outside the fence: the lease must be written before this process leads.
    let lease_client = client::build(config, settings(None))?;
    let instance =
        election.as_ref().map_or_else(|| "coder-k8s".to_owned(), |election| election.identity.clone());
    let ctx = Arc::new(Context::new(
        client.clone(),
        instance,
        external_clients(&options, coder_metrics.clone(), addresses, resolver),
        metrics.clone(),
        fence.clone(),
        outage.clone(),
        &options,
    ));

    let (mut tasks, serving) = (JoinSet::new(), CancellationToken::new());
    serve(&options, &ctx, coder_metrics, &readiness, logs, &serving, &mut tasks).await?;
    tracing::info!(commit = version::COMMIT, "coder-k8s {} starts", version::RELEASE);
    let (crds, crd_watch) = Crds::watch(
        client.clone(),
        coder_k8s_api::fields(),
        &OPTIONAL_CRDS,
        INSTALL_CRDS,
        &readiness,
        metrics,
        outage.clone(),
    );
    tasks.spawn(crd_watch);
    let watches = Watches { ctx: &ctx, readiness: &readiness, crds: &crds, tasks: &mut tasks };
    let synced = watches.start(&ctx.policy.scope);

    let release = CancellationToken::new();
    let (mut elected, mut leads) = elect(election, lease_client, fence, &readiness, outage, release.clone());
    let work = async {
        // Caches fill while another instance leads, so that a new leader starts with them.
        let may_reconcile = async {
            if leads.wait_for(|leads| *leads).await.is_err() {
                // The election ended without leadership: the outer select handles that.
                std::future::pending::<()>().await;
            }
            synced.wait(&readiness, &crds).await;
        };
        tokio::select! {
            () = may_reconcile => {}
            () = stop.cancelled() => return true,
        }
        ctx.metrics.leading(true);
        tracing::info!("leading: reconciling objects");
        let reconcile = |key| dispatch::reconcile(key, ctx.clone());
        let sync = |key| crate::controlplane::coderd_sync::run_due(key, ctx.clone());
        let poll = |key| crate::controlplane::daemon_poll::poll(key, ctx.clone());
        let (stop, timeout) = (|| stop.clone(), options.shutdown_timeout);
        let drained = tokio::join!(
            grant_sweep::run(&ctx, stop()),
            consent_poll::run(&ctx, stop()),
            ctx.queue.run(options.concurrency, stop(), timeout, reconcile),
            ctx.dependents.schedule.queue.run(CODERD_CONCURRENCY, stop(), timeout, reconcile),
            ctx.coderd_sync.schedule.queue.run(CODERD_CONCURRENCY, stop(), timeout, sync),
            ctx.daemon_poller.schedule.queue.run(CODERD_CONCURRENCY, stop(), timeout, poll),
        );
        drained == ((), (), true, true, true, true)
    };
    let drained = tokio::select! {
        drained = work => drained,
        Some(ended) = tasks.join_next() => {
            return Err(anyhow!("a watch or a server ended unexpectedly: {ended:?}; exiting, because the caches would become outdated"));
        }
        ended = &mut elected => {
            return match ended.context("the lease loop failed")? {
                Some(ElectionEnd::Lost(loss)) => Err(anyhow!("no longer leading: {loss}; exiting, so that this process writes nothing more")),
                Some(ElectionEnd::Released) | None => Ok(()),
            };
        }
    };
    if !drained {
        tracing::warn!("some reconciles still ran after --shutdown-timeout {:?}", options.shutdown_timeout);
    }
    release.cancel();
    let released = tokio::time::timeout(LEASE_RELEASE_TIMEOUT, elected).await;
    serving.cancel();
    tasks.abort_all();
    if let Ok(Ok(_)) = released {
        tracing::info!("stopped");
    } else {
        tracing::warn!("stopped without releasing the lease: a successor waits until it expires");
    }
    Ok(())
}

/// The clients of coderd and of its database. Each call is counted and has a deadline.
fn external_clients(
    options: &Options,
    metrics: Arc<CoderMetrics>,
    addresses: AddressPolicy,
    resolver: Option<Arc<dyn Resolve>>,
) -> ExternalClients {
    struct CallMetrics(Arc<CoderMetrics>);
    impl coder_k8s_coderd::Observer for CallMetrics {
        fn called(&self, call: &'static str, outcome: &str, elapsed: Duration) {
            self.0.coderd_call(call, outcome, elapsed);
        }
    }
    let observer: Option<Arc<dyn coder_k8s_coderd::Observer>> = Some(Arc::new(CallMetrics(metrics)));
    let (deadline, addresses) = (options.coderd_timeout, Arc::new(addresses));
    let settings =
        coder_k8s_coderd::Settings { deadline, addresses, observer, resolver, ..Default::default() };
    #[cfg(feature = "dev")]
    let settings = crate::faults::of_coderd(settings);
    let postgres = postgres::PostgresSettings {
        whole: options.database_timeout,
        connect: options.database_timeout / 2,
        statement: options.database_timeout / 2,
        addresses: settings.addresses.clone(),
        resolver: settings.resolver.clone(),
        observer: settings.observer.clone(),
        faults: settings.faults.clone(),
    };
    ExternalClients { connector: Connector::new(settings), postgres: Postgres::new(postgres) }
}

/// Why there can be no client for the API server, as far as its configuration tells.
fn cannot_call(config: &kube::Config) -> String {
    let url = &config.cluster_url;
    if client::needs_system_roots(config) {
        format!(
            "cannot call the API server {url}: name its CA in the kubeconfig (certificate-authority), or install a CA bundle \
             where the operator runs"
        )
    } else {
        format!("cannot call the API server {url}")
    }
}

/// The hosts and ports of the API server: the configured one, and the one that every pod is told of.
fn api_servers(config: &kube::Config) -> Vec<(String, u16)> {
    let url = &config.cluster_url;
    let default_port = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let configured = url.host().map(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host.to_owned(), url.port_u16().unwrap_or(default_port))
    });
    let variable = |name| std::env::var(name).ok();
    let in_cluster = variable("KUBERNETES_SERVICE_HOST")
        .zip(variable("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok()));
    configured.into_iter().chain(in_cluster).collect()
}

/// The faults that a test injects. A released binary has none.
fn injected_faults() -> Option<Arc<dyn client::Faults>> {
    #[cfg(feature = "dev")]
    return crate::faults::from_env();
    #[cfg(not(feature = "dev"))]
    None
}

/// Starts to compete for the lease. The receiver says whether this process leads: always without an election.
fn elect(
    election: Option<lease::LeaseSettings>,
    client: Client,
    fence: Fence,
    readiness: &Readiness,
    outage: Outage,
    release: CancellationToken,
) -> (JoinHandle<Option<ElectionEnd>>, watch::Receiver<bool>) {
    let (leading, leads) = watch::channel(election.is_none());
    let Some(election) = election else {
        let waiting = tokio::spawn(async move {
            release.cancelled().await;
            drop(leading);
            None
        });
        return (waiting, leads);
    };
    let (beat, limit) = (Heartbeat::default(), election.lease_duration);
    let checked = beat.clone();
    readiness.check("lease", move || {
        if checked.alive(limit) { Ok(()) } else { Err("the lease loop has stopped".to_owned()) }
    });
    let elected = tokio::spawn(async move {
        Some(lease::run(client, election, fence, leading, beat, outage, release).await)
    });
    (elected, leads)
}

/// The cluster of `--kubeconfig`, else of `KUBECONFIG`, else the one that the pod runs in, else that of `~/.kube/config`. A
/// file that is named and cannot be used is an error and not skipped.
async fn kube_config(options: &Options) -> Result<kube::Config> {
    if let Some(path) = &options.kubeconfig {
        let file = Kubeconfig::read_from(path)
            .with_context(|| format!("cannot read --kubeconfig {}", path.display()))?;
        return Ok(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?);
    }
    if std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty()) {
        let options = KubeConfigOptions::default();
        return kube::Config::from_kubeconfig(&options)
            .await
            .context("cannot use the file that KUBECONFIG names");
    }
    if let Ok(config) = kube::Config::incluster() {
        return Ok(config);
    }
    kube::Config::infer()
        .await
        .context("no cluster found: set --kubeconfig or KUBECONFIG, or run inside a cluster")
}

/// Starts the servers for probes, metrics and the log level, each at the address of its flag, unless that is off.
async fn serve(
    options: &Options,
    ctx: &Arc<Context>,
    coder_metrics: Arc<CoderMetrics>,
    readiness: &Readiness,
    logs: Option<logs::Handle>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let context = ctx.clone();
    let update_gauges = Arc::new(move || gauges::update(&context, &coder_metrics));
    let servers = [
        ("--health-addr", &options.health_addr, Some(health::probes(readiness.clone()))),
        (
            "--metrics-addr",
            &options.metrics_addr,
            Some(health::metrics(ctx.metrics.clone(), Some(update_gauges))),
        ),
        ("--admin-addr", &options.admin_addr, logs.map(health::admin)),
    ];
    for (flag, address, router) in servers {
        let Some(router) = router else { continue };
        if let Some(bound) = bind(address, flag).await? {
            tracing::info!(address = %bound.local_addr, "serving for {flag}");
            let serving = health::serve(bound, router, stop.clone());
            tasks.spawn(async move {
                if let Err(error) = serving.await {
                    tracing::error!("the server of {flag} failed: {error}");
                }
            });
        }
    }
    Ok(())
}

/// Opens a listener. Nobody depends on the port of the admin listener, so its default gives way to another process.
async fn bind(address: &Address, flag: &'static str) -> Result<Option<Bound>> {
    match health::bind(address, flag).await {
        Err(error) if error.is_in_use() && address.to_string() == ADMIN_ADDR => {
            tracing::info!("another process listens on {address}: {flag} takes a free port");
            Ok(health::bind(&address.with_free_port(), flag).await?)
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_is_known_by_host_and_port() {
        for (url, host, port) in [
            ("https://10.96.0.1:443", "10.96.0.1", 443),
            ("https://api.example.com/clusters/a", "api.example.com", 443),
            ("http://127.0.0.1", "127.0.0.1", 80),
            ("https://[fd00::1]:6443", "fd00::1", 6443),
        ] {
            let found = api_servers(&kube::Config::new(url.parse().unwrap()));
            assert_eq!(found.first(), Some(&(host.to_owned(), port)));
        }
    }
}
