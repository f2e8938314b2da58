//! Getting the programs of the test cluster, and running the tests with them.

use anyhow::Result;
use coder_k8s_testbed::{
    Binaries,
    binaries::{self, Progress},
};

use crate::run::{cargo, must, say};

/// Gets the programs, building them if need be, with a line now and then for the person who waits.
pub(crate) fn get() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let binaries = runtime.block_on(Binaries::build(&mut |progress| say(&progress.to_string())))?;
    let folder = binaries.kube_apiserver.parent().unwrap_or(&binaries.kube_apiserver);
    say(&format!("the cluster's programs are in {}", folder.display()));
    Ok(())
}

/// Gets the programs, and the real coderd if that is wanted.
pub(crate) fn get_all(with_coder: bool) -> Result<()> {
    get()?;
    if with_coder {
        get_coder(&mut |progress| say(&progress.to_string()))?;
    }
    Ok(())
}

/// Gets the real coderd, building it if need be.
pub(crate) fn get_coder(tell: &mut dyn FnMut(Progress)) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let coder = runtime.block_on(binaries::build_coder(tell))?;
    say(&format!("the real coderd is {}", coder.display()));
    Ok(())
}

/// Runs all tests.
pub(crate) fn test(args: &[String]) -> Result<()> {
    get()?;
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(args);
    must(command)?;
    say("all tests passed");
    Ok(())
}

/// Runs the campaign against leader election.
pub(crate) fn kills(count: u32) -> Result<()> {
    get()?;
    let test = "however_often_leaders_die_there_are_never_two_writers";
    let mut command =
        cargo(&["test", "--package", "coder-k8s", "--test", "leader", test, "--", "--nocapture"]);
    command.env("CODER_K8S_KILLS", count.to_string());
    must(command)
}
