//! The hook through which tests make calls to the API server fail. A released operator installs no [`Faults`].

use std::time::Duration;

use super::Call;

/// The exit code of [`Fault::Exit`].
pub const EXIT_CODE: i32 = 86;

/// Decides which calls fail, and how.
pub trait Faults: Send + Sync {
    /// Asked before a call is sent. Unless the fault is a delay, the server never receives the call.
    fn before(&self, call: &Call) -> Option<Fault>;

    /// Asked after the server has answered: the call took effect, and the caller does not learn of it.
    fn after(&self, call: &Call) -> Option<Fault>;
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks.
    Error,
    /// The caller gets this HTTP status in place of the server's response.
    Status(u16),
    /// The call takes this much longer. Its deadline does not change.
    Delay(Duration),
    /// The process exits at once, with [`EXIT_CODE`].
    Exit,
}
