//! Errors of the database.
//!
//! [`DatabaseError::reason`] is for conditions and metrics, [`DatabaseError::retry`] for the requeue, [`DatabaseError::stalled`] says whether
//! a person has to act, and `Display` is for people. Of an error of the server only its SQLSTATE and the names of
//! tables, columns and constraints are kept: its messages quote values.

use coder_k8s_api::Reason;
use std::time::Duration;

use super::dsn::BadDsn;
use crate::RetryAdvice;

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
    /// The user of the URL lacks a permission, so it is not the user of coderd.
    #[error("the user of the connection URL may not {doing}: it needs the rights of coderd's own user")]
    PermissionDenied {
        /// What the operator tried to do.
        doing: &'static str,
    },
    /// coderd has not created its tables yet.
    #[error("coderd has not set up its database yet: {0}")]
    NotMigrated(&'static str),
    /// The tables differ from those that this release knows.
    #[error(
        "coderd's tables are not as expected: {what}. This coderd may be too old or too new for this operator; choose another `operatorAccess.method`"
    )]
    SchemaUnknown {
        /// What is missing or unknown.
        what: String,
    },
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
            | DatabaseErrorKind::AuthFailed { .. }
            | DatabaseErrorKind::Tls(_)
            | DatabaseErrorKind::ReadOnly
            | DatabaseErrorKind::PermissionDenied { .. }
            | DatabaseErrorKind::SchemaUnknown { .. }
            | DatabaseErrorKind::AccountTaken { .. } => true,
            DatabaseErrorKind::Unreachable(_)
            | DatabaseErrorKind::Timeout(_)
            | DatabaseErrorKind::NotMigrated(_)
            | DatabaseErrorKind::NoOrganization
            | DatabaseErrorKind::Failed { .. }
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
            Self::Unreachable(_) => Reason::DatabaseUnreachable,
            Self::Timeout(_) => Reason::DatabaseTimeout,
            Self::AuthFailed { .. } => Reason::DatabaseAuthFailed,
            Self::Tls(_) => Reason::DatabaseTls,
            Self::ReadOnly => Reason::DatabaseReadOnly,
            Self::PermissionDenied { .. } => Reason::DatabasePermissionDenied,
            Self::NotMigrated(_) => Reason::DatabaseNotMigrated,
            Self::SchemaUnknown { .. } => Reason::SchemaUnknown,
            Self::AccountTaken { .. } => Reason::AccountTaken,
            Self::NoOrganization => Reason::NoOrganization,
            Self::Failed { .. } | Self::Unexpected(_) => Reason::DatabaseError,
        }
    }

    pub(super) fn unknown(what: impl Into<String>) -> Self {
        Self::SchemaUnknown { what: what.into() }
    }
}
