//! Things that go wrong on purpose. Tests hand a [`Faults`] to the connector; a running operator has none.

use std::time::Duration;

use crate::call::Call;

/// The exit code of [`Fault::Exit`]; the same as for a call to the API server.
pub const EXIT_CODE: i32 = 86;

/// Decides what goes wrong.
pub trait Faults: Send + Sync {
    /// Asked before a call is sent: with an answer other than a delay, the server never sees it.
    fn before(&self, call: &Call) -> Option<Fault>;

    /// Asked when the server has answered: it did what it was asked to, and we do not learn of it.
    fn after(&self, call: &Call) -> Option<Fault>;
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks.
    Error,
    /// This HTTP status, in place of the answer.
    Status(u16),
    /// The call takes this much longer; its deadline still holds.
    Delay(Duration),
    /// The process ends on the spot, with [`EXIT_CODE`].
    Exit,
}
