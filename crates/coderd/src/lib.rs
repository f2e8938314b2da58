//! The HTTP client of coderd.
//!
//! A [`Connector`] is made once a process. [`Connector::server`] gives a [`Server`], which, once it is identified, gives a
//! [`Client`] with a credential. Every call passes one narrow place (`client`), which names and counts it, gives it a
//! deadline, holds it to the server's request budget and can make it fail on purpose ([`Faults`]). Answers become types,
//! refusals become a [`CoderdError`] that says why and when to try again.
//!
//! [`postgres`] is the way in where nobody has a token yet: the operator's own account in coderd's database.
//!
//! Never: a cookie, a followed redirect, a proxy taken from the environment, a retry of its own (but for the
//! refused rate-limit bypass), or a credential in an error, a log line or `Debug` output.

pub mod address;
mod answer;
mod authorities;
mod client;
mod connector;
mod error;
#[cfg(feature = "test-util")]
pub mod foreign;
pub mod intervals;
pub mod license;
pub mod postgres;
mod provisioning;
mod proxies;
mod request;
mod request_budget;
mod server;
mod users;

pub use address::{AddressPolicy, AddressRange};
pub use client::{CallLimits, Client};
pub use connector::{Connector, EXIT_CODE, Fault, Faults, Observer, Resolve, Settings};
pub use error::{CoderdError, ErrorKind, Outage, RetryAdvice, Unexpected};
pub use license::{Entitlement, Entitlements, Feature, License, Refreshed};
pub use provisioning::{
    Daemon, DaemonFilter, Job, JobFilter, JobStatus, KeyDaemons, ListedDaemonStatus, ListedProvisionerKey,
};
pub use proxies::{Proxy, ProxyHealth, ProxySettings, RegisteredProxy};
pub use request::Call;
pub use server::{
    BadEndpoint, BoundToken, BuildInfo, CredentialError, Endpoint, IdentifiedServer, Server, is_https,
    is_same_server,
};
pub use users::{FirstUser, IssuedToken, NewFirstUser, NewUser, Organization, Token, User};
