//! The client for the API server. Every call passes one layer, which
//!
//! * classifies it by verb and resource, never by object,
//! * refuses one that a name in it has made another than the caller meant,
//! * refuses a write while the [`Fence`] is closed, and abandons a write in flight when the fence closes,
//! * limits the time until the end of the body, or until the headers for a watch,
//! * counts it, logs one line at debug level, and tells the [`Outage`] whether the server answered.
//!
//! It retries nothing: only the caller knows whether a call may be repeated.

mod call;
mod guard;

use std::{error::Error, iter::successors, sync::Arc, time::Duration};

use coder_k8s_api::Reason;
use coder_k8s_core::outcome::{Blocker, Retry};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, Service, ServiceBuilder};

use crate::{
    fence::Fence,
    intervals::{API_CALL_DEADLINE, CONNECT_TIMEOUT, CONNECTION_IDLE_TIMEOUT, MAX_IDLE_CONNECTIONS},
    metrics::Metrics,
    outage::Outage,
};

pub use call::Call;
pub use guard::{Guard, GuardService, GuardedBody};

/// The default user agent: name and version of the program.
pub const USER_AGENT: &str = concat!("coder-k8s/", env!("CARGO_PKG_VERSION"));

/// Settings of a client.
#[derive(Clone)]
pub struct ClientSettings {
    /// The longest time of a call, response body included.
    pub deadline: Duration,
    /// Sent with every call; usually [`USER_AGENT`].
    pub user_agent: String,
    /// Must be open for every write. `None` for the client that renews the lease.
    pub fence: Option<Fence>,
    /// Counts the calls.
    pub metrics: Arc<Metrics>,
    /// Learns from each call whether the server answers. All clients of a process share one.
    pub outage: Outage,
    /// Makes calls fail in tests; `None` in production.
    pub faults: Option<Arc<dyn Faults>>,
}

impl ClientSettings {
    /// Settings with [`API_CALL_DEADLINE`], [`USER_AGENT`] and no fence.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let (deadline, user_agent) = (API_CALL_DEADLINE, USER_AGENT.to_owned());
        Self { deadline, user_agent, fence: None, metrics, outage: Outage::default(), faults: None }
    }
}

/// The exit code of [`Fault::Exit`].
pub const EXIT_CODE: i32 = 86;

/// The hook through which tests make calls to the API server fail. A released operator installs none.
pub trait Faults: Send + Sync {
    /// Asked before a call is sent. Unless the fault is a delay, the server never receives the call.
    fn before(&self, call: &Call) -> Option<Fault>;

    /// Asked after the server has answered: the call took effect, and the caller does not learn of it.
    fn after(&self, call: &Call) -> Option<Fault>;
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks.
    Error,
    /// The caller gets this HTTP status in place of the server's response.
    Status(u16),
    /// The call takes this much longer. Its deadline does not change.
    Delay(Duration),
    /// The process exits at once, with [`EXIT_CODE`].
    Exit,
}

/// Why a call ended without a complete response of the API server.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// A name in the request is not that of an object. Nothing was sent.
    #[error(
        "not sent: this is not a name that an object can have (lower-case letters, digits, '-' and '.', at most 253 characters)"
    )]
    InvalidName,
    /// The fence was closed: this process does not lead. Nothing was sent.
    #[error("not sent: this process does not hold the lease")]
    NotLeading,
    /// The fence closed while a write was in flight. The write may have taken effect.
    #[error("abandoned: this process lost the lease while it waited for the response")]
    LostLeading,
    /// The deadline passed before the response was complete. The call may have taken effect.
    #[error("no complete response from the API server within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// A fault injected by a test.
    #[error("injected fault")]
    Injected,
}

/// Builds a client whose every call passes the layer of this module.
///
/// The parts are those of kube's own client, without its retries and its tracing of calls, and with connections that are
/// closed soon after a burst. Root certificates of the system are loaded only if [`needs_system_roots`]. Without any of them
/// this fails only then.
pub fn build(mut config: Config, settings: ClientSettings) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        // The URL may contain a password.
        let why = "proxies are not supported: remove proxy-url from the kubeconfig and HTTPS_PROXY from the environment";
        return Err(kube::Error::Service(why.into()));
    }
    if !needs_system_roots(&config) {
        // Else kube loads those of the system, and fails without one, although it verifies nothing with them.
        config.root_cert.get_or_insert_default();
    }
    let service = ServiceBuilder::new()
        .layer(Guard::new(settings)?)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections(&config)?);
    Ok(Client::new(service, config.default_namespace))
}

/// The connections to the API server. A burst opens one for each reconcile at a time, and each keeps buffers.
fn connections(
    config: &Config,
) -> kube::Result<
    impl Service<
        http::Request<Body>,
        Response = http::Response<hyper::body::Incoming>,
        Error = legacy::Error,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static,
> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(CONNECTION_IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build(connector))
}

/// Whether the certificate of the API server is verified with the root certificates of the system: it has one, it is to be
/// verified, and no CA is given for it. In a pod, and with most kubeconfigs, the cluster's own CA is given.
pub fn needs_system_roots(config: &Config) -> bool {
    config.cluster_url.scheme_str() == Some("https")
        && config.root_cert.is_none()
        && !config.accept_invalid_certs
}

/// Whether a write was refused or abandoned because this process does not lead.
pub fn is_not_leading(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::NotLeading | Interrupted::LostLeading))
}

/// Checks a name from a spec or status before it becomes part of a request.
///
/// The layer of this module refuses what a bad name makes of a request. It does not see a name with a `#`, which ends the
/// path there, so that another object would be read.
pub fn object_name(name: &str) -> kube::Result<&str> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(is_allowed) && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        Ok(name)
    } else {
        Err(kube::Error::Service(Interrupted::InvalidName.into()))
    }
}

/// Whether a call was not sent because of a name in it.
fn is_invalid_name(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::InvalidName))
}

/// Whether a call reached its deadline.
pub fn is_timeout(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::Timeout(_)))
}

/// Whether a call got no answer of the API server: the connection failed or broke, the deadline passed, or a proxy in between
/// answered for it. [`Outage`] tells of these, so that who makes the call need not.
pub fn is_unanswered(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => is_gateway_error(status.code),
        kube::Error::Service(_) => matches!(interrupted(error), None | Some(Interrupted::Timeout(_))),
        kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}

/// Whether a failed call may pass by itself: it got no answer, or the API server asks to retry later.
pub(crate) fn may_pass(error: &kube::Error) -> bool {
    is_unanswered(error) || matches!(error, kube::Error::Api(status) if status.code == 429)
}

/// Whether a status code says that whoever answered did not reach the API server, or that it is not up.
fn is_gateway_error(code: u16) -> bool {
    matches!(code, 502..=504)
}

/// Describes an error in one line, safe to log and to put into a status.
///
/// A Status of the API server is described by its message alone. For a response that cannot be decoded only the
/// position is named, because a decoding error quotes the offending value, which may be secret.
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for link in chain(error) {
        match link.downcast_ref() {
            Some(kube::Error::Api(status)) => return status.message.clone(),
            Some(kube::Error::SerdeError(cause)) => {
                let (line, column) = (cause.line(), cause.column());
                return format!(
                    "the response of the API server cannot be decoded (line {line}, column {column})"
                );
            }
            // It only wraps its cause.
            Some(kube::Error::Service(_)) => continue,
            _ if link.is::<serde_json::Error>() => {
                return "the response of the API server cannot be decoded".to_owned();
            }
            _ => {}
        }
        let link = link.to_string();
        // Many errors already contain the text of their cause.
        if !text.contains(&link) {
            text = if text.is_empty() { link } else { format!("{text}: {link}") };
        }
    }
    text
}

/// Turns a failed call into a [`Blocker`]: a reason, a message and the time of the next attempt. This is the only place
/// that interprets errors of kube for a status. `action` completes "cannot ...", such as `write ServiceAccount coder`.
pub fn blocker(action: &str, error: &kube::Error) -> Blocker {
    let (reason, retry) = match error {
        kube::Error::Api(status) => {
            let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
            let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            let retry = retry_after.map_or(Retry::Backoff, Retry::After);
            match status.code {
                _ if is_schema_skew(&status.message) => (Reason::SchemaSkew, Retry::Backoff),
                401 | 403 => (Reason::Forbidden, Retry::Backoff),
                404 => (Reason::NotFound, Retry::Backoff),
                409 => (Reason::Outdated, Retry::Soon),
                // A uid that does not match: the object was deleted and created again.
                422 if status.message.contains("metadata.uid") => (Reason::Outdated, Retry::Soon),
                400 | 422 => (Reason::Invalid, Retry::Backoff),
                429 => (Reason::RateLimited, retry),
                _ => (Reason::ApiServerError, retry),
            }
        }
        error if is_not_leading(error) => (Reason::NotLeading, Retry::Backoff),
        error if is_timeout(error) => (Reason::Timeout, Retry::Backoff),
        error if is_invalid_name(error) => (Reason::Invalid, Retry::OnChange),
        _ => (Reason::ApiServerUnreachable, Retry::Backoff),
    };
    Blocker::new(reason, format!("cannot {action}: {}", describe(error))).with_retry(retry)
}

/// Server-side apply responds to a field that the server does not know with 500 and this text.
fn is_schema_skew(message: &str) -> bool {
    message.contains("field not declared in schema")
}

fn interrupted(error: &kube::Error) -> Option<&Interrupted> {
    chain(error).find_map(|link| link.downcast_ref())
}

/// The error and its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&link| link.source())
}

#[cfg(test)]
mod tests;
