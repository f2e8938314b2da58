//! Clients of the places where keys are.

use coder_k8s_coderd::{Client, Error, ErrorKind, IdentifiedServer};
use coder_k8s_core::provisioner::keys::{Blocker, CoderdTarget};

use super::KeyReconciler;
use crate::coderd::targets::TargetError;

impl KeyReconciler {
    /// The server of a target. The error is None if the target is gone.
    pub(super) async fn server(
        &mut self,
        target: &CoderdTarget,
    ) -> Result<IdentifiedServer, Option<Blocker>> {
        let found = self.state.connections.server(target, &self.state.ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    /// A client with the credentials of a target. The error is None if the target is gone.
    pub(super) async fn client(&mut self, target: &CoderdTarget) -> Result<Client, Option<Blocker>> {
        let found = self.state.connections.client(target, &self.state.ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    fn unusable(&mut self, error: TargetError) -> Option<Blocker> {
        match error {
            TargetError::Gone => None,
            TargetError::Blocked(blocker) => Some(blocker),
            TargetError::Failed(error) => Some(self.failed(&error)),
        }
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
