//! A real Postgres on loopback.
//!
//! [`shared`] is one server for all tests of a process; [`Postgres::start`] and [`Postgres::builder`] give one of
//! your own, which a test may stop and start. Each [`Database`] is a fresh one with a role of its own, whose password
//! is really checked. [`Proxy`] stands in front of a server and makes connections go wrong. As root the server runs
//! as another user, because it refuses to be root. Files and processes go away with the process that started them.

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

pub use database::{Client, Database, Template};
pub use programs::Programs;
pub use proxy::{Proxy, Trouble};
pub use server::{Builder, Postgres};

/// Why a server or a database could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres is not installed.
    #[error(
        "the tests need Postgres, but `{program}` is neither on PATH nor below /usr/lib/postgresql: install it, for \
         example with `apt-get install postgresql`"
    )]
    Missing {
        /// The program that is missing.
        program: &'static str,
    },
    /// The data directory could not be made.
    #[error("`initdb` failed ({status}); its last lines:\n{log}")]
    InitDb {
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it wrote.
        log: String,
    },
    /// The server ended by itself.
    #[error("postgres ended ({status}); its last lines:\n{log}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The last lines that it wrote.
        log: String,
    },
    /// The server does not accept connections.
    #[error("postgres does not accept connections after {after:?} ({last}); its last lines:\n{log}")]
    NotReady {
        /// How long it was tried.
        after: Duration,
        /// What was wrong last.
        last: String,
        /// The last lines that it wrote.
        log: String,
    },
    /// The server refused a statement of the testbed.
    #[error("cannot {action}")]
    Sql {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The certificate could not be made.
    #[error("cannot make the certificate of postgres")]
    Certificate(#[from] rcgen::Error),
    /// A file or a process could not be handled.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why not.
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
