//! Connections, TLS, faults and the log around the routes.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::service_fn,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

use super::{
    Shared, SimFault,
    auth::credential,
    database,
    log::{Entry, fingerprint},
    message::{Asked, Reply, Then},
    monitor, proxy_wire, routes, serve as daemon_wire,
    sessions::Session,
};

/// Configuration of HTTPS.
#[derive(Clone)]
pub(super) struct Tls(TlsAcceptor);

impl Tls {
    pub(super) fn new(certificate: &str, key: &str) -> io::Result<Self> {
        let certificates: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(io::Error::other)?;
        let config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(certificates.map_err(io::Error::other)?, key)
            .map_err(io::Error::other)?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

/// A listening server. Dropping it breaks every connection.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    pub(super) async fn start(
        address: SocketAddr,
        tls: Option<Tls>,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, task: tokio::spawn(accept(listener, tls, shared)) })
    }

    pub(super) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, tls: Option<Tls>, shared: Arc<Shared>) {
    // Owned by this task: dropping the set aborts every connection.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (tls, shared) = (tls.clone(), shared.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, shared).await,
                        Some(Tls(acceptor)) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                serve(stream, shared).await;
                            }
                        }
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// What a connection becomes after the HTTP upgrade.
type Line = Arc<Mutex<Option<BoxFuture<'static, ()>>>>;

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let line = Line::default();
    let service = {
        let line = line.clone();
        service_fn(move |request| answer(request, shared.clone(), line.clone()))
    };
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    let _ = connection.await;
    // Awaited in this task, so that it ends with the server.
    let line = line.lock().take();
    if let Some(line) = line {
        line.await;
    }
}

/// Answers a request. An error breaks the connection.
async fn answer(
    mut request: Request<Incoming>,
    shared: Arc<Shared>,
    line: Line,
) -> io::Result<Response<Full<Bytes>>> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let asked = Asked::new(&head, body);
    let place = shared.log.lock().came(entry(&asked));
    database::mirror(&shared).await;
    monitor::judge(&shared, &asked);
    monitor::remember(&shared);
    if asked.method == "GET" && asked.path.starts_with("/api/v2/workspaceproxies") {
        proxy_wire::check_due_proxies(&shared).await;
    }
    let fault = shared.rules.lock().take(&asked.method, &asked.path);
    let reply = match fault {
        None => Some(routed(&shared, &asked, upgrade)),
        Some(SimFault::Reset) => None,
        Some(SimFault::ResetAfter) => {
            routed(&shared, &asked, upgrade);
            None
        }
        Some(SimFault::Latency(latency)) => {
            tokio::time::sleep(latency).await;
            Some(routed(&shared, &asked, upgrade))
        }
        Some(SimFault::Answer { status, headers, body }) => Some((Reply::raw(status, headers, body), None)),
    };
    if let Some((reply, _)) = &reply {
        monitor::granted(&shared, &asked, reply.status);
    }
    shared.log.lock().answered(place, reply.as_ref().map(|(reply, _)| reply.status));
    let (reply, then) = reply.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset))?;
    *line.lock() = then;
    Ok(reply.into_response())
}

/// The answer of the routes, and what the connection becomes.
fn routed(
    shared: &Arc<Shared>,
    asked: &Asked,
    upgrade: OnUpgrade,
) -> (Reply, Option<BoxFuture<'static, ()>>) {
    let mut reply = {
        // At once, before another request changes what this one made.
        let mut state = shared.state.lock();
        let reply = routes::answer(&mut state, asked);
        monitor::remember_state(shared, &state);
        reply
    };
    let line: Option<BoxFuture<'static, ()>> = match reply.then.take().map(|then| *then) {
        None => None,
        Some(Then::CheckProxy(id)) => {
            let shared = shared.clone();
            tokio::spawn(async move { proxy_wire::check(&shared, &id).await });
            None
        }
        Some(Then::ServeDaemon(admitted)) => {
            // From here on the daemon is connected for as long as this is kept.
            let session = Session::new(shared.clone(), admitted);
            Some(Box::pin(async move {
                if let Some(socket) = websocket(upgrade).await {
                    daemon_wire::run(session, socket).await;
                }
            }))
        }
        Some(Then::Coordinate) => Some(Box::pin(async move {
            if let Some(socket) = websocket(upgrade).await {
                proxy_wire::coordinate(socket).await;
            }
        })),
    };
    (reply, line)
}

async fn websocket(upgrade: OnUpgrade) -> Option<WebSocketStream<TokioIo<Upgraded>>> {
    let stream = TokioIo::new(upgrade.await.ok()?);
    Some(WebSocketStream::from_raw_socket(stream, Role::Server, None).await)
}

fn entry(asked: &Asked) -> Entry {
    Entry {
        at: Timestamp::now(),
        method: asked.method.clone(),
        path: shown_path(asked),
        query: asked.raw_query.clone(),
        credential: credential(asked).map(fingerprint),
        bypass: asked.header("x-coder-bypass-ratelimit").is_some(),
        cookie: asked.header("cookie").is_some(),
        status: None,
    }
}

/// The path as sent, without a key in it: daemons ask for the details of their key by path.
fn shown_path(asked: &Asked) -> String {
    match asked.header("coder-provisioner-daemon-key") {
        Some(key) => asked.path.replace(key, &fingerprint(key)),
        None => asked.path.clone(),
    }
}
