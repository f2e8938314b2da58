//! Fuzzing of everything that parses foreign bytes, on stable Rust.
//!
//! A run mutates the inputs of a corpus, seeded, so that a run can be repeated. There is no instrumentation: an input joins
//! the pool when its outcome is one that the run has not seen, such as another error. Every input is held to a bound of CPU
//! time and of memory, and no input may panic. The corpus in `corpus/<target>` is read when the program runs; an input that
//! once failed belongs there.

mod mutation;
mod targets;

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    fmt,
    hash::{Hash, Hasher},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::Duration,
};

use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};

pub use targets::{TARGETS, Target};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Longest input that mutations make.
const MAX_INPUT: usize = 64 * 1024;
/// The most CPU time of one input, in a build without optimizations.
const MAX_CPU: Duration = Duration::from_millis(500);
/// The most memory of one input: this, and [`MEMORY_FACTOR`] times its size.
const MEMORY_BASE: usize = 4 * 1024 * 1024;
/// An object of one entry takes this much more than its text, see `MAX_ANSWER_VALUES` of the client.
const MEMORY_FACTOR: usize = 200;

/// What a run of one target came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Inputs that were run.
    pub executions: u64,
    /// Different outcomes.
    pub outcomes: usize,
    /// CPU time and size of the slowest input.
    pub slowest: (Duration, usize),
    /// Memory and size of the input that needed most.
    pub largest: (usize, usize),
    /// Why inputs failed, with the input. At most ten.
    pub failures: Vec<(String, Vec<u8>)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { executions, outcomes, slowest, largest, failures } = self;
        write!(
            f,
            "{executions} executions, {} failures, {outcomes} outcomes, slowest {:?} for {} bytes, largest {} KiB for {} bytes",
            failures.len(),
            slowest.0,
            slowest.1,
            largest.0 / 1024,
            largest.1
        )
    }
}

/// Runs the corpus of a target, then mutations of it, until `executions` are done or ten inputs have failed.
pub fn run(target: &Target, executions: u64, seed: u64) -> io::Result<Report> {
    let mut pool = corpus(target)?;
    let (mut random, mut seen) = (fastrand::Rng::with_seed(seed), HashSet::new());
    let mut report = Report::default();
    let mut replayed = pool.clone().into_iter();
    while report.executions < executions && report.failures.len() < 10 {
        let kept = replayed.next();
        let is_kept = kept.is_some();
        let input = kept.unwrap_or_else(|| mutation::mutate(&pool, &mut random, MAX_INPUT));
        let is_new = seen.insert(class(&report.record(target, &input)));
        if is_new && !is_kept {
            pool.push(input);
        }
    }
    report.outcomes = seen.len();
    Ok(report)
}

impl Report {
    /// Runs one input and records what it cost. Returns its outcome.
    fn record(&mut self, target: &Target, input: &[u8]) -> String {
        let (before, started) = (cpu(), PeakAlloc.current_usage());
        PeakAlloc.reset_peak_usage();
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        let (took, grown) = (cpu().saturating_sub(before), PeakAlloc.peak_usage().saturating_sub(started));
        self.executions += 1;
        self.slowest = self.slowest.max((took, input.len()));
        self.largest = self.largest.max((grown, input.len()));
        let outcome = outcome.unwrap_or_else(|_| {
            self.failures.push(("it panicked".to_owned(), input.to_owned()));
            "panic".to_owned()
        });
        if took > MAX_CPU {
            self.failures.push((format!("it took {took:?}"), input.to_owned()));
        }
        if grown > MEMORY_BASE + MEMORY_FACTOR * input.len() {
            self.failures.push((format!("it took {} KiB", grown / 1024), input.to_owned()));
        }
        outcome
    }
}

/// The CPU time of this thread: other programs on the machine do not count.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The outcome without its numbers, of which there are too many to tell apart.
fn class(outcome: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    outcome.chars().filter(|c| !c.is_ascii_digit()).take(400).for_each(|c| c.hash(&mut hash));
    hash.finish()
}

fn corpus(target: &Target) -> io::Result<Vec<Vec<u8>>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> =
        std::fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<io::Result<_>>()?;
    files.sort();
    files.iter().map(std::fs::read).collect()
}
