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
