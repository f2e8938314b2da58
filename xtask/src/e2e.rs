//! The end-to-end tier: everything real, got and run by one command.

use std::time::{Duration, Instant};

use anyhow::Result;
use coder_k8s_testbed::{Pace, Stage};

use crate::{
    run::{cargo, must, say},
    testbed,
};

/// Gets the cluster's programs, coderd and Postgres, runs the tests, and says how long each took.
pub(crate) fn run(filter: Option<&str>) -> Result<()> {
    let mut times = Times::default();
    testbed::get_postgres()?;
    times.note("cluster's programs", testbed::get)?;

    let began = Instant::now();
    let (mut compiling, mut pace) = (None, Pace::default());
    testbed::get_coder(&mut |progress| {
        if matches!(progress.stage, Stage::Compiling | Stage::Linking) {
            compiling.get_or_insert_with(Instant::now);
        }
        testbed::tell(&mut pace, &progress);
    })?;
    let downloaded = compiling.unwrap_or_else(Instant::now);
    times.add("download of coder", downloaded - began);
    times.add("build of coder", downloaded.elapsed());

    let target = ["--package", "coder-k8s", "--features", "e2e", "--test", "e2e"];
    times.note("build of the tests", || must(cargo(&[&["test", "--no-run"], &target[..]].concat())))?;
    let outcome = times.note("tests", || {
        let mut command = cargo(&[&["test"], &target[..]].concat());
        command.args(filter);
        must(command)
    });
    times.show();
    say(match (&outcome, filter) {
        (Err(_), _) => "end to end: FAILED",
        (Ok(()), None) => "end to end: everything passed",
        (Ok(()), Some(_)) => "end to end: the chosen tests passed",
    });
    outcome
}

/// How long each part took.
#[derive(Default)]
struct Times(Vec<(&'static str, Duration)>);

impl Times {
    fn note(&mut self, part: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let began = Instant::now();
        let outcome = work();
        self.add(part, began.elapsed());
        outcome
    }

    fn add(&mut self, part: &'static str, time: Duration) {
        self.0.push((part, time));
    }

    fn show(&self) {
        for (part, time) in &self.0 {
            say(&format!("{part:>20}: {:>7.1} s", time.as_secs_f32()));
        }
    }
}
