//! Clients of the places where keys are.

use coder_k8s_coderd::{Client, Error, Kind};
use coder_k8s_core::provisioner::keys::{Place, Trouble};

use super::Dealings;
use crate::controller::places::{self, Unasked};

impl Dealings {
    /// A client without a credential of the coderd at a place.
    pub(super) async fn anonymous(&self, place: &Place) -> Result<Client, Unasked> {
        places::anonymous(place, &self.course.key.namespace, &self.course.ctx).await
    }

    /// A client with the credentials of a place.
    pub(super) async fn client(&self, place: &Place) -> Result<Client, Unasked> {
        places::client(place, &self.course.key.namespace, &self.course.ctx).await
    }

    /// Notes that coderd did not answer as it should, so that it is asked again, but not too soon.
    pub(super) fn failed(&mut self, error: &Error) -> Trouble {
        self.course.unanswered(error);
        trouble(error)
    }
}

/// What an error means for a pool, the same from try to try.
pub(super) fn trouble(error: &Error) -> Trouble {
    let message = match error.kind {
        Kind::RateLimited { .. } => "Coder API rate limited while reconciling provisioner key".to_owned(),
        _ => error.to_string(),
    };
    Trouble { reason: error.reason(), message }
}
