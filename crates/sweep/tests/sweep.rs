//! A sample of the sweep. `cargo xtask sweep --full` plays all cases.

#![expect(clippy::panic_in_result_fn, reason = "a test")]

use clap::Parser as _;
use coder_k8s_sweep::{Args, run};

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_of_the_sweep_holds() -> Result<(), clap::Error> {
    let args = Args::try_parse_from(["sweep", "--quick"])?;
    assert!(run(&args).await == std::process::ExitCode::SUCCESS, "see the cases above");
    Ok(())
}

/// Cases in which an operator once failed.
#[tokio::test(flavor = "multi_thread")]
async fn what_failed_once_holds() -> Result<(), clap::Error> {
    for case in [
        "pool-deleted / reply-lost: delete deployments provisioner-pool#0",
        "pool-secret-deleted / storm-500: 92",
        "license-rotated / storm-mixed: 769",
    ] {
        let scenario = case.split(" / ").next().unwrap_or_default();
        let args = Args::try_parse_from(["sweep", "--scenario", scenario, "--case", case])?;
        assert!(run(&args).await == std::process::ExitCode::SUCCESS, "{case}: see above");
    }
    Ok(())
}
