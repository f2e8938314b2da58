//! Fault injection. Tests give a [`Faults`] to the connector and to Postgres; an operator in production has none.

use std::time::Duration;

use crate::call::Call;

/// Exit code of [`Fault::Exit`]. The engine uses the same for faults of Kubernetes calls.
pub const EXIT_CODE: i32 = 86;

/// Decides which calls fail.
pub trait Faults: Send + Sync {
    /// Called before a request is sent. A fault other than a delay keeps the request from the server.
    fn before(&self, call: &Call) -> Option<Fault>;

    /// Called after the server has answered. A fault other than a delay replaces the answer, as if it were lost on
    /// the way: the effect has happened.
    fn after(&self, call: &Call) -> Option<Fault>;
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks.
    Error,
    /// An answer with this HTTP status.
    Status(u16),
    /// The call takes this much longer. Its deadline still applies.
    Delay(Duration),
    /// The process exits at once with [`EXIT_CODE`].
    Exit,
}
