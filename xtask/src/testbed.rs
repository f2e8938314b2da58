//! Getting the programs of the test cluster, and running the tests with them.

use std::process::Command;

use anyhow::{Context, Result, bail};
use coder_k8s_testbed::{
    Binaries, Pace,
    binaries::{self, Progress},
    postgres,
};

use crate::{
    observability, programs,
    run::{cargo, must, say},
};

/// Gets the programs, building them if need be, with a line now and then for the person who waits.
pub(crate) fn get() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut pace = Pace::default();
    let binaries = runtime.block_on(Binaries::build(&mut |progress| tell(&mut pace, &progress)))?;
    let folder = binaries.kube_apiserver.parent().unwrap_or(&binaries.kube_apiserver);
    say(&format!("the cluster's programs are in {}", folder.display()));
    Ok(())
}

/// Prints the progress of a build, in a line now and then.
pub(crate) fn tell(pace: &mut Pace, progress: &Progress) {
    if pace.is_due(progress) {
        say(&progress.to_string());
    }
}

/// Gets the programs, and the real coderd and promtool if they are wanted.
pub(crate) fn get_all(with_coder: bool, with_promtool: bool) -> Result<()> {
    get()?;
    if with_promtool {
        observability::get_promtool()?;
    }
    if with_coder {
        let mut pace = Pace::default();
        get_coder(&mut |progress| tell(&mut pace, &progress))?;
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

/// Finds Postgres. `xtask/preflight` has installed it, or said how, before this was compiled.
pub(crate) fn get_postgres() -> Result<()> {
    let found = postgres::Programs::locate().context("the tests need Postgres")?;
    say(&format!("Postgres is {}", found.postgres.display()));
    Ok(())
}

/// Runs all tests, or those that arguments for `cargo test` choose.
pub(crate) fn test(args: &[String]) -> Result<()> {
    get_for_tests()?;
    if args.is_empty() {
        programs::run()?;
    } else {
        let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
        command.args(args);
        must(command)?;
    }
    say("all tests passed");
    Ok(())
}

/// Gets what the tests run besides the operator: a cluster's programs and a database server.
pub(crate) fn get_for_tests() -> Result<()> {
    get_postgres()?;
    get()
}

/// Gets Helm and runs the tests of the chart, or those with this in their name.
pub(crate) fn chart(filter: Option<&str>) -> Result<()> {
    get()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let helm = runtime.block_on(binaries::build_helm(&mut |progress| say(&progress.to_string())))?;
    say(&format!("Helm is {}", helm.display()));
    let mut command = cargo(&["test", "--package", "coder-k8s", "--features", "chart", "--test", "chart"]);
    command.args(filter).args(["--", "--nocapture"]);
    must(command)
}

/// Runs the campaign against leader election.
pub(crate) fn kills(count: u32) -> Result<()> {
    get()?;
    let test = "however_often_leaders_die_there_are_never_two_writers";
    let mut command =
        cargo(&["test", "--package", "coder-k8s", "--test", "runtime", test, "--", "--nocapture"]);
    command.env("CODER_K8S_KILLS", count.to_string());
    must(command)
}

/// Lets this build take over from an earlier one.
pub(crate) fn upgrade(binary: &std::path::Path) -> Result<()> {
    let binary = binary.canonicalize().with_context(|| format!("cannot find {}", binary.display()))?;
    let help = Command::new(&binary).args(["dev", "--help"]).output();
    if !help.with_context(|| format!("cannot run {}", binary.display()))?.status.success() {
        bail!(
            "{} was built without the feature `dev`, and would find no simulated coderd: build it with `cargo build` at that \
             commit",
            binary.display()
        );
    }
    get()?;
    let mut command =
        cargo(&["test", "--package", "coder-k8s", "--features", "upgrade", "--test", "upgrade"]);
    command.args(["--", "--nocapture"]).env("CODER_K8S_EARLIER_BINARY", binary);
    must(command)
}
