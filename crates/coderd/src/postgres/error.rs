//! Why the database did not do what it was meant to.
//!
//! Answers what a controller asks: [`Error::reason`] for the condition and the metric, [`Error::retry`] for the
//! requeue, [`Error::stalled`] for whether waiting helps, `Display` for a person. Of what the server said only its
//! SQLSTATE and the names of tables, columns and constraints are kept: its messages quote values.

use coder_k8s_api::Reason;
use std::time::Duration;

use super::dsn::BadDsn;
use crate::Retry;

/// A call to the database that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} at {server}: {kind}")]
pub struct Error {
    /// The name of the step, as in metrics.
    pub call: &'static str,
    /// Host, port and database.
    pub server: String,
    /// What went wrong.
    pub kind: DatabaseErrorKind,
    pub(super) uncertain: bool,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseErrorKind {
    /// The connection URL cannot be used.
    #[error("{0}")]
    BadUrl(#[from] BadDsn),
    /// The certificate authorities given for the database cannot be read.
    #[error("the authorities in `operatorAccess.databaseCASecretRef` cannot be read: {0}")]
    BadAuthorities(&'static str),
    /// No connection, or it broke.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// Not done within this time: the server is slow, or somebody holds a lock on coderd's tables.
    #[error("the database did not answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// User or password are wrong, or the server lets this user in from elsewhere only.
    #[error(
        "the database does not let the user `{user}` in (SQLSTATE {code}): check user and password of the connection URL"
    )]
    AuthFailed {
        /// The user of the connection URL.
        user: String,
        /// SQLSTATE.
        code: String,
    },
    /// The encrypted connection could not be made.
    #[error("no secure connection to the database: {0}")]
    Tls(String),
    /// A standby, or a database that is set to be read only.
    #[error("the database is read-only: the connection URL has to lead to the primary")]
    ReadOnly,
    /// The user of the URL is not coderd's.
    #[error("the user of the connection URL may not {doing}: it needs the rights of coderd's own user")]
    PermissionDenied {
        /// What was tried.
        doing: &'static str,
    },
    /// coderd has not made its tables yet.
    #[error("coderd has not set up its database yet: {0}")]
    NotMigrated(&'static str),
    /// Tables that this operator does not know.
    #[error(
        "coderd's tables are not as expected: {what}. This coderd may be too old or too new for this operator; choose another `operatorAccess.method`"
    )]
    SchemaUnknown {
        /// What is missing or unknown.
        what: String,
    },
    /// A person has the name or the e-mail of the operator's account.
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
    /// coderd has not made its default organization yet.
    #[error("coderd has no organization yet")]
    NoOrganization,
    /// Anything else.
    #[error("the database failed while trying to {doing} (SQLSTATE {code})")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// SQLSTATE.
        code: String,
    },
    /// Not an answer of Postgres, or none that can be read.
    #[error("the server does not answer as Postgres does while trying to {0}")]
    Unexpected(&'static str),
}

impl Error {
    /// One stable word, for conditions and metrics.
    pub fn reason(&self) -> Reason {
        self.kind.reason()
    }

    /// When to try again.
    pub fn retry(&self) -> Retry {
        match self.kind {
            DatabaseErrorKind::BadUrl(_) | DatabaseErrorKind::BadAuthorities(_) => Retry::OnChange,
            // The database changes without anything in Kubernetes telling.
            _ => Retry::Backoff,
        }
    }

    /// Whether somebody has to do something: waiting alone does not help.
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

    /// Whether the change may have been made although it failed: the answer to the commit was lost.
    pub fn may_have_happened(&self) -> bool {
        self.uncertain
    }
}

impl DatabaseErrorKind {
    /// One stable word, for conditions and metrics.
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
