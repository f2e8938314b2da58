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
