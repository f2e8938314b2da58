//! What to say about a registration and its token.

use coder_k8s_api::condition::kind;

use crate::finding::Told;
pub use crate::finding::{Finding, Stage};

/// The conditions that tell of a registration.
pub const TOLD: Told =
    Told { known: kind::REGISTERED, in_place: kind::TOKEN_SECRET_READY, held: "the Secret holds the token" };

/// All is as the spec asks.
pub(super) fn ready() -> Finding {
    Finding::ready("Registered", "the proxy is registered in coderd, and its token is in its Secret")
}

/// A person has supplied a token.
pub(super) fn given() -> Finding {
    Finding::ready("TokenGiven", "the Secret holds the token that somebody supplied")
}
