//! The decisions of coder-k8s.
//!
//! Pure: no client, no clock, no environment. What was observed and the time come in as arguments; plans and
//! status go out as data. "Not ready yet" is a plan, not an error.

pub mod condition;
pub mod controlplane;
pub mod names;
pub mod outcome;
pub mod provisioner;
pub mod references;
pub mod workload;
pub mod workspaceproxy;
