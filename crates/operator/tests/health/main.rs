//! The daemons of pools, as coderd lists them: who is connected, who is not and why, and jobs that nobody can run.
//!
//! Time is scaled: coderd is asked every second, a daemon has 4 s to connect, entitlements are refreshed every 2 s. Keys
//! are verified every 10 min as they really are, so that what is found out here is not found out by that.

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

mod connected;
mod crew;
mod jobs;
#[allow(dead_code, reason = "shared with the scenarios of pools")]
#[path = "../provisioner/pool.rs"]
mod pool;
mod refused;
#[allow(dead_code, reason = "shared with the other scenarios")]
#[path = "../controlplane/scene.rs"]
mod scene;
mod shrink;
#[path = "../support/mod.rs"]
mod support;

/// How the operator that tests share is started.
const OPERATOR: &[&str] = &[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--daemons-interval=1s",
    "--daemons-patience=4s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=6s",
];
