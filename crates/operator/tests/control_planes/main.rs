//! Scenarios of a CoderControlPlane: the operator as a process, with exactly its rights, against the real API server and
//! controller-manager, with a node that reports pods.
//!
//! One cluster and one operator for all tests that only need a namespace; those that disturb the operator start their own
//! beside each other on a second cluster, and those that change the cluster have one of their own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    clippy::needless_pass_by_value,
    reason = "everything here is a test, its helper functions too"
)]

mod basics;
mod children;
mod deployment;
mod errors;
mod exposure;
mod kstatus;
mod life;
mod ownership;
mod pause;
mod service_account;
mod takeover;
mod tls;
mod workspaces;

use coder_k8s_scenes::Installation;

/// The operator that tests share.
static OPERATOR: Installation = Installation::new(&["--log-level=info,coder_k8s=debug"]);
