//! How far a build is, as data and as one line for a person.

use std::fmt;
use std::time::Duration;

/// The part of a build that is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Another process builds; this one waits for it.
    Waiting,
    /// The modules are fetched.
    Downloading,
    /// The packages are compiled.
    Compiling,
    /// The last programs are linked.
    Linking,
}

/// A report on a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is built, in a few words.
    pub subject: &'static str,
    /// What is going on.
    pub stage: Stage,
    /// Modules fetched or packages compiled so far.
    pub done: usize,
    /// Of how many; zero while that is unknown. Packages that Go has cached are never reported as done.
    pub total: usize,
    /// The module or package that was reported last.
    pub detail: String,
    /// The time since the build began.
    pub elapsed: Duration,
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
