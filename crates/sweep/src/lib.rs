//! The fault sweep: an operator is killed at each of its effects, starved and misled, and must end as if nothing had happened.
//!
//! Every case is a [`scenario`] on a [`stage`] of its own: a namespace of one real cluster, a simulated coderd, and an operator
//! process that reaches them through proxies. A first case of each scenario without a fault shows its effects and its end; the
//! others are enumerated from it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::large_futures,
    reason = "a case that cannot go on says so and fails alone"
)]

mod case;
mod cases;
mod effect;
mod misoperation;
mod property;
mod proxy;
mod report;
mod scenario;
mod snapshot;
mod sql;
mod stage;

pub use cases::{Args, run};
