//! Alerts and dashboard, checked with promtool and against a running operator.

use anyhow::Result;
use coder_k8s_testbed::binaries;

use crate::{
    run::{cargo, must, say},
    testbed,
};

/// Gets the cluster's programs and promtool, and runs the tests.
pub(crate) fn run() -> Result<()> {
    testbed::get()?;
    get_promtool()?;
    let mut command =
        cargo(&["test", "--package", "coder-k8s", "--features", "observability", "--test", "observability"]);
    command.args(["--", "--nocapture"]);
    must(command)?;
    say("observability: everything passed");
    Ok(())
}

/// Gets promtool, building it if need be.
pub(crate) fn get_promtool() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let promtool = runtime.block_on(binaries::build_promtool(&mut |progress| say(&progress.to_string())))?;
    say(&format!("promtool is {}", promtool.display()));
    Ok(())
}
