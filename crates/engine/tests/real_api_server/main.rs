//! The engine on the real API server. One test program, so that its tests share one cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod apply;
mod secret;
mod watches;
