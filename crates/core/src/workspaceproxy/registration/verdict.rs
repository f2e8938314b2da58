//! What to say about a registration and its token.

use coder_k8s_api::{Reason, condition::kind};

use crate::credential::CredentialConditions;
pub use crate::credential::{CredentialProgress, CredentialVerdict};

/// The conditions that tell of a registration.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: kind::REGISTERED,
    in_place: kind::TOKEN_SECRET_READY,
    held: "the Secret holds the token",
};

/// All is as the spec asks.
pub(super) fn ready() -> CredentialVerdict {
    CredentialVerdict::ready(
        Reason::Registered,
        "the proxy is registered in coderd, and its token is in its Secret",
    )
}

/// A person has supplied a token.
pub(super) fn given() -> CredentialVerdict {
    CredentialVerdict::ready(Reason::TokenGiven, "the Secret holds the token that somebody supplied")
}
