//! A real Kubernetes control plane on loopback, for tests and for `coder-k8s dev`.
//!
//! [`Cluster`] runs etcd, kube-apiserver and kube-controller-manager as ordinary processes, and [`Node`] plays
//! the kubelet. The programs come from [`Binaries`]. Nothing is simulated in the API server: RBAC, admission,
//! garbage collection and rollouts are the real ones. Nothing is left behind: processes and files go away with
//! the process that started them, however it ends.
//!
//! [`Postgres`] is a real database server, in the same way.
//!
//! [`CoderSim`] speaks coderd's HTTP with its real semantics, and [`contract`] is the list of checks that holds it
//! and the real coderd to the same behaviour.

mod audit;
pub mod binaries;
pub mod cluster;
pub mod codersim;
pub mod contract;
mod eventually;
pub mod memory;
pub mod node;
mod pki;
mod ports;
pub mod postgres;
mod process;
mod rundir;
mod shared;
mod user;

pub use audit::AuditEvent;
pub use binaries::{Binaries, Progress, Sources, Stage};
pub use cluster::{Builder, Cluster};
pub use codersim::CoderSim;
pub use eventually::{TimedOut, eventually};
pub use memory::Memory;
pub use node::{Behaviour, Exit, Node, Program, Resolver, Rule};
pub use postgres::Postgres;
pub use shared::{Namespace, Shared, SharedCluster, shared, shared_with};
