//! What becomes of a CoderWorkspaceProxy. For now only a status that says that nothing does.

use std::sync::Arc;

use coder_k8s_api::{CoderWorkspaceProxy, CoderWorkspaceProxyStatus};
use jiff::Timestamp;

use crate::{condition::Verdict, outcome::Done, workload};

/// What was observed.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The object.
    pub object: Arc<CoderWorkspaceProxy>,
}

/// Says how things stand.
pub fn status(seen: &Seen, done: &Done, now: Timestamp) -> CoderWorkspaceProxyStatus {
    let before = seen.object.status.clone().unwrap_or_default();
    let verdict = Verdict {
        ready: false,
        working: false,
        reason: "NotDeployed",
        message: "this release does not run workspace proxies yet",
    };
    let workload = workload::status(&before.workload, seen.object.metadata.generation, done, verdict, now);
    CoderWorkspaceProxyStatus { workload, ..before }
}
