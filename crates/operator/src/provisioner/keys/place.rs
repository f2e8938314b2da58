//! Clients of the places where keys are.

use coder_k8s_coderd::{Client, Error, ErrorKind};
use coder_k8s_core::provisioner::keys::{Blocker, CoderdTarget};

use super::KeyReconciler;
use crate::controller::places::{self, Unasked};

impl KeyReconciler {
    /// A client without a credential of the coderd at a place.
    pub(super) async fn anonymous(&self, place: &CoderdTarget) -> Result<Client, Unasked> {
        places::anonymous(place, &self.state.key.namespace, &self.state.ctx).await
    }

    /// A client with the credentials of a place.
    pub(super) async fn client(&self, place: &CoderdTarget) -> Result<Client, Unasked> {
        places::client(place, &self.state.key.namespace, &self.state.ctx).await
    }

    /// Notes that coderd did not answer as it should, so that it is asked again, but not too soon.
    pub(super) fn failed(&mut self, error: &Error) -> Blocker {
        self.state.unanswered(error);
        blocker(error)
    }
}

/// What an error means for a pool, the same from try to try.
pub(super) fn blocker(error: &Error) -> Blocker {
    let message = match error.kind {
        ErrorKind::RateLimited { .. } => {
            "Coder API rate limited while reconciling provisioner key".to_owned()
        }
        _ => error.to_string(),
    };
    Blocker::new(error.reason(), message)
}
