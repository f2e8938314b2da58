//! The HTTP client of coderd.
//!
//! A [`Connector`] is made once a process. [`Connector::server`] gives a [`Server`], which, once it is identified, gives a
//! [`Client`] with a credential. Every call passes one narrow place, which names and counts it, gives it a deadline, holds it to the server's request budget
//! ([`servers`]) and can make it fail on purpose ([`Faults`]). Answers become types, refusals become an
//! [`Error`] that says why and when to try again.
//!
//! [`postgres`] is the way in where nobody has a token yet: the operator's own account in coderd's database.
//!
//! Never: a cookie, a followed redirect, a proxy taken from the environment, a retry of its own (but for the
//! refused rate-limit bypass), or a credential in an error, a log line or `Debug` output.

mod answer;
mod basics;
mod call;
mod classify;
mod client;
mod connector;
mod daemons;
mod decode;
mod entitlements;
mod error;
mod faults;
mod jobs;
mod kept;
pub mod license;
mod pools;
pub mod postgres;
mod provisionerkeys;
mod proxies;
mod resolve;
mod server;
pub mod servers;
mod target;
mod tokens;
mod users;

pub use basics::BuildInfo;
pub use call::Call;
pub use client::Client;
pub use connector::{Connector, Observer, Settings};
pub use daemons::{Daemon, DaemonStatus, Daemons};
pub use entitlements::{Entitlement, Entitlements, Feature};
pub use error::{Error, ErrorKind, Outage, Retry, Unexpected};
pub use faults::{EXIT_CODE, Fault, Faults};
pub use jobs::{Job, JobStatus, Jobs};
pub use license::{License, Refreshed};
pub use provisionerkeys::{KeyDaemons, ProvisionerKey};
pub use proxies::{Proxy, ProxyHealth, ProxySettings, RegisteredProxy};
pub use resolve::Resolve;
pub use server::{BoundToken, CredentialError, IdentifiedServer, Server};
pub use target::{BadTarget, Target, is_same_server};
pub use tokens::{NewToken, Token};
pub use users::{FirstUser, NewFirstUser, NewUser, Organization, User};
