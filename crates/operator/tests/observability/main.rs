//! Alerts and dashboard against promtool and against what a running operator exports.
//!
//! Run by `cargo xtask observability`, which gets promtool. `rules`: the alerts are valid, and each fires and resolves as
//! the tests in `config/observability/tests` say. `scrape`: everything that alerts, their tests and the dashboard name is
//! exported by an operator at work, promtool finds nothing wrong with it, and each query of the dashboard finds something
//! in it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "everything here is a test, its helper functions too"
)]

mod rules;
mod scrape;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use coder_k8s_testbed::{binaries::locate_promtool, observability::Alert};
use serde_json::Value;

/// The folder with alerts, tests and dashboard.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/observability")
}

fn alerts() -> Vec<Alert> {
    let yaml = fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    coder_k8s_testbed::observability::alerts(&yaml).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(folder().join("dashboard.json")).unwrap()).unwrap()
}

/// The tests of the alerts, in order.
fn test_files() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder().join("tests")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Runs promtool. Returns whether it was content, and what it wrote.
fn promtool<'a>(args: impl IntoIterator<Item = &'a str>, files: &[PathBuf], input: &str) -> (bool, String) {
    let program = locate_promtool().unwrap_or_else(|error| panic!("{error}"));
    let mut child = Command::new(program)
        .args(args)
        .args(files)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}
