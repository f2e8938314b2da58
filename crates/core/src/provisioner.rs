//! What becomes of a CoderProvisioner. For now only a status that says that nothing does.

pub mod gate;
pub mod keys;
pub mod names;

use std::sync::Arc;

use coder_k8s_api::{CoderProvisioner, CoderProvisionerStatus};
use jiff::Timestamp;

use crate::{
    condition::{Conditions, Progress, Verdict},
    outcome::Done,
    workload,
};

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
        progress: Progress::Settled,
        reason: "NotDeployed",
        message: "this release does not run provisioner daemons yet".to_owned(),
    };
    let generation = seen.object.metadata.generation;
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    conditions.set_common(done, verdict);
    let workload = workload::without_pods(&before.workload, generation, conditions);
    CoderProvisionerStatus { workload, ..before }
}
