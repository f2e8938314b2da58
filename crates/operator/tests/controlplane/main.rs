//! Scenarios of a CoderControlPlane: the operator as a process, with exactly its rights, against the real API server and
//! controller-manager, with a node that reports pods.
//!
//! One cluster and one operator for all tests that only need a namespace; those that disturb either have their own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "everything here is a test, its helper functions too"
)]

mod basics;
mod children;
mod deployment;
mod errors;
mod exposure;
mod kstatus;
mod ownership;
mod pause;
mod scene;
mod service_account;
#[path = "../support/mod.rs"]
mod support;
mod takeover;
mod tls;
mod workspaces;

/// How the operator that tests share is started.
const OPERATOR: &[&str] = &["--log-level=info,coder_k8s=debug"];
