//! Running all tests: their programs two at a time, because each has a long end in which a few tests wait for something.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::run::{cargo, must, say};

/// How many tests of one program run at a time.
const THREADS: &str = "RUST_TEST_THREADS";
/// How lazily programs in Go collect garbage: clusters of tests live for seconds, and a tenth of what they compute at
/// their start would be that.
const COLLECTING: &str = "GOGC";
/// How many programs run at a time.
const LANES: usize = 2;
/// Programs that keep a machine busy by themselves, and run alone at last.
const ALONE: [&str; 1] = ["soak"];
/// Those that take longest, which begin first.
const LONG: [&str; 6] = ["coderd", "it", "provisioner", "proxies", "controlplane", "pools"];

/// A program with tests.
#[derive(Debug)]
struct Suite {
    /// What it is called before its lines: the package, and the target if that is called otherwise.
    called: String,
    target: String,
    program: PathBuf,
    /// The folder of its package.
    folder: PathBuf,
}

/// How a program ended.
struct Ended {
    called: String,
    verdict: Verdict,
    took: Duration,
}

/// Whether all tests of a program passed, and what it told of those that did not.
#[derive(Default)]
struct Verdict {
    well: bool,
    failures: Vec<String>,
}

/// Builds all tests and runs them.
pub(crate) fn run() -> Result<()> {
    let suites = build()?;
    let (alone, mut beside): (Vec<_>, Vec<_>) =
        suites.into_iter().partition(|suite| ALONE.contains(&suite.target.as_str()));
    let rank = |suite: &Suite| LONG.iter().position(|name| *name == suite.target).unwrap_or(LONG.len());
    // The queue is taken from its end.
    beside.sort_by_key(|suite| std::cmp::Reverse(rank(suite)));
    let mut ended = in_lanes(beside, LANES);
    ended.extend(in_lanes(alone, 1));
    let examples = must(cargo(&["test", "--workspace", "--doc"])).context("examples in documentation");
    for Ended { called, verdict, took } in &ended {
        let word = if verdict.well { "passed" } else { "FAILED" };
        say(&format!("{called}: {word} in {:.0} s", took.as_secs_f64()));
    }
    let failed: Vec<_> = ended.iter().filter(|ended| !ended.verdict.well).collect();
    // Once more at the end, where it is looked for.
    for Ended { called, verdict, .. } in &failed {
        for line in &verdict.failures {
            say(&format!("{called}: {line}"));
        }
    }
    if !failed.is_empty() {
        let names: Vec<_> = failed.iter().map(|ended| ended.called.as_str()).collect();
        bail!("tests failed in {}", names.join(", "));
    }
    examples
}

/// A line of what cargo tells of a build.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn build() -> Result<Vec<Suite>> {
    let mut command = cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo test")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| suite(serde_json::from_str(line).ok()?)).collect())
}

fn suite(built: Built) -> Option<Suite> {
    let (target, program) = (built.target?.name, built.executable?);
    let folder = built.manifest_path?.parent()?.to_path_buf();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    built.profile.filter(|profile| profile.test)?;
    let called = if target.replace('_', "-").ends_with(&package) {
        target.clone()
    } else {
        format!("{package}/{target}")
    };
    Some(Suite { called, target, program, folder })
}

/// Runs programs, so many at a time, the last of the list first.
fn in_lanes(suites: Vec<Suite>, lanes: usize) -> Vec<Ended> {
    let cores = thread::available_parallelism().map_or(2, std::num::NonZero::get);
    // Most tests wait for something most of the time.
    let threads = std::env::var(THREADS).unwrap_or_else(|_| (3 * cores / lanes).to_string());
    let (queue, ended) = (Mutex::new(suites), Mutex::new(Vec::new()));
    let next = || queue.lock().ok()?.pop();
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(suite) = next() {
                    let began = Instant::now();
                    let verdict = perform(&suite, &threads).unwrap_or_else(|error| {
                        say(&format!("{}: {error:#}", suite.called));
                        Verdict::default()
                    });
                    let took = began.elapsed();
                    if let Ok(mut ended) = ended.lock() {
                        ended.push(Ended { called: suite.called, verdict, took });
                    }
                }
            });
        }
    });
    ended.into_inner().unwrap_or_default()
}

/// Runs a program, its lines shown as they come.
fn perform(suite: &Suite, threads: &str) -> Result<Verdict> {
    let Suite { called, program, folder, .. } = suite;
    let mut command = Command::new(program);
    command.env(THREADS, threads).current_dir(folder);
    if std::env::var_os(COLLECTING).is_none() {
        command.env(COLLECTING, "400");
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", Path::new(program).display()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let failures = thread::scope(|scope| {
        scope.spawn(|| show(called, err, |_| {}));
        let mut failures = Failures::default();
        show(called, out, |line| failures.hear(line));
        failures.told
    });
    Ok(Verdict { well: child.wait()?.success(), failures })
}

fn show(called: &str, lines: Option<impl Read>, mut hear: impl FnMut(&str)) {
    let lines = lines.map(|lines| BufReader::new(lines).split(b'\n'));
    for line in lines.into_iter().flatten().map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !line.is_empty() {
            say(&format!("{called}: {line}"));
            hear(&line);
        }
    }
}

/// What a program tells of tests that failed: all that follows the word, without the frames of backtraces.
#[derive(Default)]
struct Failures {
    began: bool,
    in_backtrace: bool,
    told: Vec<String>,
}

impl Failures {
    fn hear(&mut self, line: &str) {
        self.in_backtrace = match line {
            "stack backtrace:" => true,
            _ => self.in_backtrace && !line.starts_with("note: ") && !line.starts_with("---- "),
        };
        if self.began && !self.in_backtrace {
            self.told.push(line.to_owned());
        }
        self.began |= line == "failures:";
    }
}

#[cfg(test)]
mod tests {
    use super::Failures;

    #[test]
    fn what_failed_is_told_without_backtraces() {
        let lines = [
            "test a ... FAILED",
            "failures:",
            "---- a stdout ----",
            "thread 'a' panicked at a.rs:1:1:",
            "stack backtrace:",
            "   0: rust_begin_unwind",
            "note: Some details are omitted",
            "---- b stdout ----",
            "failures:",
            "    a",
        ];
        let mut failures = Failures::default();
        for line in lines {
            failures.hear(line);
        }
        assert_eq!(failures.told, [lines[2], lines[3], lines[6], lines[7], lines[8], lines[9]]);
    }
}
