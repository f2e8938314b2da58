//! Test support: a real Kubernetes control plane on loopback, for tests and for `coder-k8s dev`.
//!
//! [`Cluster`] runs etcd, kube-apiserver and kube-controller-manager as ordinary processes, and [`Node`] plays the
//! kubelet. The programs come from [`Binaries`]. The API server is not simulated: RBAC, admission, garbage collection
//! and rollouts are real. Processes and files are removed when the process that started them ends, however it ends.
//!
//! [`Postgres`] runs a real database server in the same way. [`CoderSim`] is an HTTP server with the semantics of
//! coderd, and [`contract`] is the list of checks that both the simulator and a real coderd must pass. The crate is a
//! dev-dependency only.

mod audit;
pub mod binaries;
pub mod cluster;
pub mod codersim;
pub mod contract;
mod eventually;
pub mod memory;
pub mod metrics_lint;
pub mod node;
pub mod observability;
mod pki;
mod ports;
pub mod postgres;
mod process;
pub mod promql;
mod rundir;
mod shared;
mod user;

pub use audit::AuditEvent;
pub use binaries::{Binaries, Pace, Progress, Sources, Stage};
pub use cluster::{Builder, Cluster};
pub use codersim::CoderSim;
pub use eventually::{TimedOut, eventually};
pub use memory::Memory;
pub use node::{Behaviour, Exit, Node, Program, Resolver, Rule};
pub use ports::own_address;
pub use postgres::Postgres;
pub use shared::{Namespace, Shared, SharedCluster, shared, shared_with};
