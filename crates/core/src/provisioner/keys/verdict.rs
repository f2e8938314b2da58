//! What to say about a pool's key.

use coder_k8s_api::{Reason, condition::kind};

use crate::credential::CredentialConditions;
pub use crate::credential::{CredentialProgress, CredentialVerdict};

/// The conditions that tell of a key.
pub const CONDITIONS: CredentialConditions = CredentialConditions {
    known: kind::PROVISIONER_KEY_READY,
    in_place: kind::PROVISIONER_KEY_SECRET_READY,
    held: "the Secret holds the key",
};

/// All is as the spec asks.
pub(super) fn ready() -> CredentialVerdict {
    CredentialVerdict::ready(Reason::ProvisionerKeyReady, "the key is known to coderd and in its Secret")
}
