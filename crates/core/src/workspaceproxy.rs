//! What becomes of a CoderWorkspaceProxy. For now only a status that says that nothing does.

use std::sync::Arc;

use coder_k8s_api::{CoderWorkspaceProxy, CoderWorkspaceProxyStatus};
use jiff::Timestamp;

use crate::{
    condition::{Conditions, Verdict, phase},
    outcome::Done,
};

/// What was observed.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The object.
    pub object: Arc<CoderWorkspaceProxy>,
}

/// Says how things stand.
pub fn status(seen: &Seen, done: &Done, now: Timestamp) -> CoderWorkspaceProxyStatus {
    let before = seen.object.status.clone().unwrap_or_default();
    let mut conditions = Conditions::new(&before.conditions, seen.object.metadata.generation, now);
    conditions.set_common(
        done,
        Verdict {
            ready: false,
            working: false,
            reason: "NotDeployed",
            message: "this release does not run workspace proxies yet",
        },
    );
    CoderWorkspaceProxyStatus {
        observed_generation: seen.object.metadata.generation,
        phase: Some(phase(before.ready_replicas)),
        conditions: conditions.into_vec(),
        ..before
    }
}
