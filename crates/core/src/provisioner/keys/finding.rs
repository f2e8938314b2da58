//! What to say about a pool's key.

use coder_k8s_api::condition::kind;

use crate::finding::Told;
pub use crate::finding::{Finding, Stage};

/// The conditions that tell of a key.
pub const TOLD: Told = Told {
    known: kind::PROVISIONER_KEY_READY,
    in_place: kind::PROVISIONER_KEY_SECRET_READY,
    held: "the Secret holds the key",
};

/// All is as the spec asks.
pub(super) fn ready() -> Finding {
    Finding::ready("ProvisionerKeyReady", "the key is known to coderd and in its Secret")
}
