//! The wire: connections, TLS, faults and the log around the routes.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
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

use super::{
    Shared, SimFault,
    auth::credential,
    database,
    log::{Entry, fingerprint},
    message::{Asked, Reply},
    routes,
};

/// What it takes to speak TLS.
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

/// A server that listens. Dropped, it breaks every connection.
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
    // They end with this task.
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

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, shared.clone()));
    // Upgrades are for the websockets of daemons and proxies.
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    let _ = connection.await;
}

/// An error breaks the connection.
async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let asked = Asked::new(&head, body);
    let place = shared.log.lock().came(entry(&asked));
    database::mirror(&shared).await;
    let fault = shared.rules.lock().take(&asked.method, &asked.path);
    let reply = match fault {
        None => Some(routes::answer(&mut shared.state.lock(), &asked)),
        Some(SimFault::Reset) => None,
        Some(SimFault::ResetAfter) => {
            routes::answer(&mut shared.state.lock(), &asked);
            None
        }
        Some(SimFault::Latency(latency)) => {
            tokio::time::sleep(latency).await;
            Some(routes::answer(&mut shared.state.lock(), &asked))
        }
        Some(SimFault::Answer { status, headers, body }) => Some(Reply::raw(status, headers, body)),
    };
    shared.log.lock().answered(place, reply.as_ref().map(|reply| reply.status));
    let reply = reply.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset))?;
    Ok(reply.into_response())
}

fn entry(asked: &Asked) -> Entry {
    Entry {
        at: Timestamp::now(),
        method: asked.method.clone(),
        path: asked.path.clone(),
        query: asked.raw_query.clone(),
        credential: credential(asked).map(fingerprint),
        bypass: asked.header("x-coder-bypass-ratelimit").is_some(),
        cookie: asked.header("cookie").is_some(),
        status: None,
    }
}
