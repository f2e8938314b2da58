//! The pinned Go module of Coder, which contains the migrations of its database.

use std::path::{Path, PathBuf};

use super::Error;
use super::build::io;
use super::module::download;

/// Release of Coder that the tests use.
pub const CODER_VERSION: &str = "v2.36.1";

pub(super) const MODULE: &str = "github.com/coder/coder/v2";

/// Directory of the module, which is downloaded if it is missing. Blocks.
pub fn coder_module() -> Result<PathBuf, Error> {
    download(MODULE, CODER_VERSION)
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
