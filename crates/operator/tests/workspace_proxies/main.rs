//! A workspace proxy: the operator as a process against the real API server, and a simulated coderd that the contract
//! suite keeps honest.
//!
//! Time is scaled: entitlements every 2 s, verification every 8 s, and clean-up gives up after 6 s.

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

mod addresses;
mod basics;
mod children;
mod crashes;
mod deletion;
mod drift;
mod gate;
mod life;
mod limits;
mod rest;
mod secrecy;
mod takeover;
mod truth;

use coder_k8s_scenes::Installation;

/// The operator that tests share.
static OPERATOR: Installation = Installation::new(&[
    "--log-level=info,coder_k8s=debug",
    "--entitlements-interval=2s",
    "--verify-interval=8s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=6s",
    "--allowed-coder-urls=http://one.allowed.test,http://two.allowed.test:8080,https://three.allowed.test,\
     http://four.allowed.test,http://five.allowed.test",
]);
