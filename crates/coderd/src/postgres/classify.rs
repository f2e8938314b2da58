//! What an error of the driver means. Messages of the server are never kept, because they quote values.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};

use super::dsn::Dsn;
use super::error::DatabaseErrorKind;

/// Classifies an error of the connection and the authentication.
pub(super) fn connecting(error: &tokio_postgres::Error, dsn: &Dsn, deadline: Duration) -> DatabaseErrorKind {
    const DOING: &str = "log in";
    let auth = |code: &str| DatabaseErrorKind::AuthFailed { user: dsn.user.clone(), code: code.to_owned() };
    match error.as_db_error() {
        Some(db) if is_class(db, "28") => auth(db.code().code()),
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
    let code = db.code();
    let at = |what: &str, name: Option<&str>| {
        let table = db.table().map(|table| format!(" of {table}")).unwrap_or_default();
        DatabaseErrorKind::unknown(format!(
            "{what} {}{table} (SQLSTATE {})",
            name.unwrap_or("of its own"),
            code.code()
        ))
    };
    match code {
        // The deadlines that the session set on the server.
        c if *c == SqlState::QUERY_CANCELED
            || *c == SqlState::LOCK_NOT_AVAILABLE
            || *c == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT =>
        {
            DatabaseErrorKind::Timeout(deadline)
        }
        c if *c == SqlState::READ_ONLY_SQL_TRANSACTION => DatabaseErrorKind::ReadOnly,
        c if *c == SqlState::INSUFFICIENT_PRIVILEGE => DatabaseErrorKind::PermissionDenied { doing },
        c if *c == SqlState::NOT_NULL_VIOLATION => at("it asks for a value in the column", db.column()),
        c if *c == SqlState::CHECK_VIOLATION => at("it has the check", db.constraint()),
        c if *c == SqlState::FOREIGN_KEY_VIOLATION => at("it has the foreign key", db.constraint()),
        c if *c == SqlState::UNDEFINED_COLUMN
            || *c == SqlState::UNDEFINED_TABLE
            || *c == SqlState::UNDEFINED_OBJECT
            || *c == SqlState::DATATYPE_MISMATCH
            || *c == SqlState::CANNOT_COERCE
            || *c == SqlState::INVALID_TEXT_REPRESENTATION =>
        {
            DatabaseErrorKind::unknown(format!("the server cannot {doing} (SQLSTATE {})", code.code()))
        }
        // The server is starting, stopping, or out of connections.
        _ if is_class(db, "57") || is_class(db, "53") || is_class(db, "08") => {
            DatabaseErrorKind::Unreachable(format!(
                "the server does not serve now (SQLSTATE {})",
                code.code()
            ))
        }
        _ => DatabaseErrorKind::Failed { doing, code: code.code().to_owned() },
    }
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
