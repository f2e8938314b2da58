//! The client for the API server. Every call passes one layer, which
//!
//! * classifies it by verb and resource, never by object,
//! * refuses a write while the [`Fence`] is closed, and abandons a write in flight when the fence closes,
//! * limits the time until the end of the body, or until the headers for a watch,
//! * counts it, and logs one line at debug level.
//!
//! It retries nothing: only the caller knows whether a call may be repeated.

mod call;
mod faults;
mod guard;
mod response;

use std::{future::Future, sync::Arc, time::Duration};

use kube::{Client, Config, client::ClientBuilder};

use crate::{
    fence::Fence,
    intervals::{API_CALL_DEADLINE, CONNECT_TIMEOUT},
    metrics::Metrics,
};

pub use call::{Call, Verb};
pub use faults::{EXIT_CODE, Fault, Faults};
pub use guard::{Guard, GuardService};
pub use response::GuardedBody;

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
    /// Makes calls fail in tests; `None` in production.
    pub faults: Option<Arc<dyn Faults>>,
}

impl ClientSettings {
    /// Settings with [`API_CALL_DEADLINE`], [`USER_AGENT`] and no fence.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let (deadline, user_agent) = (API_CALL_DEADLINE, USER_AGENT.to_owned());
        Self { deadline, user_agent, fence: None, metrics, faults: None }
    }
}

/// Why a call ended without a complete response of the API server.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
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

/// Builds a client whose every call passes the layer of this module. Retries of kube are turned off.
pub fn build(mut config: Config, settings: ClientSettings) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.default_retry = false;
    let guard = Guard::new(settings)?;
    Ok(ClientBuilder::try_from(config)?.with_layer(&guard).build())
}

/// Whether a write was refused or abandoned because this process does not lead.
pub fn is_not_leading(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::NotLeading | Interrupted::LostLeading))
}

/// Whether a call reached its deadline.
pub fn is_timeout(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::Timeout(_)))
}

/// Limits an operation of several calls to one deadline. Fails with the same error as a single call does.
pub async fn within<T>(deadline: Duration, calls: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    tokio::time::timeout(deadline, calls)
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(Interrupted::Timeout(deadline).into())))
}

/// Describes an error in one line, safe to log and to put into a status.
///
/// A Status of the API server is described by its message alone. For a response that cannot be decoded only the
/// position is named, because a decoding error quotes the offending value, which may be secret.
pub fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut chain: Vec<&(dyn std::error::Error + 'static)> = vec![error];
    while let Some(source) = chain.last().and_then(|error| error.source()) {
        chain.push(source);
    }
    for link in &chain {
        match link.downcast_ref() {
            Some(kube::Error::Api(status)) => return status.message.clone(),
            Some(kube::Error::SerdeError(cause)) => {
                let (line, column) = (cause.line(), cause.column());
                return format!(
                    "the response of the API server cannot be decoded (line {line}, column {column})"
                );
            }
            _ => {}
        }
        if link.downcast_ref::<serde_json::Error>().is_some() {
            return "the response of the API server cannot be decoded".to_owned();
        }
    }
    let mut text = String::new();
    // `kube::Error::Service` only wraps its cause.
    let is_wrapping = |link: &&&(dyn std::error::Error + 'static)| {
        matches!(link.downcast_ref(), Some(kube::Error::Service(_)))
    };
    for link in chain.iter().filter(|link| !is_wrapping(link)).map(ToString::to_string) {
        // Many errors already contain the text of their cause.
        if !text.contains(&link) {
            text = if text.is_empty() { link } else { format!("{text}: {link}") };
        }
    }
    text
}

fn interrupted(error: &kube::Error) -> Option<&Interrupted> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = match error {
        kube::Error::Service(inner) => Some(inner.as_ref()),
        kube::Error::ReadEvents(inner) => Some(inner),
        _ => None,
    };
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

#[cfg(test)]
mod tests;
