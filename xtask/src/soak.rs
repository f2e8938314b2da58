//! Random lives of the operator.

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    programs::{MONITOR_REPORT, monitor_report, say_judged},
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

/// How many lives all are.
const IN_MEMORY: u64 = 500;
const ON_CLUSTER: u64 = 100;

/// Lives one seed, or so many from the first.
pub(crate) fn run(seed: Option<u64>, first: u64, count: Option<u64>, on: Option<On>) -> Result<()> {
    // Every tenth life has a database.
    testbed::get_for_tests()?;
    let places = match (on, seed) {
        (Some(on), _) => vec![on],
        (None, Some(_)) => vec![On::Memory],
        (None, None) => vec![On::Memory, On::Cluster],
    };
    let report = monitor_report();
    for on in places {
        let (test, all) = match on {
            On::Memory => ("lives_in_memory_end_well", IN_MEMORY),
            On::Cluster => ("lives_on_a_cluster_end_well", ON_CLUSTER),
        };
        let mut command = cargo(&["test", "-p", "coder-k8s", "--test", "soak", test, "--", "--nocapture"]);
        command.env(MONITOR_REPORT, &report);
        match seed {
            Some(seed) => command.env("CODER_K8S_SOAK_SEED", seed.to_string()),
            None => command
                .env("CODER_K8S_SOAK_FIRST", first.to_string())
                .env("CODER_K8S_SOAK_COUNT", count.unwrap_or(all).to_string()),
        };
        must(command)?;
    }
    say_judged(&report);
    say("soak: every life ended well");
    Ok(())
}
