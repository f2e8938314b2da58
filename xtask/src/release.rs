//! What must hold before a release and takes too long for every change.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{
    book, dependencies, dist, e2e, observability,
    run::{cargo, must, say, target},
    soak, testbed,
};

/// What it is called, and what it does.
type Step = (&'static str, fn() -> Result<()>);

/// Runs every step, also after one that failed, and says how each ended.
pub(crate) fn check() -> Result<()> {
    let steps: [Step; 10] = [
        ("dependencies and advisories", dependencies::deny),
        ("book", book::build),
        ("release build", build),
        ("tests of the released program", test_released),
        ("chart", || testbed::chart(None)),
        ("release artefacts", dist::release_check),
        ("alerts and dashboard", observability::run),
        ("end to end", || e2e::run(None)),
        ("soak", || soak::run(None, 0, None, None)),
        ("sweep", || crate::sweep(&[])),
    ];
    let outcomes = steps.map(|(name, step)| {
        say(&format!("== {name}"));
        let began = Instant::now();
        (name, step(), began.elapsed())
    });
    for (name, outcome, took) in &outcomes {
        let word = match outcome {
            Ok(()) => "passed".to_owned(),
            Err(error) => format!("FAILED: {error:#}"),
        };
        say(&format!("{name}: {word} ({} s)", took.as_secs()));
    }
    if outcomes.iter().any(|(_, outcome, _)| outcome.is_err()) {
        bail!("this is not fit for a release");
    }
    say("release check: everything passed");
    Ok(())
}

fn build() -> Result<()> {
    must(cargo(&["build", "--release", "--package", "coder-k8s"]))?;
    let program = target()?.join("release/coder-k8s");
    let size = program.metadata().context("the release build left no program")?.len();
    say(&format!("the stripped program has {} KiB", size / 1024));
    Ok(())
}

/// The suites that start the operator as a process, with the released program.
fn test_released() -> Result<()> {
    let mut command =
        cargo(&["test", "--package", "coder-k8s", "--test", "runtime", "--test", "control_planes"]);
    command.env("CODER_K8S_BINARY", target()?.join("release/coder-k8s"));
    must(command)
}
