//! The testbed against the real components. One binary, so that most tests share one cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "everything here is a test, its helper functions too"
)]

mod access;
mod alike;
mod api_server;
mod crash;
mod garbage_collection;
mod isolation;
mod postgres;
mod processes;
mod start_up;
mod widget;
mod workloads;

use std::time::Duration;

use coder_k8s_testbed::{Shared, shared_with};
use tokio::sync::{Mutex, MutexGuard};

/// Long enough for a busy machine; a test that passes never waits that long.
const SOON: Duration = Duration::from_mins(1);

async fn shared() -> &'static Shared {
    shared_with(|| vec![widget::crd()]).await
}

/// Held by tests that start clusters of their own: a small machine starts them faster one by one.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}
