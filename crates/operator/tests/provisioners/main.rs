//! Pools of provisioner daemons: the operator as a process against the real API server, and a simulated coderd that the
//! contract suite keeps honest.
//!
//! `keys`: the key of a pool through its life. `daemons`: who is connected, who is not and why, and jobs that nobody can
//! run. `load`: what pools cost and stand; every test prints its figures, which `--nocapture` shows.

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

mod keys {
    mod basics;
    mod crashes;
    mod deletion;
    mod drift;
    mod gate;
    mod kstatus;
    mod life;
    mod material;
    mod secrecy;
    mod takeover;
    mod truth;
    mod workspaces;
}

mod daemons {
    mod autoscaling;
    mod connected;
    mod jobs;
    mod refused;
    mod scale_down;
}

mod load {
    mod isolation;
    mod limits;
    mod rest;
    mod rotation;
    mod unlicensed;
}

use coder_k8s_scenes::Installation;

/// The operator of the tests of keys. Time is scaled: entitlements every 2 s, verification every 8 s, and clean-up gives
/// up after 12 s.
static KEYS: Installation = Installation::new(&[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--verify-interval=8s",
    "--coderd-timeout=3s",
    "--database-timeout=2s",
    "--cleanup-timeout=12s",
]);

/// The operator of the tests of daemons. Time is scaled: coderd is asked every second, for scaled pools twice in a second
/// while jobs wait, and a daemon has 4 s to connect. Keys
/// are verified every 10 min as they really are, so that what is found out here is not found out by that.
static DAEMONS: Installation = Installation::new(&[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--daemons-interval=1s",
    "--autoscaling-interval=500ms",
    "--daemons-patience=4s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=6s",
]);

/// Held by tests that measure times or costs.
static MEASURING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
