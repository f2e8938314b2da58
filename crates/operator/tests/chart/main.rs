//! The Helm chart, with real Helm against a real API server. `cargo xtask chart` gets Helm and runs this.
//!
//! `values` renders a table of values and has the API server check every object. `life` installs the chart and lets the
//! operator live under exactly the RBAC of the chart. `moves` upgrades, adopts, uninstalls and installs again.

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

mod helm;
mod life;
mod moves;
mod refusals;
mod rows;
mod same;
mod values;
