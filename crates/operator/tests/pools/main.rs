//! What pools cost and stand: rotations with daemons at work, rate limits, missing licenses, rest, servers that hang.
//!
//! Every test prints its figures; `--nocapture` shows them. Time is scaled, each test says by how much.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

#[allow(dead_code, reason = "shared with the scenarios of control planes")]
#[path = "../coderd/coder.rs"]
mod coder;
mod daemons;
mod isolation;
mod limits;
#[allow(dead_code, reason = "shared with the scenarios of control planes")]
#[path = "../coderd/own.rs"]
mod own;
mod pools;
mod rest;
mod rotation;
#[allow(dead_code, reason = "shared with the other scenarios")]
#[path = "../controlplane/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;
mod unlicensed;

/// How the operator that tests share is started.
const OPERATOR: &[&str] = &[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--verify-interval=40s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=6s",
];

/// Tests with a cluster of their own measure one after the other.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
