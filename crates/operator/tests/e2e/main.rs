//! Everything real: the operator as a process writes a Deployment into a real cluster, and the node starts the
//! unmodified, unlicensed coderd from it, with a real Postgres. `cargo xtask e2e` gets what is needed and runs this.
//! Daemons and proxies need a licensed coderd: theirs is simulated, they themselves are real.
//!
//! Time is scaled as in the scenarios with a simulated coderd: entitlements every 2 s, verification every 12 s.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod access;
mod contract;
mod daemons;
mod dev;
mod life;
mod likeness;
mod proxies;
mod real;
mod simulated;

use coder_k8s_scenes::Installation;

/// The operator that tests share.
static OPERATOR: Installation = Installation::new(&[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--verify-interval=12s",
    "--autoscaling-interval=1s",
    "--coderd-timeout=5s",
]);
