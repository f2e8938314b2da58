//! The proxy between an operator and a server: the API server, or coderd.
//!
//! Requests that change something are noted in the [`Ledger`] and may meet a fault. Watches of the API server can be cut,
//! held, thinned out and replayed from an older version. Everything else passes.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _, channel::mpsc};
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::task::AbortOnDropHandle;

use crate::effect::{Fault, Ledger};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<BoxBody<Bytes, Failure>>;

/// Which kind of server is behind the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Kubernetes,
    Coderd,
}

/// What happens to watches.
#[derive(Clone, Debug, Default)]
struct Watching {
    /// Resources whose events wait.
    held: BTreeSet<String>,
    /// Of each object only the last event that waited is shown.
    thinned: bool,
    /// Watches that began before this number was reached end.
    cuts: usize,
}

/// A running proxy. Dropping it closes its connections.
pub struct Proxy {
    address: SocketAddr,
    watching: watch::Sender<Watching>,
    /// Versions from which the next watch of a resource begins, whatever it asks for.
    replays: Arc<Mutex<BTreeMap<String, String>>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Carrier {
    server: Server,
    upstream: Client,
    ledger: Arc<Ledger>,
    namespace: String,
    watching: watch::Sender<Watching>,
    replays: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Proxy {
    /// Starts one on loopback in front of the server of a configuration, on any port if that is 0. `namespace` is that of the case, which names of effects
    /// leave out.
    pub async fn start(
        server: Server,
        mut config: Config,
        port: u16,
        namespace: &str,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        config.default_retry = false;
        let upstream = Client::try_from(config).map_err(io::Error::other)?;
        // An address of its own, so that the operator's limits for one server do not span cases.
        let ip = Ipv4Addr::new(127, fastrand::u8(1..250), fastrand::u8(..), fastrand::u8(1..250));
        let listener = TcpListener::bind((ip, port)).await?;
        let address = listener.local_addr()?;
        let (watching, _) = watch::channel(Watching::default());
        let replays = Arc::<Mutex<BTreeMap<String, String>>>::default();
        let carrier = Carrier {
            server,
            upstream,
            ledger,
            namespace: namespace.to_owned(),
            watching: watching.clone(),
            replays: replays.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(serve(listener, carrier)));
        Ok(Self { address, watching, replays, _task: task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends every watch.
    pub fn cut_watches(&self) {
        self.watching.send_modify(|watching| watching.cuts += 1);
    }

    /// Holds the events of a resource until [`Self::release`].
    pub fn hold(&self, resource: &str) {
        self.watching.send_modify(|watching| {
            watching.held.insert(resource.to_owned());
        });
    }

    /// Shows the events that were held, or of each object only the last.
    pub fn release(&self, thinned: bool) {
        self.watching.send_modify(|watching| {
            watching.held.clear();
            watching.thinned = thinned;
        });
    }

    /// Ends the watches, and has that of a resource begin again from an older version.
    pub fn replay(&self, resource: &str, version: &str) {
        self.replays.lock().insert(resource.to_owned(), version.to_owned());
        self.cut_watches();
    }
}

async fn serve(listener: TcpListener, carrier: Carrier) {
    let mut open = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while open.try_join_next().is_some() {}
        let _ = stream.set_nodelay(true);
        let carrier = carrier.clone();
        open.spawn(async move {
            let service = service_fn(move |request| carrier.clone().carry(request));
            // Either side may disconnect at any time, and a fault is an error here.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Carrier {
    async fn carry(self, request: Request<Incoming>) -> Result<Answer, Failure> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        // The client of the upstream sets these itself.
        for name in [header::HOST, header::AUTHORIZATION, header::ACCEPT_ENCODING, header::CONNECTION] {
            parts.headers.remove(name);
        }
        // Events are told apart by lines, which protobuf has none of.
        let accepted = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        if accepted.is_some_and(|accepted| accepted.contains("protobuf")) {
            parts.headers.insert(header::ACCEPT, header::HeaderValue::from_static("application/json"));
        }
        let is_watch = self.server == Server::Kubernetes
            && parts.method == Method::GET
            && parts.uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        if is_watch {
            return self.watch(parts, body).await;
        }
        let Some(name) = self.effect(&parts.method, &parts.uri, &body) else {
            let response = self.forward(parts, body).await?;
            let (parts, body) = response.into_parts();
            return Ok(whole(parts, body.collect().await?.to_bytes()));
        };
        let (number, fault) = self.ledger.enter(name);
        match fault {
            Some(Fault::KilledBefore) => {
                self.ledger.kill();
                return Err("killed".into());
            }
            Some(Fault::Dropped) => return Err("dropped".into()),
            Some(Fault::Answered(code)) => return Ok(self.refusal(code)),
            Some(Fault::Delayed(time)) => tokio::time::sleep(time).await,
            Some(Fault::KilledAfter | Fault::ReplyLost) | None => {}
        }
        // On a task of its own: the operator may hang up, and the server has been asked all the same.
        let (carrier, ledger) = (self.clone(), self.ledger.clone());
        let forwarded = tokio::spawn(async move {
            let response = carrier.forward(parts, body).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            ledger.leave(number, parts.status.as_u16());
            Ok::<_, Failure>((parts, body))
        });
        let (parts, body) = forwarded.await??;
        match fault {
            Some(Fault::KilledAfter) => {
                self.ledger.kill();
                Err("killed".into())
            }
            Some(Fault::ReplyLost) => Err("lost".into()),
            _ => Ok(whole(parts, body)),
        }
    }

    async fn forward(
        &self,
        parts: http::request::Parts,
        body: Bytes,
    ) -> Result<Response<kube::client::Body>, Failure> {
        Ok(self.upstream.send(Request::from_parts(parts, kube::client::Body::from(body.to_vec()))).await?)
    }

    /// What a request does, in words that are the same in each run. None: it changes nothing, or nothing that counts: leases
    /// and events.
    fn effect(&self, method: &Method, uri: &Uri, body: &[u8]) -> Option<String> {
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return None,
        };
        match self.server {
            Server::Coderd => Some(format!("{verb} coderd {}", steady_path(uri.path()))),
            Server::Kubernetes => {
                let target = Target::of(uri.path());
                if ["leases", "events"].contains(&target.resource.as_str())
                    || target.resource.ends_with("reviews")
                    || uri.query().is_some_and(|query| query.contains("dryRun=All"))
                {
                    return None;
                }
                let named = || {
                    let body: Value = serde_json::from_slice(body).ok()?;
                    Some(body["metadata"]["name"].as_str()?.to_owned())
                };
                let name = target.name.clone().or_else(named).unwrap_or_default();
                let name = name.replace(&self.namespace, "NS");
                let place = if target.namespace == self.namespace { "" } else { " in another namespace" };
                Some(format!("{verb} {} {}{place}", target.resource, steady(&name)))
            }
        }
    }

    /// A response of the server that it did not give.
    fn refusal(&self, code: u16) -> Answer {
        let reason = match code {
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            _ => "InternalError",
        };
        let body = match self.server {
            Server::Kubernetes => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": "a fault of the sweep", "reason": reason, "code": code}),
            Server::Coderd => json!({"message": "A fault of the sweep.", "detail": reason}),
        };
        let mut response = Response::new(full(Bytes::from(body.to_string())));
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        if code == 429 {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }

    async fn watch(self, mut parts: http::request::Parts, body: Bytes) -> Result<Answer, Failure> {
        let resource = Target::of(parts.uri.path()).resource;
        if let Some(version) = self.replays.lock().remove(&resource) {
            let query = parts.uri.query().unwrap_or_default().split('&').map(|part| {
                if part.starts_with("resourceVersion=") {
                    format!("resourceVersion={version}")
                } else {
                    part.to_owned()
                }
            });
            let path = format!("{}?{}", parts.uri.path(), query.collect::<Vec<_>>().join("&"));
            parts.uri = path.parse()?;
        }
        let watching = self.watching.subscribe();
        let response = self.forward(parts, body).await?;
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.remove(header::TRANSFER_ENCODING);
        let (sender, receiver) = mpsc::channel(16);
        let events = body.into_data_stream().map(|chunk| chunk.map_err(Failure::from)).boxed();
        tokio::spawn(show(resource, events, watching, sender));
        let frames = receiver.map(|line| Ok::<_, Failure>(Frame::data(line)));
        Ok(Response::from_parts(parts, BoxBody::new(StreamBody::new(frames))))
    }
}

/// Passes the events of a watch on, as long as they are not held, until the watch ends or is cut.
async fn show(
    resource: String,
    mut body: futures::stream::BoxStream<'static, Result<Bytes, Failure>>,
    mut watching: watch::Receiver<Watching>,
    mut shown: mpsc::Sender<Bytes>,
) {
    let began = watching.borrow().cuts;
    let (mut partial, mut waiting) = (Vec::new(), Vec::<Bytes>::new());
    loop {
        tokio::select! {
            chunk = body.next() => {
                let Some(Ok(chunk)) = chunk else { return };
                partial.extend_from_slice(&chunk);
                while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                    waiting.push(partial.drain(..=end).collect());
                }
            }
            changed = watching.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        let now = watching.borrow().clone();
        if now.cuts != began {
            return;
        }
        if now.held.contains(&resource) {
            continue;
        }
        if now.thinned && waiting.len() > 1 {
            waiting = last_of_each(&waiting);
        }
        for line in waiting.drain(..) {
            if shown.send(line).await.is_err() {
                return;
            }
        }
    }
}

/// Of each object the last event.
fn last_of_each(lines: &[Bytes]) -> Vec<Bytes> {
    let id = |line: &Bytes| {
        let event: Value = serde_json::from_slice(line).unwrap_or_default();
        let metadata = &event["object"]["metadata"];
        format!("{} {}", metadata["namespace"], metadata["name"])
    };
    let mut last = BTreeMap::new();
    for (number, line) in lines.iter().enumerate() {
        last.insert(id(line), number);
    }
    let mut kept: Vec<_> = last.into_values().collect();
    kept.sort_unstable();
    kept.into_iter().filter_map(|number| lines.get(number).cloned()).collect()
}

fn full(body: Bytes) -> BoxBody<Bytes, Failure> {
    Full::new(body).map_err(|never: Infallible| match never {}).boxed()
}

fn whole(mut parts: http::response::Parts, body: Bytes) -> Answer {
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::TRANSFER_ENCODING);
    Response::from_parts(parts, full(body))
}

/// What a path of the API server names.
struct Target {
    namespace: String,
    /// With the subresource, such as `deployments/scale`.
    resource: String,
    name: Option<String>,
}

impl Target {
    fn of(path: &str) -> Self {
        let mut parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        parts.drain(..if parts.first() == Some(&"api") { 2 } else { 3 }.min(parts.len()));
        let is_namespaced = parts.first() == Some(&"namespaces") && parts.len() > 2;
        let namespace = parts.get(1).filter(|_| is_namespaced).map_or_else(String::new, ToString::to_string);
        parts.drain(..if is_namespaced { 2 } else { 0 });
        let resource = parts.first().copied().unwrap_or_default();
        let resource = match parts.get(2) {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => resource.to_owned(),
        };
        Self { namespace, resource, name: parts.get(1).map(|name| (*name).to_owned()) }
    }
}

/// A path of coderd without what differs in each run.
fn steady_path(path: &str) -> String {
    let parts: Vec<_> = path.split('/').map(steady).collect();
    parts.join("/").replace("/api/v2", "")
}

/// A name without ids and random ends.
fn steady(name: &str) -> String {
    let is_id = |part: &str| {
        part.len() >= 5
            && part.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            && (part.len() == 8 || part.bytes().any(|byte| byte.is_ascii_digit()))
    };
    // Ends that Kubernetes makes up have neither vowels nor what looks like one.
    let is_made_up = |part: &str| {
        let has_length = part.len() == 5 || (8..=10).contains(&part.len());
        has_length && part.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte))
    };
    if name.len() == 36 && is_id(name) || !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return "*".to_owned();
    }
    name.split('-')
        .map(|part| if is_id(part) || is_made_up(part) { "*" } else { part })
        .collect::<Vec<_>>()
        .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_object() {
        let target = Target::of("/apis/apps/v1/namespaces/ns/deployments/coder/scale");
        assert_eq!(
            (target.namespace.as_str(), target.resource.as_str(), target.name.as_deref()),
            ("ns", "deployments/scale", Some("coder"))
        );
        let target = Target::of("/api/v1/namespaces/ns/secrets");
        assert_eq!((target.resource.as_str(), target.name), ("secrets", None));
        assert_eq!(Target::of("/api/v1/namespaces/ns").resource, "namespaces");
    }

    #[test]
    fn a_name_is_the_same_in_each_run() {
        assert_eq!(steady("00000000-0000-4000-8000-000000000001"), "*");
        assert_eq!(steady("coder-0061568d-workspace-perms"), "coder-*-workspace-perms");
        assert_eq!(steady("pool-provisioner-key"), "pool-provisioner-key");
        assert_eq!(steady("provisioner-pool-5c5fdbb597-nkvwl"), "provisioner-pool-*-*");
        assert_eq!(
            steady_path("/api/v2/organizations/00000000-0000-4000-8000-000000000001/provisionerkeys"),
            "/organizations/*/provisionerkeys"
        );
    }
}
