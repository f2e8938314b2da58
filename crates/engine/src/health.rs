//! The HTTP endpoints of the process: liveness, readiness, metrics and log level.
//!
//! There are three routers for three listeners, because they have three audiences: [`probes`] for the kubelet,
//! [`metrics`] for Prometheus, [`admin`] for a person on the machine. Only the last one changes anything, and only the
//! log filter. [`bind`] and [`serve`] run a router on a listen address.
//!
//! Whoever reaches a listener may be hostile. A connection serves one request and ends at a deadline, headers and bodies are
//! bounded, and a connection beyond [`MAX_CONNECTIONS`] ends the oldest, which had at least [`SERVER_CONNECTION_LEAST`] for
//! its request: connections that do nothing never keep a probe from being answered.
//!
//! The process is ready when all named checks of [`Readiness`] pass. A check is either set by its owner, through a
//! [`ReadyCheck`], or computed for each report.

use std::{
    collections::VecDeque,
    fmt::Write,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    address::Address,
    intervals::{
        SERVER_ACCEPT_RETRY, SERVER_CONNECTION_DEADLINE, SERVER_CONNECTION_LEAST, SERVER_DRAIN_TIMEOUT,
    },
    logs,
    metrics::{CONTENT_TYPE as OPEN_METRICS, Metrics},
};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 256;
/// How many connections of one listener are open at a time.
pub const MAX_CONNECTIONS: usize = 64;
/// Largest head of a request in bytes: the first line and all headers.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Largest body of a request in bytes.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// Called before each scrape, to set gauges that are computed from caches.
pub type Refresh = Arc<dyn Fn() + Send + Sync>;

/// `/livez`, `/healthz` and `/readyz`.
///
/// Liveness only proves that the process responds: a restart does not bring an unreachable cluster back.
pub fn probes(readiness: Readiness) -> Router {
    let ready = move || {
        let readiness = readiness.clone();
        async move {
            let report = readiness.report();
            let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, report.text)
        }
    };
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .fallback(async |uri: Uri| not_found(&uri, "GET /livez, GET /healthz, GET /readyz"))
}

/// `/metrics`, in the OpenMetrics text format. One scrape at a time, so that none reads gauges while another refreshes them.
pub fn metrics(metrics: Arc<Metrics>, refresh: Option<Refresh>) -> Router {
    let turn = Arc::new(tokio::sync::Mutex::new(()));
    let scrape = move || {
        let (metrics, refresh, turn) = (metrics.clone(), refresh.clone(), turn.clone());
        async move {
            let _turn = turn.lock().await;
            if let Some(refresh) = refresh {
                refresh();
            }
            match metrics.encode() {
                Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            }
        }
    };
    Router::new().route("/metrics", get(scrape)).fallback(async |uri: Uri| not_found(&uri, "GET /metrics"))
}

/// `/log-level`: GET reads the log filter, PUT sets it to the request body.
pub fn admin(logs: logs::Handle) -> Router {
    let reading = logs.clone();
    let read = move || {
        let logs = reading.clone();
        async move { line(&logs.current()) }
    };
    let write = move |filter: String| {
        let logs = logs.clone();
        async move { set_filter(&logs, &filter) }
    };
    Router::new().route("/log-level", get(read).put(write)).fallback(async |uri: Uri| {
        not_found(&uri, "GET /log-level, PUT /log-level with the new filter as body")
    })
}

fn set_filter(logs: &logs::Handle, filter: &str) -> Response {
    let before = logs.current();
    match logs.set(filter) {
        Ok(()) => {
            tracing::info!(from = before, to = logs.current(), "changed the log filter");
            line(&logs.current()).into_response()
        }
        Err(error @ logs::Error::Filter { .. }) => {
            (StatusCode::BAD_REQUEST, line(&error.to_string())).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, line(&error.to_string())).into_response(),
    }
}

fn line(text: &str) -> String {
    format!("{text}\n")
}

fn not_found(uri: &Uri, served: &str) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("{} is not served here; this listener serves {served}\n", uri.path()))
}

/// The checks of the process. Clones share them. A process without checks is not ready: nothing has started yet.
#[derive(Clone)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<NamedCheck>>>,
    /// The number of changes of any check, for waiting for the next one.
    changes: watch::Sender<u64>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { checks: Arc::default(), changes: watch::Sender::new(0) }
    }
}

#[derive(Clone)]
struct NamedCheck {
    name: String,
    evaluate: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// One check of readiness, set by its owner. Clones share one state.
#[derive(Clone, Debug)]
pub struct ReadyCheck {
    /// Why the check fails; `None` if it passes.
    failing: Arc<Mutex<Option<String>>>,
    forbidden: Arc<AtomicBool>,
    changes: watch::Sender<u64>,
}

/// What [`Readiness::report`] found.
struct Report {
    ready: bool,
    text: String,
}

impl Readiness {
    /// Adds a check that fails with "not started" until its owner sets it.
    pub fn ready_check(&self, name: impl Into<String>) -> ReadyCheck {
        let check = ReadyCheck {
            failing: Arc::new(Mutex::new(Some("not started".into()))),
            forbidden: Arc::default(),
            changes: self.changes.clone(),
        };
        let state = check.failing.clone();
        self.check(name, move || state.lock().clone().map_or(Ok(()), Err));
        check
    }

    /// Adds a check that is computed for each report. `evaluate` must not block.
    pub fn check(
        &self,
        name: impl Into<String>,
        evaluate: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.checks.lock().push(NamedCheck { name: name.into(), evaluate: Arc::new(evaluate) });
    }

    /// Changes whenever a check is set. Subscribe first, then evaluate the checks, then wait for a change: so none is
    /// missed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether there are checks and all of them pass.
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    fn report(&self) -> Report {
        // Not locked during the evaluation, which may itself use the list.
        let checks = self.checks.lock().clone();
        let mut report = Report { ready: !checks.is_empty(), text: String::new() };
        for NamedCheck { name, evaluate } in checks {
            // invariant: writing to a String does not fail.
            let _ = match evaluate() {
                Ok(()) => writeln!(report.text, "[+] {name} ok"),
                Err(why) => {
                    report.ready = false;
                    writeln!(report.text, "[-] {name}: {why}")
                }
            };
        }
        report.text.push_str(if report.ready { "ok\n" } else { "not ready\n" });
        report
    }
}

impl ReadyCheck {
    /// The check passes.
    pub fn pass(&self) {
        self.forbidden.store(false, Ordering::SeqCst);
        *self.failing.lock() = None;
        self.changed();
    }

    /// The check fails.
    pub fn fail(&self, why: impl Into<String>) {
        *self.failing.lock() = Some(why.into());
        self.changed();
    }

    /// Sets why the check does not pass yet. A check that has passed is not changed: a watch that was synced once and is
    /// interrupted still has its cache. If it is `forbidden`, it cannot pass until a permission is granted, and the rest of
    /// the process need not wait for it.
    pub fn note(&self, why: &str, forbidden: bool) {
        if forbidden {
            self.forbidden.store(true, Ordering::SeqCst);
        }
        if let Some(known) = &mut *self.failing.lock() {
            why.clone_into(known);
        }
        self.changed();
    }

    /// Whether there is nothing to wait for: the check passed, or only a permission can make it pass.
    pub fn is_decided(&self) -> bool {
        self.passed() || self.forbidden.load(Ordering::SeqCst)
    }

    /// Whether the check passes now.
    pub fn passed(&self) -> bool {
        self.failing.lock().is_none()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// An open listener.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    /// The address with the actual port, also if port 0 was given.
    pub local_addr: SocketAddr,
}

/// The listener cannot be opened. The message is one whole sentence that names the flag which sets the address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}; choose another address with {flag}, or `off`", self.why())]
pub struct BindError {
    address: Address,
    flag: &'static str,
    /// Part of the message, and therefore not the source of the error, which would be printed once more.
    cause: io::Error,
}

impl BindError {
    /// Whether another process listens on the address.
    pub fn is_in_use(&self) -> bool {
        self.cause.kind() == io::ErrorKind::AddrInUse
    }

    fn why(&self) -> String {
        if self.is_in_use() { "another process listens there".to_owned() } else { self.cause.to_string() }
    }
}

/// Opens a listener on `address`; `None` if the address is off. `flag` is the flag that sets the address, for the error.
pub async fn bind(address: &Address, flag: &'static str) -> Result<Option<Bound>, BindError> {
    let listener = match address {
        Address::Off => return Ok(None),
        Address::Any(port) => all_interfaces(*port).await,
        Address::Ip(ip, port) => TcpListener::bind((*ip, *port)).await,
        Address::Name(name, port) => TcpListener::bind((name.as_str(), *port)).await,
    };
    listener
        .and_then(|listener| Ok(Some(Bound { local_addr: listener.local_addr()?, listener })))
        .map_err(|cause| BindError { address: address.clone(), flag, cause })
}

/// Serves until `stop`, then waits up to [`SERVER_DRAIN_TIMEOUT`] for responses in flight.
pub async fn serve(bound: Bound, router: Router, stop: CancellationToken) -> io::Result<()> {
    let router = router.layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    let (mut connections, mut open) = (JoinSet::new(), VecDeque::new());
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = bound.listener.accept() => accepted,
        };
        // A connection that ended before it was accepted, or no file descriptors: neither ends the server.
        let Ok((stream, _)) = accepted else {
            sleep(SERVER_ACCEPT_RETRY).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        make_room(&mut open).await;
        open.push_back((Instant::now(), connections.spawn(connection(stream, router.clone()))));
    }
    drop(bound);
    let drained = timeout(SERVER_DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} });
    // The connections that are left end with the set.
    let _ = drained.await;
    Ok(())
}

/// Ends the oldest of too many connections. Many can be accepted at once, and a probe among them must be answered first.
async fn make_room(open: &mut VecDeque<(Instant, AbortHandle)>) {
    open.retain(|(_, connection)| !connection.is_finished());
    while open.len() >= MAX_CONNECTIONS {
        let Some((accepted, oldest)) = open.pop_front() else { return };
        sleep_until(accepted + SERVER_CONNECTION_LEAST).await;
        oldest.abort();
    }
}

/// Serves one request. Whatever takes longer than the deadline ends without an answer: its head, its body, or the client that
/// reads the answer.
async fn connection(stream: TcpStream, router: Router) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).keep_alive(false).max_buf_size(MAX_HEAD_BYTES);
    let served = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // An error is a client that broke off.
    let _ = timeout(SERVER_CONNECTION_DEADLINE, served).await;
}

/// Listens on IPv6 and IPv4 with one socket, or on IPv4 alone where the machine has no IPv6.
async fn all_interfaces(port: u16) -> io::Result<TcpListener> {
    match dual_stack(port) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        other => other,
    }
}

fn dual_stack(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // The default depends on the sysctl net.ipv6.bindv6only.
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests;
