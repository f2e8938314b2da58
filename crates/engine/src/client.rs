//! The one way to the API server. Every call passes one layer, which
//!
//! * names it (verb and resource, never an object),
//! * refuses a write while the [`Fence`] is closed and abandons one in flight when it closes,
//! * gives everything but a stream a deadline that covers headers and body; a watch has one until its headers,
//! * counts it, and says one line at debug.
//!
//! It retries nothing: that is for whoever knows what the call was for.

mod body;
mod call;
mod faults;
mod guard;
mod patience;

use std::{future::Future, sync::Arc, time::Duration};

use kube::{Client, Config, client::ClientBuilder};

use crate::{fence::Fence, metrics::Metrics};

pub use body::GuardedBody;
pub use call::{Call, Verb};
pub use faults::{EXIT_CODE, Fault, Faults};
pub use guard::{Guard, GuardService};

/// The name this process goes by.
pub const USER_AGENT: &str = concat!("coder-k8s/", env!("CARGO_PKG_VERSION"));

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a client behaves.
#[derive(Clone)]
pub struct Settings {
    /// How long a call may take, body included.
    pub deadline: Duration,
    /// Sent with every call; usually [`USER_AGENT`].
    pub user_agent: String,
    /// Held against every write; `None` for the client of the lease itself.
    pub fence: Option<Fence>,
    /// Where calls are counted.
    pub metrics: Arc<Metrics>,
    /// What goes wrong on purpose.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Settings {
    /// Settings with a deadline of 30 s and no fence.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let (deadline, user_agent) = (Duration::from_secs(30), USER_AGENT.to_owned());
        Self { deadline, user_agent, fence: None, metrics, faults: None }
    }
}

/// Why a call ended without an answer of the API server.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// A write while this process does not lead. Nothing was sent.
    #[error("not sent: this process does not hold the lease")]
    NotLeading,
    /// The right to write ended while a write was under way. The server may have done it.
    #[error("abandoned: this process lost the lease while it waited for an answer")]
    LostLeading,
    /// No answer, or only a part of one. The server may have done it.
    #[error("no complete answer from the API server within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// A fault injected by a test.
    #[error("injected fault")]
    Injected,
}

/// A client whose every call passes our layer.
pub fn build(mut config: Config, settings: Settings) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.default_retry = false;
    let guard = Guard::new(settings)?;
    Ok(ClientBuilder::try_from(config)?.with_layer(&guard).build())
}

/// Whether a write was refused or abandoned because this process does not lead.
pub fn is_not_leading(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::NotLeading | Interrupted::LostLeading))
}

/// Whether the API server did not answer in time.
pub fn is_timeout(error: &kube::Error) -> bool {
    matches!(interrupted(error), Some(Interrupted::Timeout(_)))
}

/// Holds an operation of several calls to one deadline, with the error that a single call would give.
pub async fn within<T>(deadline: Duration, calls: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    tokio::time::timeout(deadline, calls)
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(Interrupted::Timeout(deadline).into())))
}

/// An error in one line. An answer of the API server stands for itself; of an answer that cannot be decoded only
/// the place is named, because a decoder quotes what it stumbles over.
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
                    "the answer of the API server cannot be decoded (line {line}, column {column})"
                );
            }
            _ => {}
        }
        if link.downcast_ref::<serde_json::Error>().is_some() {
            return "the answer of the API server cannot be decoded".to_owned();
        }
    }
    let mut text = String::new();
    // This one only says that there is a cause.
    let is_wrapping = |link: &&&(dyn std::error::Error + 'static)| {
        matches!(link.downcast_ref(), Some(kube::Error::Service(_)))
    };
    for link in chain.iter().filter(|link| !is_wrapping(link)).map(ToString::to_string) {
        // Many errors repeat their cause.
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
