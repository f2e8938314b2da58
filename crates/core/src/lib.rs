//! The decisions of coder-k8s.
//!
//! Pure: no client, no clock, no environment. What was observed and the time come in as arguments; plans and status go
//! out as data. "Not ready yet" is a plan, not an error. "The Go operator" is the operator of the same name and kinds
//! that this one replaces: its objects are taken over as it leaves them.

pub mod autoscaling;
pub mod cleanup;
pub mod condition;
pub mod controlplane;
pub mod credential;
pub mod daemon_listing;
pub mod environment;
pub mod exposure;
pub mod intervals;
pub mod jobs;
pub mod license_gate;
pub mod names;
pub mod object;
pub mod outcome;
pub mod pod;
pub mod provisioner;
pub mod service;
pub mod sources;
pub mod target;
pub mod verified;
pub mod workload;
pub mod workspace_access;
pub mod workspaceproxy;
