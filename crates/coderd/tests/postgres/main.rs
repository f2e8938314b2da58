//! The operator's account against a real Postgres with coderd's real migrations.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "everything here is a test, its helper functions too"
)]

mod faults;
mod hostile;
mod lifecycle;
mod people;
mod releases;
mod scene;
mod secrecy;
mod takeover;
mod tls;
