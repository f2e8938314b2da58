//! Errors of the database.
//!
//! [`DatabaseError::reason`] is for conditions and metrics, [`DatabaseError::retry`] for the requeue, [`DatabaseError::stalled`] says whether
//! a person has to act, and `Display` is for people. Of an error of the server only its SQLSTATE and the names of
//! tables, columns and constraints are kept: its messages quote values.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use coder_k8s_api::{Reason, shortened};
use tokio_postgres::error::{DbError, SqlState};

use super::dsn::{BadDsn, Dsn};
use crate::RetryAdvice;
use crate::address::NOT_ALLOWED;
use crate::intervals::{MAX_DATABASE_BYTES, MAX_IDENTIFIER_BYTES};

/// The result of a part of a call.
pub(super) type Result<T, E = DatabaseErrorKind> = std::result::Result<T, E>;

/// A call to the database that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} at {server}: {kind}")]
pub struct DatabaseError {
    /// Name of the step, as in metrics.
    pub call: &'static str,
    /// Host, port and database.
    pub server: String,
    /// Class of the error.
    pub kind: DatabaseErrorKind,
    /// Whether the transaction may have been committed.
    pub(super) uncertain: bool,
}

/// Class of an error of the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseErrorKind {
    /// The connection URL is not usable.
    #[error("{0}")]
    BadUrl(#[from] BadDsn),
    /// The CA certificates for the database are not usable.
    #[error("the authorities in `operatorAccess.databaseCASecretRef` cannot be read: {0}")]
    BadAuthorities(&'static str),
    /// The connection could not be made, or broke.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The host leads to an address that the operator does not connect to.
    #[error("{NOT_ALLOWED}")]
    AddressNotAllowed,
    /// The deadline passed: the server is slow, or another session holds a lock on the tables of coderd.
    #[error("the database did not answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The server does not accept user and password, or does not accept this user from this address.
    #[error(
        "the database does not let the user `{user}` in (SQLSTATE {code}): check user and password of the connection URL"
    )]
    AuthFailed {
        /// User of the connection URL.
        user: String,
        /// SQLSTATE.
        code: String,
    },
    /// The TLS handshake failed.
    #[error("no secure connection to the database: {0}")]
    Tls(String),
    /// The server is a standby, or the database is set to read-only.
    #[error("the database is read-only: the connection URL has to lead to the primary")]
    ReadOnly,
    /// The user of the URL lacks a permission to do this, so it is not the user of coderd.
    #[error("the user of the connection URL may not {0}: it needs the rights of coderd's own user")]
    PermissionDenied(&'static str),
    /// coderd has not created its tables yet.
    #[error("coderd has not set up its database yet: {0}")]
    NotMigrated(&'static str),
    /// The tables differ from those that this release knows.
    #[error(
        "coderd's tables are not as expected: {0}. This coderd may be too old or too new for this operator; choose another `operatorAccess.method`"
    )]
    SchemaUnknown(String),
    /// An account of a person has the name or the e-mail address of the operator.
    #[error(
        "an account that is not the operator's has the {what} `{value}`, and is left alone: rename it in coderd, or \
         choose another `operatorAccess.method`"
    )]
    AccountTaken {
        /// Username or e-mail.
        what: &'static str,
        /// The operator's own, which is no secret.
        value: &'static str,
    },
    /// coderd has not created its default organization yet.
    #[error("coderd has no organization yet")]
    NoOrganization,
    /// Any other error of the server.
    #[error("the database failed while trying to {doing} (SQLSTATE {code})")]
    Failed {
        /// What the operator tried to do.
        doing: &'static str,
        /// SQLSTATE.
        code: String,
    },
    /// The server sent more than one call needs. Whatever it is, it is not the database of a coderd.
    #[error(
        "the server sent more than {} KiB on one connection, which coderd's database does not: check where the connection URL leads",
        MAX_DATABASE_BYTES / 1024
    )]
    TooMuch,
    /// The answer is not one of Postgres, or cannot be read.
    #[error("the server does not answer as Postgres does while trying to {0}")]
    Unexpected(&'static str),
}

impl DatabaseError {
    /// The reason for conditions and metrics.
    pub fn reason(&self) -> Reason {
        self.kind.reason()
    }

    /// When to retry.
    pub fn retry(&self) -> RetryAdvice {
        match self.kind {
            DatabaseErrorKind::BadUrl(_) | DatabaseErrorKind::BadAuthorities(_) => RetryAdvice::OnChange,
            // The database can change without an event in Kubernetes, so everything else is retried.
            _ => RetryAdvice::Backoff,
        }
    }

    /// Whether a person has to act: retrying alone does not help.
    pub fn stalled(&self) -> bool {
        match self.kind {
            DatabaseErrorKind::BadUrl(_)
            | DatabaseErrorKind::BadAuthorities(_)
            | DatabaseErrorKind::AddressNotAllowed
            | DatabaseErrorKind::AuthFailed { .. }
            | DatabaseErrorKind::Tls(_)
            | DatabaseErrorKind::ReadOnly
            | DatabaseErrorKind::PermissionDenied(_)
            | DatabaseErrorKind::SchemaUnknown(_)
            | DatabaseErrorKind::AccountTaken { .. } => true,
            DatabaseErrorKind::Unreachable(_)
            | DatabaseErrorKind::Timeout(_)
            | DatabaseErrorKind::NotMigrated(_)
            | DatabaseErrorKind::NoOrganization
            | DatabaseErrorKind::Failed { .. }
            | DatabaseErrorKind::TooMuch
            | DatabaseErrorKind::Unexpected(_) => false,
        }
    }

    /// Whether the transaction may have been committed although the call failed, because the answer to the commit was
    /// lost.
    pub fn may_have_happened(&self) -> bool {
        self.uncertain
    }
}

impl DatabaseErrorKind {
    /// The reason for conditions and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::BadUrl(bad) => bad.reason(),
            Self::BadAuthorities(_) => Reason::BadDatabaseCa,
            Self::AddressNotAllowed => Reason::AddressNotAllowed,
            Self::Unreachable(_) => Reason::DatabaseUnreachable,
            Self::Timeout(_) => Reason::DatabaseTimeout,
            Self::AuthFailed { .. } => Reason::DatabaseAuthFailed,
            Self::Tls(_) => Reason::DatabaseTls,
            Self::ReadOnly => Reason::DatabaseReadOnly,
            Self::PermissionDenied(_) => Reason::DatabasePermissionDenied,
            Self::NotMigrated(_) => Reason::DatabaseNotMigrated,
            Self::SchemaUnknown(_) => Reason::SchemaUnknown,
            Self::AccountTaken { .. } => Reason::AccountTaken,
            Self::NoOrganization => Reason::NoOrganization,
            Self::Failed { .. } | Self::TooMuch | Self::Unexpected(_) => Reason::DatabaseError,
        }
    }

    /// Whether the server may have received what was sent although the call failed.
    pub(super) fn may_have_been_received(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unreachable(_) | Self::TooMuch | Self::Unexpected(_))
    }

    /// `what` may hold names that the server chose.
    pub(super) fn unknown(what: impl Into<String>) -> Self {
        Self::SchemaUnknown(shortened(what, MAX_IDENTIFIER_BYTES))
    }
}

/// Classifies an error of the connection and the authentication.
pub(super) fn connecting(error: &tokio_postgres::Error, dsn: &Dsn, deadline: Duration) -> DatabaseErrorKind {
    const DOING: &str = "log in";
    let auth = |code: &str| DatabaseErrorKind::AuthFailed { user: dsn.user.clone(), code: code.to_owned() };
    match error.as_db_error() {
        Some(db) if is_class(db, "28") => auth(&code(db)),
        Some(db) if *db.code() == SqlState::INVALID_CATALOG_NAME => {
            DatabaseErrorKind::Unreachable("there is no such database (SQLSTATE 3D000)".to_owned())
        }
        Some(db) => refused(db, DOING, deadline),
        // The driver fails without an error of the server if the server asks for a password and the URL has none.
        None if dsn.password.is_none() && !is_network(error) => auth("28000"),
        None => unanswered(error, DOING),
    }
}

fn is_network(error: &tokio_postgres::Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<io::Error>)
}

/// Classifies an error of a statement.
pub(super) fn running(
    error: &tokio_postgres::Error,
    doing: &'static str,
    deadline: Duration,
) -> DatabaseErrorKind {
    match error.as_db_error() {
        Some(db) => refused(db, doing, deadline),
        None => unanswered(error, doing),
    }
}

fn refused(db: &DbError, doing: &'static str, deadline: Duration) -> DatabaseErrorKind {
    let (code, state) = (db.code(), code(db));
    let at = |what: &str, name: Option<&str>| {
        let table = db.table().map(|table| format!(" of {table}")).unwrap_or_default();
        DatabaseErrorKind::unknown(format!(
            "{what} {}{table} (SQLSTATE {})",
            name.unwrap_or("of its own"),
            state
        ))
    };
    match *code {
        // The deadlines that the session set on the server.
        SqlState::QUERY_CANCELED
        | SqlState::LOCK_NOT_AVAILABLE
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => DatabaseErrorKind::Timeout(deadline),
        SqlState::READ_ONLY_SQL_TRANSACTION => DatabaseErrorKind::ReadOnly,
        SqlState::INSUFFICIENT_PRIVILEGE => DatabaseErrorKind::PermissionDenied(doing),
        SqlState::NOT_NULL_VIOLATION => at("it asks for a value in the column", db.column()),
        SqlState::CHECK_VIOLATION => at("it has the check", db.constraint()),
        SqlState::FOREIGN_KEY_VIOLATION => at("it has the foreign key", db.constraint()),
        SqlState::UNDEFINED_COLUMN
        | SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_OBJECT
        | SqlState::DATATYPE_MISMATCH
        | SqlState::CANNOT_COERCE
        | SqlState::INVALID_TEXT_REPRESENTATION => {
            DatabaseErrorKind::unknown(format!("the server cannot {doing} (SQLSTATE {state})"))
        }
        // The server is starting, stopping, or out of connections.
        _ if is_class(db, "57") || is_class(db, "53") || is_class(db, "08") => {
            DatabaseErrorKind::Unreachable(format!("the server does not serve now (SQLSTATE {state})"))
        }
        _ => DatabaseErrorKind::Failed { doing, code: state },
    }
}

/// The SQLSTATE. It has five characters, whatever the server sends.
fn code(db: &DbError) -> String {
    db.code().code().chars().take(5).collect()
}

fn is_class(db: &DbError, class: &str) -> bool {
    db.code().code().starts_with(class)
}

fn unanswered(error: &tokio_postgres::Error, doing: &'static str) -> DatabaseErrorKind {
    let source = error.source();
    if let Some(source) = source.and_then(|source| source.downcast_ref::<io::Error>()) {
        return broken(source);
    }
    if error.is_closed() {
        DatabaseErrorKind::Unreachable("the connection broke".to_owned())
    } else {
        DatabaseErrorKind::Unexpected(doing)
    }
}

/// Classifies an error of the network. Only texts of the operating system are kept.
pub(super) fn broken(error: &io::Error) -> DatabaseErrorKind {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            DatabaseErrorKind::Unexpected("read its answer")
        }
        io::ErrorKind::UnexpectedEof => DatabaseErrorKind::Unreachable("the connection broke".to_owned()),
        _ if error.raw_os_error().is_some() => DatabaseErrorKind::Unreachable(error.to_string()),
        kind => DatabaseErrorKind::Unreachable(kind.to_string()),
    }
}
