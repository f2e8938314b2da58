//! The machinery under the controllers: everything that any operator needs, and nothing that only this one
//! needs. It knows Kubernetes and this workspace's conventions for writing objects. It knows nothing of what
//! the operator runs.
//!
//! Every call to the API server passes [`client`], which counts it, gives it a deadline and, for a write,
//! checks that this process still leads. Every write of a child object passes [`apply`]. All fixed delays and
//! timeouts are in [`intervals`].

pub mod address;
pub mod apply;
pub mod backoff;
pub mod cache;
pub mod client;
pub mod crds;
pub mod fence;
pub mod health;
pub mod intervals;
pub mod lease;
pub mod logs;
pub mod metadata_watch;
pub mod metrics;
pub mod object_watch;
pub mod outage;
pub mod parsed_object;
pub mod queue;
pub mod secret;
pub mod status;

/// Prefix of the names of the program's metrics and of the log targets of its crates.
pub(crate) const PREFIX: &str = "coder_k8s";
