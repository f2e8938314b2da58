//! The machinery under the controllers. It knows Kubernetes and our conventions of writing, and nothing
//! about Coder.
//!
//! Every call to the API server passes [`client`], where it is counted, given a deadline and, for a write,
//! held against the lease. Every write of a child passes the [`apply`].

pub mod address;
pub mod apply;
pub mod backoff;
pub mod cache;
pub mod client;
pub mod crds;
pub mod events;
pub mod failure;
pub mod fence;
pub mod health;
pub mod index;
pub mod key;
pub mod lease;
pub mod logs;
pub mod metadata_watch;
pub mod metrics;
pub mod object_watch;
pub mod queue;
pub mod secret;
pub mod status;
