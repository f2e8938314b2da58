//! Running programs and talking to the terminal.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The root of the work tree.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// One line for the person who waits.
#[expect(clippy::print_stderr, reason = "a chore talks to a terminal")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// A cargo command in the work tree.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// The folder that cargo builds into: `target` in the work tree, or what `CARGO_TARGET_DIR` says.
pub(crate) fn target() -> Result<PathBuf> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let output = cargo(&["metadata", "--format-version=1", "--no-deps", "--locked"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let Metadata { target_directory } = serde_json::from_slice(&output.stdout)?;
    Ok(target_directory)
}

/// Runs a command that must succeed, its output shown.
pub(crate) fn must(mut command: Command) -> Result<()> {
    let line = describe(&command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {line}"))?;
    if !status.success() {
        bail!("{line} failed: {status}");
    }
    Ok(())
}

fn describe(command: &Command) -> String {
    let program =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    command.get_args().fold(program, |line, arg| format!("{line} {}", arg.to_string_lossy()))
}
