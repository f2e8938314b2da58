//! Running all tests: their programs side by side, because each has a long end in which a few tests wait for something.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    rights,
    run::{cargo, must, say},
};

/// How many tests of one program run at a time.
const THREADS: &str = "RUST_TEST_THREADS";
/// How lazily programs in Go collect garbage: clusters of tests live for seconds, and a tenth of what they compute at
/// their start would be that.
const GARBAGE: &str = "GOGC";
/// How many programs run at a time.
const LANES: usize = 2;
/// Programs that keep a machine busy by themselves, or measure it, and run alone at last.
const ALONE: [&str; 3] = ["adversary", "soak", "sweep"];
/// Those that take longest, which begin first.
const LONG: [&str; 5] = ["operator_access", "provisioners", "runtime", "workspace_proxies", "control_planes"];

/// The file to which the monitors of the tests add what they judged (`codersim::REPORT_FILE` of the testbed).
pub(crate) const MONITOR_REPORT: &str = "CODER_K8S_MONITOR_REPORT";

/// A program with tests.
#[derive(Debug)]
struct Program {
    /// The package, and the target if that has another name. Written before its lines.
    name: String,
    target: String,
    executable: PathBuf,
    /// The folder of its package, which tests expect to run in.
    folder: PathBuf,
}

/// How a program ended.
struct Outcome {
    name: String,
    passed: bool,
    /// What operators did in it.
    used: BTreeSet<rights::Use>,
    /// What the program wrote of tests that failed.
    failures: Vec<String>,
    took: Duration,
}

/// Builds all tests and runs them.
pub(crate) fn run() -> Result<()> {
    let programs = build()?;
    let report = monitor_report();
    let (alone, mut beside): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| ALONE.contains(&program.target.as_str()));
    let rank = |program: &Program| LONG.iter().position(|name| *name == program.target).unwrap_or(LONG.len());
    // The queue is taken from its end.
    beside.sort_by_key(|program| std::cmp::Reverse(rank(program)));
    let mut outcomes = run_all(beside, LANES, &report);
    outcomes.extend(run_all(alone, 1, &report));
    let examples = must(cargo(&["test", "--workspace", "--doc"])).context("examples in documentation");
    for Outcome { name, passed, took, .. } in &outcomes {
        let word = if *passed { "passed" } else { "FAILED" };
        say(&format!("{name}: {word} in {:.0} s", took.as_secs_f64()));
    }
    say_judged(&report);
    let (told, rights) = rights::judge(&outcomes.iter().flat_map(|outcome| outcome.used.clone()).collect());
    say(&told);
    let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.passed).collect();
    // Once more at the end, where people look for it.
    for Outcome { name, failures, .. } in &failed {
        for line in failures {
            say(&format!("{name}: {line}"));
        }
    }
    if !failed.is_empty() {
        let names: Vec<_> = failed.iter().map(|outcome| outcome.name.as_str()).collect();
        bail!("tests failed in {}", names.join(", "));
    }
    rights.and(examples)
}

/// A file for [`MONITOR_REPORT`].
pub(crate) fn monitor_report() -> PathBuf {
    std::env::temp_dir().join(format!("coder-k8s-monitors-{}", std::process::id()))
}

/// Says what the monitors judged, and removes their file.
pub(crate) fn say_judged(report: &Path) {
    say(&judged(&fs::read_to_string(report).unwrap_or_default()));
    let _ = fs::remove_file(report);
}

/// What the monitors judged in all programs. Each line has what was judged, how many, and how many violations.
fn judged(report: &str) -> String {
    let mut sums = BTreeMap::<&str, (u64, u64)>::new();
    for line in report.lines() {
        let mut words = line.split(' ');
        if let (Some(what), Some(judged), Some(violations)) = (words.next(), words.next(), words.next()) {
            let sum = sums.entry(what).or_default();
            sum.0 += judged.parse::<u64>().unwrap_or_default();
            sum.1 += violations.parse::<u64>().unwrap_or_default();
        }
    }
    let shown = |what: &str| {
        let (judged, violations) = sums.get(what).copied().unwrap_or_default();
        format!("{judged} ({violations} violations)")
    };
    format!(
        "monitors: versions of objects {}, requests with a credential {}",
        shown("versions"),
        shown("requests")
    )
}

/// A line that cargo writes about a build.
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

fn build() -> Result<Vec<Program>> {
    let mut command = cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo test")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| program(serde_json::from_str(line).ok()?)).collect())
}

fn program(built: Built) -> Option<Program> {
    let (target, executable) = (built.target?.name, built.executable?);
    let folder = built.manifest_path?.parent()?.to_path_buf();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    built.profile.filter(|profile| profile.test)?;
    let name = if target.replace('_', "-").ends_with(&package) {
        target.clone()
    } else {
        format!("{package}/{target}")
    };
    Some(Program { name, target, executable, folder })
}

/// Runs programs, so many at a time, the last of the list first.
fn run_all(programs: Vec<Program>, lanes: usize, report: &Path) -> Vec<Outcome> {
    let cores = thread::available_parallelism().map_or(2, std::num::NonZero::get);
    // Most tests wait for something most of the time.
    let threads = std::env::var(THREADS).unwrap_or_else(|_| (3 * cores / lanes).to_string());
    let (queue, outcomes) = (Mutex::new(programs), Mutex::new(Vec::new()));
    let next = || queue.lock().ok()?.pop();
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let began = Instant::now();
                    let (passed, failures, used) =
                        perform(&program, &threads, report).unwrap_or_else(|error| {
                            say(&format!("{}: {error:#}", program.name));
                            (false, Vec::new(), BTreeSet::new())
                        });
                    let took = began.elapsed();
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(Outcome { name: program.name, passed, used, failures, took });
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

/// Runs a program and shows its lines as they come. Returns whether all its tests passed, what it wrote of those that did
/// not, and what operators did in it.
fn perform(
    program: &Program,
    threads: &str,
    report: &Path,
) -> Result<(bool, Vec<String>, BTreeSet<rights::Use>)> {
    let Program { name, executable, folder, .. } = program;
    let mut command = Command::new(executable);
    let logs = report.with_extension(name.replace('/', "-"));
    fs::create_dir_all(&logs)?;
    command.env(THREADS, threads).env(MONITOR_REPORT, report).env(rights::AUDIT_LOGS, &logs);
    command.current_dir(folder);
    if std::env::var_os(GARBAGE).is_none() {
        command.env(GARBAGE, "400");
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", Path::new(executable).display()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let failures = thread::scope(|scope| {
        scope.spawn(|| show(name, err, |_| {}));
        let mut failures = Failures::default();
        show(name, out, |line| failures.add(line));
        failures.lines
    });
    let passed = child.wait()?.success();
    let used = rights::used(&logs);
    let _ = fs::remove_dir_all(&logs);
    Ok((passed, failures, used?))
}

fn show(name: &str, lines: Option<impl Read>, mut then: impl FnMut(&str)) {
    let lines = lines.map(|lines| BufReader::new(lines).split(b'\n'));
    for line in lines.into_iter().flatten().map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !line.is_empty() {
            say(&format!("{name}: {line}"));
            then(&line);
        }
    }
}

/// The lines of a program about tests that failed: all that follow the word, without the frames of backtraces.
#[derive(Default)]
struct Failures {
    began: bool,
    in_backtrace: bool,
    lines: Vec<String>,
}

impl Failures {
    fn add(&mut self, line: &str) {
        self.in_backtrace = match line {
            "stack backtrace:" => true,
            _ => self.in_backtrace && !line.starts_with("note: ") && !line.starts_with("---- "),
        };
        if self.began && !self.in_backtrace {
            self.lines.push(line.to_owned());
        }
        self.began |= line == "failures:";
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, judged};

    #[test]
    fn what_the_monitors_judged_is_summed_by_kind() {
        let report = "versions 3 0\nrequests 2 1\nversions 4 0\n";
        assert_eq!(
            judged(report),
            "monitors: versions of objects 7 (0 violations), requests with a credential 2 (1 violations)"
        );
    }

    #[test]
    fn failures_are_shown_without_backtraces() {
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
            failures.add(line);
        }
        assert_eq!(failures.lines, [lines[2], lines[3], lines[6], lines[7], lines[8], lines[9]]);
    }
}
