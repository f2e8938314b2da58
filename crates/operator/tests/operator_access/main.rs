//! The operator's access to coderd: its token, the license that it applies, and what it reads of entitlements. The operator
//! runs as a process against the real API server, and a simulated coderd that the contract suite keeps honest.
//!
//! Time is scaled by fifty: entitlements every 2 s, verification every 12 s.

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

mod access;
mod crashes;
mod entitlements;
mod faults;
mod first_user;
mod idle;
mod isolation;
mod license;
mod postgres;
mod secrecy;
mod truth;

use coder_k8s_scenes::Installation;

/// The operator that tests share.
static OPERATOR: Installation = Installation::new(&[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--verify-interval=12s",
    "--coderd-timeout=3s",
    "--database-timeout=2s",
    "--cleanup-timeout=6s",
    "--allowed-coder-urls=http://answers.test,http://edited.test",
]);

/// Held by tests that measure times.
static MEASURING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
