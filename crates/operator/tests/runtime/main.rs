//! The operator as a process, whatever its objects are: command line, rights, kinds that come and go, restarts, leader
//! election, and what it costs at rest.

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

mod book;
mod cli;
mod dev;
mod edges;
mod kinds;
mod leader;
mod memory;
mod outage;
mod rest;
mod rights;
mod roots;
mod secrets;
