//! The pinned Go module of Coder, which contains the migrations of its database.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::Error;
use super::build::{find_go, io};

/// Release of Coder that the tests use.
pub const CODER_VERSION: &str = "v2.36.1";

pub(super) const MODULE: &str = "github.com/coder/coder/v2";

/// Output of `go mod download -json`.
#[derive(Deserialize)]
struct Downloaded {
    #[serde(rename = "Dir", default)]
    dir: PathBuf,
    #[serde(rename = "Error", default)]
    error: String,
}

/// Directory of the module, which is downloaded if it is missing. Blocks.
pub fn coder_module() -> Result<PathBuf, Error> {
    download(MODULE, CODER_VERSION)
}

/// Directory of a module in Go's cache, which is downloaded if it is missing. Blocks.
pub(super) fn download(module: &str, version: &str) -> Result<PathBuf, Error> {
    let go = find_go(&std::env::var_os("PATH").unwrap_or_default())?;
    let output = Command::new(&go)
        .args(["mod", "download", "-json", &format!("{module}@{version}")])
        // Outside any module, whose requirements would otherwise select the version.
        .current_dir(std::env::temp_dir())
        .env("GOWORK", "off")
        .env_remove("GOFLAGS")
        .stdin(Stdio::null())
        .output()
        .map_err(io("run", &go))?;
    let said = serde_json::from_slice::<Downloaded>(&output.stdout).ok();
    match said {
        Some(Downloaded { dir, error }) if output.status.success() && error.is_empty() && dir.is_dir() => {
            Ok(dir)
        }
        other => {
            let error = other.map(|said| said.error).unwrap_or_default();
            let output_text = String::from_utf8_lossy(&output.stderr);
            let text = if error.is_empty() { output_text.trim().to_owned() } else { error };
            Err(Error::Go { command: "mod download", status: output.status, output: text })
        }
    }
}

/// Migration files in the module, in order, with their numbers.
pub fn coder_migrations(module: &Path) -> Result<Vec<(u32, PathBuf)>, Error> {
    let dir = module.join("coderd/database/migrations");
    let entries = std::fs::read_dir(&dir).map_err(io("list", &dir))?;
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_suffix(".up.sql")?.split('_').next()?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort();
    Ok(found)
}
