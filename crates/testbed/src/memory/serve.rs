//! HTTP: requests in, objects and watch events out.

use std::{convert::Infallible, fmt::Write as _, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::{
    kinds::Kind,
    refusal::Refusal,
    selector::Selector,
    store::{Asked, Place, Store},
    target::Target,
    write::{self, How},
};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves on a free port of loopback.
pub(super) async fn start(store: Arc<Store>) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    Ok((address, tokio::spawn(accept(listener, store))))
}

async fn accept(listener: TcpListener, store: Arc<Store>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let store = store.clone();
        connections.spawn(async move {
            let service = service_fn(|request| handle(request, store.clone()));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn handle(request: Request<Incoming>, store: Arc<Store>) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let accepted =
        parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let metadata_only = accepted.contains("as=PartialObjectMetadata");
    let sent =
        parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(target) = Target::parse(parts.uri.path()) else {
        return Ok(refused(&Refusal::not_found(parts.uri.path())));
    };
    let Some(kind) = store.kinds.get(&target.api_version, &target.plural) else {
        return Ok(refused(&Refusal::not_found(&target.plural)));
    };
    if parts.method == Method::GET && query.get("watch").is_some_and(|value| value == "true" || value == "1")
    {
        // As an API server whose feature gate `WatchList` is off.
        let streams = query.get("sendInitialEvents").is_some();
        let refusal = Refusal::unprocessable("sendInitialEvents: Forbidden: lists are not streamed");
        return Ok(if streams { refused(&refusal) } else { watch(store, &target, &query, metadata_only) });
    }
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let request = Sent { method: &parts.method, content: sent, query: &query, metadata_only };
    let answer = answer(&store, kind, &target, &request, &body);
    let code = answer.as_ref().map_or_else(|refusal| refusal.code, |(code, _)| *code);
    let slash = target.subresource.as_deref().map(|sub| format!("/{sub}")).unwrap_or_default();
    store.note(Asked {
        user: target.user,
        method: parts.method.to_string(),
        resource: format!("{}{slash}", target.plural),
        namespace: target.namespace.unwrap_or_default(),
        name: target.name.unwrap_or_default(),
        code,
    });
    Ok(match answer {
        Ok((code, object)) => json_response(code, &if metadata_only { partial(&object) } else { object }),
        Err(refusal) => refused(&refusal),
    })
}

/// Headers of a request that matter.
struct Sent<'a> {
    method: &'a Method,
    /// Content type, which tells the kinds of patches apart.
    content: &'a str,
    query: &'a Query,
    metadata_only: bool,
}

fn answer(
    store: &Store,
    kind: &Kind,
    target: &Target,
    request: &Sent<'_>,
    body: &Value,
) -> Result<(u16, Value), Refusal> {
    let Sent { method, content, query, metadata_only } = *request;
    let namespace = target.namespace.clone().unwrap_or_default();
    let place = |name: &str| Place::new(&target.api_version, &target.plural, &namespace, name);
    let status = target.subresource.as_deref() == Some("status");
    let Some(name) = target.name.as_deref() else {
        if method == Method::POST {
            let name = body.pointer("/metadata/name").and_then(Value::as_str);
            let name = name.ok_or_else(|| Refusal::bad("metadata.name is missing"))?;
            return Ok((201, (*write::create(store, kind, place(name), body.clone())?).clone()));
        }
        let (version, items) = store.list(&target.api_version, &target.plural, &selector(target, query));
        let shown = |object: &Arc<Value>| if metadata_only { partial(object) } else { (**object).clone() };
        let items: Vec<_> = items.iter().map(shown).collect();
        let list = json!({"apiVersion": kind.api_version, "kind": format!("{}List", kind.called),
            "metadata": {"resourceVersion": version.to_string()}, "items": items});
        return Ok((200, list));
    };
    let written = |how| {
        let (object, new) = write::change(store, kind, place(name), how, status, body)?;
        Ok((if new { 201 } else { 200 }, (*object).clone()))
    };
    match *method {
        Method::GET => Ok((200, (*store.get(&place(name))?).clone())),
        Method::PUT => written(How::Replace),
        Method::PATCH if content.starts_with("application/apply-patch") => {
            let manager = query.get("fieldManager").ok_or_else(|| Refusal::bad("fieldManager is missing"))?;
            written(How::Apply(manager))
        }
        Method::PATCH if content.starts_with("application/merge-patch") => written(How::Merge),
        Method::DELETE => {
            let wanted = |field: &str| {
                body.pointer("/preconditions").and_then(|all| all.get(field)).filter(|value| !value.is_null())
            };
            let fits = |object: &Value| {
                ["uid", "resourceVersion"].into_iter().all(|field| {
                    wanted(field)
                        .is_none_or(|value| object.pointer(&format!("/metadata/{field}")) == Some(value))
                })
            };
            let at_once = body.get("gracePeriodSeconds") == Some(&json!(0));
            Ok((200, (*store.delete(&place(name), fits, at_once)?).clone()))
        }
        _ => Err(Refusal::bad(format!("{method} with {content} is not understood"))),
    }
}

fn selector(target: &Target, query: &Query) -> Selector {
    Selector::new(target.namespace.clone(), query.get("labelSelector"), query.get("fieldSelector"))
}

/// Streams the events after the requested version.
fn watch(store: Arc<Store>, target: &Target, query: &Query, metadata_only: bool) -> Response<Body> {
    let selector = selector(target, query);
    let (api_version, plural) = (target.api_version.clone(), target.plural.clone());
    let from = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
    let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(290);
    let end = Instant::now() + Duration::from_secs(seconds);
    let signals = (store.changed.subscribe(), store.broken.subscribe(), store.withheld.subscribe());
    let lines =
        stream::unfold((Some(from), signals), move |(from, (mut changed, mut broken, mut withheld))| {
            let (store, selector) = (store.clone(), selector.clone());
            let (api_version, plural) = (api_version.clone(), plural.clone());
            async move {
                let mut from = from?;
                loop {
                    changed.mark_unchanged();
                    let is_withheld = *withheld.borrow_and_update();
                    let mut lines = String::new();
                    let changes = if is_withheld { Some(Vec::new()) } else { store.since(from) };
                    let Some(changes) = changes else {
                        let gone = expired(from);
                        return Some((Ok(Frame::data(gone)), (None, (changed, broken, withheld))));
                    };
                    for change in changes {
                        from = change.version;
                        let Some(type_) = change.shown(&api_version, &plural, &selector) else { continue };
                        let partial = metadata_only.then(|| partial(&change.object));
                        let object = partial.as_ref().unwrap_or(&change.object);
                        let _ = writeln!(lines, r#"{{"type":"{type_}","object":{object}}}"#);
                    }
                    if !lines.is_empty() {
                        let signals = (changed, broken, withheld);
                        return Some((Ok(Frame::data(Bytes::from(lines))), (Some(from), signals)));
                    }
                    tokio::select! {
                        more = changed.changed() => more.ok()?,
                        more = withheld.changed() => more.ok()?,
                        _ = broken.changed() => return None,
                        () = tokio::time::sleep_until(end) => return None,
                    }
                }
            }
        });
    response(200, StreamBody::new(lines).boxed_unsync())
}

/// The last event of a watch whose version is older than the history.
fn expired(from: u64) -> Bytes {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("too old resource version: {from}"), "reason": "Expired", "code": 410});
    Bytes::from(format!("{}\n", json!({"type": "ERROR", "object": status})))
}

/// Reduces an object, or the objects of a list, to metadata.
fn partial(object: &Value) -> Value {
    if let Some(items) = object.get("items").and_then(Value::as_array) {
        let items: Vec<_> = items.iter().map(partial).collect();
        return json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": object.get("metadata"), "items": items});
    }
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object.get("metadata")})
}

fn refused(refusal: &Refusal) -> Response<Body> {
    json_response(refusal.code, &refusal.body())
}

fn json_response(code: u16, body: &Value) -> Response<Body> {
    response(code, Full::new(Bytes::from(body.to_string())).boxed_unsync())
}

fn response(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// Parameters of a request.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Self {
        let decoded =
            |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pair = |part: &str| part.split_once('=').map(|(name, value)| (decoded(name), decoded(value)));
        Self(text.split('&').filter_map(pair).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}
