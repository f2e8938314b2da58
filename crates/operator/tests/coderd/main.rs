//! A control plane and its coderd: the operator as a process against the real API server, and a simulated coderd that the
//! contract suite keeps honest.
//!
//! Time is scaled by fifty: entitlements every 2 s, verification every 12 s.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod access;
mod coder;
mod crashes;
mod entitlements;
mod faults;
mod first_user;
mod idle;
mod isolation;
mod license;
mod own;
#[allow(dead_code, reason = "shared with the other scenarios")]
#[path = "../controlplane/scene.rs"]
mod scene;
mod secrecy;
#[path = "../support/mod.rs"]
mod support;

/// How the operator that tests share is started.
const OPERATOR: &[&str] = &[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--verify-interval=12s",
    "--coderd-timeout=3s",
];
