//! What the tests of the operator share.
//!
//! The operator runs as a process of its own ([`Operator`]), with exactly the rights that its manifests grant, against the
//! real API server. A [`scene::Scene`] is the namespace of one test, either on an [`Installation`] whose operator all tests
//! of a program share, or in a namespace that only operators of the test watch. On top of it there is a scene for each
//! topic: [`coderd`] (a control plane with a simulated coderd), [`scoped`] (the same with operators that the test starts
//! and ends), [`pool`] and [`pools`], [`daemons`], [`proxy`]. [`recorded`] holds what the Go operator leaves in a cluster,
//! and [`soak`] lives random lives.
//!
//! Functions named `until_*` poll until something holds and panic after [`PATIENCE`]; those named `assert_*` panic at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    clippy::needless_pass_by_value,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on says so and stops"
)]

pub mod audit;
pub mod coderd;
pub mod daemons;
mod install;
mod operator;
pub mod plane;
pub mod pool;
pub mod pools;
pub mod proxy;
pub mod recorded;
pub mod scene;
pub mod scoped;
pub mod soak;
mod truth;
pub mod working_daemons;

use std::time::Duration;

pub use audit::{requests, writes};
pub use install::{Installation, apply, bare_cluster, grant};
pub use operator::{Operator, request};
pub use plane::{control_plane, planes};

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The flags of an operator that may end at any step: scaled intervals, and no lease that the next one waits for.
pub const CRASHING: &[&str] = &[
    "--leader-elect=false",
    "--entitlements-interval=2s",
    "--verify-interval=8s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=20s",
];

/// Faults that end the operator before and after each of these steps.
pub fn exits_around(steps: &[&str]) -> Vec<String> {
    let both = |step: &&str| ["before", "after"].map(|when| format!("{when} {step} / exit 1"));
    steps.iter().flat_map(both).collect()
}
