//! A real Postgres on loopback.
//!
//! [`shared`] is one server for all tests of a process. [`Postgres::start`] and [`Postgres::builder`] start a
//! separate one, which a test may stop and start. Each [`Database`] is new, with a role of its own whose password is
//! checked; [`migrated`] returns one with the tables of coderd. [`Proxy`] sits in front of a server and breaks
//! connections. If this process is root, the server runs as another user, because it refuses to run as root. Files
//! and processes are removed with the process that started them.

mod coder;
mod database;
mod log;
mod programs;
mod proxy;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::sync::OnceCell;

pub use coder::migrated;
pub use database::{Client, Database, Template};
pub use programs::Programs;
pub use proxy::{Proxy, ProxyFault};
pub use server::{Builder, Postgres};

/// Why a server or database is not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres is not installed.
    #[error(
        "the tests need Postgres, but `{program}` is neither on PATH nor below /usr/lib/postgresql: install it, for \
         example with `apt-get install postgresql`"
    )]
    Missing {
        /// Name of the missing program.
        program: &'static str,
    },
    /// `initdb` failed.
    #[error("`initdb` failed ({status}); its last lines:\n{log}")]
    InitDb {
        /// Exit status.
        status: ExitStatus,
        /// Last lines of its output.
        log: String,
    },
    /// The server exited.
    #[error("postgres ended ({status}); its last lines:\n{log}")]
    Exited {
        /// Exit status.
        status: ExitStatus,
        /// Last lines of its log.
        log: String,
    },
    /// The server does not accept connections.
    #[error("postgres does not accept connections after {after:?} ({last}); its last lines:\n{log}")]
    NotReady {
        /// How long the start waited.
        after: Duration,
        /// Error of the last attempt.
        last: String,
        /// Last lines of its log.
        log: String,
    },
    /// The server refused a statement of the testbed.
    #[error("cannot {action}")]
    Sql {
        /// Purpose of the statement.
        action: &'static str,
        /// Error of the driver.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The certificate could not be created.
    #[error("cannot make the certificate of postgres")]
    Certificate(#[from] rcgen::Error),
    /// An operation on a file or process failed.
    #[error("cannot {action}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl Error {
    fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    fn sql(action: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { action, source }
    }
}

/// The server that all tests of a process share. The first caller starts it; it ends with the process.
///
/// # Panics
/// When it could not be started; the message says why.
#[expect(clippy::panic, reason = "its callers are tests, and a test without a server has failed")]
pub async fn shared() -> &'static Postgres {
    static SHARED: OnceCell<Result<Postgres, Error>> = OnceCell::const_new();
    match SHARED.get_or_init(Postgres::start).await {
        Ok(server) => server,
        Err(error) => panic!("the shared Postgres could not be started: {}", with_sources(error)),
    }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn is_file(dir: &Path, name: &str) -> Option<PathBuf> {
    Some(dir.join(name)).filter(|path| path.is_file())
}
