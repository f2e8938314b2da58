//! Why a call to coderd did not do what it was meant to.
//!
//! An error answers what a controller asks: [`CoderdError::reason`] for the condition and the metric,
//! [`CoderdError::retry`] for the requeue, `Display` for a person. Of what coderd said only `message` is kept, shortened and freed of
//! whatever was sent: `detail` may quote a request and is used for classification alone.

use coder_k8s_api::Reason;
use std::time::Duration;

use crate::address::NOT_ALLOWED;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} at {server}: {kind}")]
pub struct CoderdError {
    /// The name of the call, as in metrics.
    pub call: &'static str,
    /// Host and port of the server.
    pub server: String,
    /// What went wrong.
    pub kind: ErrorKind,
}

/// What went wrong. A variant with a text holds what coderd said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The server has no such route: an AGPL build, or one of another age.
    #[error("this server does not support it")]
    NotSupported,
    /// No such object, or none that this credential may see: coderd tells no difference.
    #[error("not found: {0}")]
    NotFound(String),
    /// The credential is good and may not do this.
    #[error("not permitted: {0}")]
    Forbidden(String),
    /// The credential is missing, unknown, expired, or that of a suspended user.
    #[error("the credential is not accepted: {0}")]
    Unauthenticated(String),
    /// The license does not include the feature.
    #[error("not licensed: {0}")]
    NotEntitled(String),
    /// The server asked to be left alone, or is being left alone because it did.
    #[error("the server asks for fewer requests")]
    RateLimited {
        /// How long from now.
        retry_after: Duration,
    },
    /// It is there already.
    #[error("exists already: {0}")]
    Duplicate(String),
    /// coderd does not accept the license.
    #[error("the license is refused: {0}")]
    InvalidLicense(String),
    /// coderd does not accept the request, or it could not be sent as it is.
    #[error("the request is refused: {0}")]
    Invalid(String),
    /// The server sends elsewhere. It was not followed, so the credential stayed here.
    #[error("redirected to {to}, which is not followed")]
    Redirected {
        /// Host and port of the other place.
        to: String,
    },
    /// Not sent: the host leads to an address that the operator does not connect to.
    #[error("{NOT_ALLOWED}")]
    AddressNotAllowed,
    /// An answer that coderd does not give: somebody else answers at this address.
    #[error("unexpected answer with status {status}: {what}")]
    UnexpectedAnswer {
        /// Its HTTP status.
        status: u16,
        /// What is wrong with it.
        what: Unexpected,
    },
    /// It may work later.
    #[error("{0}")]
    Transient(Outage),
}

/// What is wrong with an answer. Never quotes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// A page for people: of a proxy in between, or the dashboard.
    #[error("a web page in place of an answer of the API")]
    WebPage,
    /// Neither JSON nor a web page.
    #[error("not JSON")]
    ContentType,
    /// JSON, but not coderd's: a gateway in between knows no such address.
    #[error("not an answer of coderd")]
    NotCoderd,
    /// JSON of another shape.
    #[error("cannot be decoded (line {line}, column {column})")]
    Undecodable {
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// More than a client should have to hold.
    #[error("larger than 4 MiB")]
    TooLarge,
    /// More values, or longer ones, than a client should have to hold.
    #[error("more values, or longer ones, than coderd sends")]
    TooMany,
    /// A status that no rule covers.
    #[error("a status that coderd does not use here")]
    Status,
}

/// What may pass by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outage {
    /// No connection.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection broke before the answer was complete.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// No complete answer within this time.
    #[error("no complete answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The server failed.
    #[error("the server failed with status {status}: {message}")]
    Server {
        /// 500 to 599.
        status: u16,
        /// What it said.
        message: String,
    },
    /// Not sent: the server was in trouble a moment ago. It reads like that trouble, so that what people see
    /// does not change from try to try.
    #[error("{last}")]
    HeldOff {
        /// When it will be tried again.
        retry_after: Duration,
        /// What was wrong.
        last: Box<Outage>,
    },
}

/// The result of a call.
pub(crate) type Result<T, E = CoderdError> = std::result::Result<T, E>;

impl Outage {
    /// Whether the whole server is out of order rather than one request, so that other requests should wait.
    pub(crate) fn is_of_server(&self) -> bool {
        match self {
            Self::Server { status, .. } => matches!(status, 502..=504),
            Self::Unreachable(_) | Self::Broken(_) | Self::Timeout(_) => true,
            Self::HeldOff { .. } => false,
        }
    }

    fn reason(&self) -> Reason {
        match self {
            Self::Server { .. } => Reason::ServerError,
            Self::Timeout(_) => Reason::Timeout,
            Self::Unreachable(_) | Self::Broken(_) => Reason::Unreachable,
            Self::HeldOff { last, .. } => last.reason(),
        }
    }
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// When the object, its Secret or the server changed: the same request gets the same answer.
    OnChange,
    /// After a growing delay.
    Backoff,
    /// After a growing delay, and not before this time.
    After(Duration),
}

impl CoderdError {
    /// One stable word, for conditions and metrics.
    pub fn reason(&self) -> Reason {
        self.kind.reason()
    }

    /// When to try again.
    pub fn retry(&self) -> RetryAdvice {
        self.kind.retry()
    }

    /// Whether the object is not there, or not to be seen.
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, ErrorKind::NotFound(_))
    }

    /// Whether the server may have done what it was asked to although the call failed.
    pub fn may_have_happened(&self) -> bool {
        use Outage::{Broken, Server, Timeout};
        matches!(
            self.kind,
            ErrorKind::Transient(Broken(_) | Timeout(_) | Server { .. }) | ErrorKind::UnexpectedAnswer { .. }
        )
    }
}

impl ErrorKind {
    /// One stable word, for conditions and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotSupported => Reason::NotSupported,
            Self::NotFound(_) => Reason::NotFound,
            Self::Forbidden(_) => Reason::Forbidden,
            Self::Unauthenticated(_) => Reason::Unauthenticated,
            Self::NotEntitled(_) => Reason::NotEntitled,
            Self::RateLimited { .. } => Reason::RateLimited,
            Self::Duplicate(_) => Reason::Duplicate,
            Self::InvalidLicense(_) => Reason::InvalidLicense,
            Self::Invalid(_) => Reason::Invalid,
            Self::Redirected { .. } => Reason::Redirected,
            Self::AddressNotAllowed => Reason::AddressNotAllowed,
            Self::UnexpectedAnswer { .. } => Reason::UnexpectedAnswer,
            Self::Transient(trouble) => trouble.reason(),
        }
    }

    /// When to try again.
    pub fn retry(&self) -> RetryAdvice {
        match self {
            Self::RateLimited { retry_after } | Self::Transient(Outage::HeldOff { retry_after, .. }) => {
                RetryAdvice::After(*retry_after)
            }
            // A name may lead elsewhere later.
            Self::Transient(_) | Self::UnexpectedAnswer { .. } | Self::AddressNotAllowed => {
                RetryAdvice::Backoff
            }
            Self::NotSupported
            | Self::NotFound(_)
            | Self::Forbidden(_)
            | Self::Unauthenticated(_)
            | Self::NotEntitled(_)
            | Self::Duplicate(_)
            | Self::InvalidLicense(_)
            | Self::Invalid(_)
            | Self::Redirected { .. } => RetryAdvice::OnChange,
        }
    }
}
