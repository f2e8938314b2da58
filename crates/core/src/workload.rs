//! What every kind says about its workload, whatever the kind.

use coder_k8s_api::WorkloadStatus;
use jiff::Timestamp;

use crate::{
    condition::{Conditions, Verdict, phase},
    outcome::Done,
};

/// The common part of a status after a pass over an object of `generation` whose status was `before`.
pub fn status(
    before: &WorkloadStatus,
    generation: Option<i64>,
    done: &Done,
    verdict: Verdict,
    now: Timestamp,
) -> WorkloadStatus {
    let mut conditions = Conditions::new(&before.conditions, generation, now);
    conditions.set_common(done, verdict);
    WorkloadStatus {
        observed_generation: generation,
        phase: Some(phase(before.ready_replicas)),
        conditions: conditions.into_vec(),
        ..before.clone()
    }
}
