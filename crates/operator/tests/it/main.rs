//! The operator as a process, against the real API server. One binary: it links once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod cli;
mod dev;
mod edges;
mod kinds;
mod memory;
mod rest;
mod rights;
mod secrets;
#[path = "../support/mod.rs"]
mod support;
