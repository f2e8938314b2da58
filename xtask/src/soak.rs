//! Random lives of the operator.

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    run::{cargo, must, say},
    testbed,
};

/// Where lives are lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// An API server in memory.
    Memory,
    /// A real API server, etcd and controller-manager.
    Cluster,
}

/// Lives one seed, or so many from the first.
pub(crate) fn run(seed: Option<u64>, first: u64, count: u64, on: On) -> Result<()> {
    // Every fifth life has a database.
    testbed::get_for_tests()?;
    let test = match on {
        On::Memory => "lives_in_memory_end_well",
        On::Cluster => "lives_on_a_cluster_end_well",
    };
    let mut command = cargo(&["test", "-p", "coder-k8s", "--test", "soak", test, "--", "--nocapture"]);
    match seed {
        Some(seed) => command.env("CODER_K8S_SOAK_SEED", seed.to_string()),
        None => command
            .env("CODER_K8S_SOAK_FIRST", first.to_string())
            .env("CODER_K8S_SOAK_COUNT", count.to_string()),
    };
    must(command)?;
    say("soak: every life ended well");
    Ok(())
}
