//! What becomes of a CoderProvisioner. For now only a status that says that nothing does.

use std::sync::Arc;

use coder_k8s_api::{CoderProvisioner, CoderProvisionerStatus};
use jiff::Timestamp;

use crate::{condition::Verdict, outcome::Done, workload};

/// What was observed.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The object.
    pub object: Arc<CoderProvisioner>,
}

/// Says how things stand.
pub fn status(seen: &Seen, done: &Done, now: Timestamp) -> CoderProvisionerStatus {
    let before = seen.object.status.clone().unwrap_or_default();
    let verdict = Verdict {
        ready: false,
        working: false,
        reason: "NotDeployed",
        message: "this release does not run provisioner daemons yet",
    };
    let workload = workload::status(&before.workload, seen.object.metadata.generation, done, verdict, now);
    CoderProvisionerStatus { workload, ..before }
}
