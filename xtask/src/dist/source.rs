//! What is packed: which release, which commit, and of what time.
//!
//! The time is that of the commit, or `SOURCE_DATE_EPOCH`, and never that of the build, so that packing again gives the same
//! bytes.

use std::{env, ffi::OsStr, process::Command};

use anyhow::{Context, Result, bail};

use crate::run::root;

/// The release that this work tree is.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where the artefacts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// `-dirty` at its end if the work tree differs from it.
    pub(crate) commit: String,
    /// Seconds since 1970.
    pub(crate) epoch: u64,
}

impl Source {
    /// Asks git, unless `CODER_K8S_COMMIT` and `SOURCE_DATE_EPOCH` are set.
    pub(crate) fn of_work_tree() -> Result<Self> {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let advice = "set CODER_K8S_COMMIT and SOURCE_DATE_EPOCH to pack without git";
        let commit = match set("CODER_K8S_COMMIT") {
            Some(commit) => commit,
            None => commit().context(advice)?,
        };
        let seconds = match set("SOURCE_DATE_EPOCH") {
            Some(seconds) => seconds,
            None => git(&["log", "-1", "--format=%ct"]).context(advice)?,
        };
        let epoch =
            seconds.parse().with_context(|| format!("{seconds:?} is not a number of seconds since 1970"))?;
        Ok(Self { commit, epoch })
    }

    /// The time, as RFC 3339 writes it.
    pub(crate) fn created(&self) -> String {
        let seconds = i64::try_from(self.epoch).unwrap_or_default();
        jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
    }

    /// One for tests.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self { commit: "4f0c2a9d0a6c1f2b7e1d3c5a9b8e7f6d5c4b3a21".to_owned(), epoch: 1_700_000_000 }
    }
}

fn commit() -> Result<String> {
    let commit = git(&["rev-parse", "HEAD"])?;
    let is_dirty = !git(&["status", "--porcelain"])?.is_empty();
    Ok(if is_dirty { format!("{commit}-dirty") } else { commit })
}

fn git(args: &[&str]) -> Result<String> {
    output("git", args)
}

/// What a program that must succeed prints, trimmed.
pub(crate) fn output(program: impl AsRef<OsStr>, args: &[&str]) -> Result<String> {
    let name = program.as_ref().to_string_lossy().into_owned();
    let output = Command::new(&program).args(args).current_dir(root()).output();
    let output = output.with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{name} {} failed: {said}", args.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
