//! A short run of every target. `cargo xtask fuzz` runs a long one.

#![allow(clippy::unwrap_used, reason = "everything here is a test")]

use coder_k8s_fuzz::{TARGETS, run};

/// A few seconds in all.
const EXECUTIONS: u64 = 5_000;

/// One test for all targets, because memory is measured for the whole process.
#[test]
fn no_foreign_bytes_break_a_bound() {
    for target in &TARGETS {
        let report = run(target, EXECUTIONS, 1).unwrap();
        let failures: Vec<_> =
            report.failures.iter().map(|(why, input)| (why, input.escape_ascii().to_string())).collect();
        assert!(failures.is_empty(), "{}: {failures:?}", target.name);
        assert!(report.outcomes > 1, "{}: every input came to the same", target.name);
    }
}
