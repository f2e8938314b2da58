//! Where the programs of Postgres are installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{Error, is_file};

/// Debian installs each release in a directory of its own that is not in `PATH`.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Programs of one release of Postgres.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// Creates a data directory.
    pub initdb: PathBuf,
    /// Runs the server.
    pub postgres: PathBuf,
}

impl Programs {
    /// Finds the programs in `PATH`, else the newest release of Debian.
    pub fn locate() -> Result<Self, Error> {
        Self::locate_in(&std::env::var_os("PATH").unwrap_or_default(), Path::new(DEBIAN))
    }

    fn locate_in(path: &OsStr, debian: &Path) -> Result<Self, Error> {
        let dirs = || std::env::split_paths(path).chain(releases(debian));
        // Both from the same directory, so that they are of the same release.
        let both = |dir: PathBuf| {
            Some(Self { initdb: is_file(&dir, "initdb")?, postgres: is_file(&dir, "postgres")? })
        };
        dirs().find_map(both).ok_or_else(|| {
            let server = dirs().any(|dir| is_file(&dir, "postgres").is_some());
            Error::Missing { program: if server { "initdb" } else { "postgres" } }
        })
    }
}

/// Directories of the releases of Debian, newest first.
fn releases(debian: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(debian).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    found.into_iter().map(|(_, dir)| dir).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path, programs: &[&str]) {
        std::fs::create_dir_all(dir).unwrap();
        for program in programs {
            std::fs::write(dir.join(program), "").unwrap();
        }
    }

    #[test]
    fn the_path_comes_first_and_then_the_newest_release() {
        let dir = tempfile::tempdir().unwrap();
        let (path, debian) = (dir.path().join("bin"), dir.path().join("debian"));
        place(&debian.join("9/bin"), &["initdb", "postgres"]);
        place(&debian.join("17/bin"), &["initdb", "postgres"]);
        place(&path, &["postgres"]);
        let found = Programs::locate_in(path.as_os_str(), &debian).unwrap();
        assert_eq!(found.postgres, debian.join("17/bin/postgres"));
        place(&path, &["initdb"]);
        let found = Programs::locate_in(path.as_os_str(), &debian).unwrap();
        assert_eq!(found.initdb, path.join("initdb"));
    }

    #[test]
    fn a_missing_program_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let missing =
            |path: &Path| Programs::locate_in(path.as_os_str(), dir.path()).unwrap_err().to_string();
        let text = missing(dir.path());
        assert!(text.contains("`postgres`") && text.contains("apt-get install postgresql"), "{text}");
        let path = dir.path().join("bin");
        place(&path, &["postgres"]);
        assert!(missing(&path).contains("`initdb`"));
    }
}
