//! Progress of a build, as data and as one line for people.

use std::fmt;
use std::time::Duration;

/// Stage of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Another process builds, and this one waits for it.
    Waiting,
    /// Go downloads modules.
    Downloading,
    /// Go compiles packages.
    Compiling,
    /// Go links the last programs.
    Linking,
}

/// Progress of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is built, in a few words.
    pub subject: &'static str,
    /// Present stage.
    pub stage: Stage,
    /// Modules downloaded or packages compiled so far.
    pub done: usize,
    /// Number of modules or packages, or zero while unknown. Packages in the cache of Go are never reported as done.
    pub total: usize,
    /// The last reported module or package.
    pub detail: String,
    /// Time since the start of the build.
    pub elapsed: Duration,
}

/// Chooses the progress that is worth a line of its own: each new stage, and then one in ten seconds.
#[derive(Debug, Default)]
pub struct Pace {
    last: Option<(&'static str, Stage, Duration)>,
}

impl Pace {
    /// Time between two lines of one stage.
    const EVERY: Duration = Duration::from_secs(10);

    /// Whether to print this progress.
    pub fn is_due(&mut self, progress: &Progress) -> bool {
        let Progress { subject, stage, elapsed, .. } = *progress;
        let due = self.last.is_none_or(|(before, last, at)| {
            (before, last) != (subject, stage) || elapsed.saturating_sub(at) >= Self::EVERY
        });
        if due {
            self.last = Some((subject, stage, elapsed));
        }
        due
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, stage, done, total, detail: _, elapsed } = self;
        write!(f, "building {subject} (once, then cached): ")?;
        match stage {
            Stage::Waiting => f.write_str("waiting for another process that does")?,
            Stage::Downloading => write!(f, "downloading, {done} modules so far")?,
            Stage::Compiling => write!(f, "compiling {done}/{total} packages")?,
            Stage::Linking => f.write_str("linking")?,
        }
        let seconds = elapsed.as_secs();
        match seconds / 60 {
            0 => write!(f, ", {seconds}s"),
            minutes => write!(f, ", {minutes}m{:02}s", seconds % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_each_stage_and_then_every_ten_seconds() {
        let mut pace = Pace::default();
        let mut due = |stage, seconds| {
            let elapsed = Duration::from_secs(seconds);
            let (done, total, detail) = (0, 0, String::new());
            pace.is_due(&Progress { subject: "it", stage, done, total, detail, elapsed })
        };
        assert!(due(Stage::Downloading, 0) && !due(Stage::Downloading, 9) && due(Stage::Downloading, 10));
        assert!(due(Stage::Compiling, 11) && !due(Stage::Compiling, 20) && due(Stage::Compiling, 21));
    }

    #[test]
    fn progress_is_one_line() {
        let mut progress = Progress {
            subject: "the cluster's binaries",
            stage: Stage::Compiling,
            done: 812,
            total: 2104,
            detail: "k8s.io/api/core/v1".into(),
            elapsed: Duration::from_secs(192),
        };
        assert_eq!(
            progress.to_string(),
            "building the cluster's binaries (once, then cached): compiling 812/2104 packages, 3m12s"
        );
        progress.stage = Stage::Linking;
        progress.elapsed = Duration::from_secs(7);
        assert_eq!(progress.to_string(), "building the cluster's binaries (once, then cached): linking, 7s");
    }
}
