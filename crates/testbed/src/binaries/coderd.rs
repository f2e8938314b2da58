//! The real coderd, built unmodified from its pinned module, once.
//!
//! Go builds it in the directory of the module, with the module's own `go.mod` and `go.sum`. Only the version that it
//! reports is set, which would be that of a development build otherwise.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::build::{Report, find_go, io, lock, remove, run};
use super::coder::MODULE;
use super::{CODER_VERSION, Error, Progress, Sources, Stage, coder_module, digest_of};

const MAIN: &str = "./enterprise/cmd/coder";
const MAINS: [&str; 1] = ["github.com/coder/coder/v2/enterprise/cmd/coder"];
const PROGRAM: &str = "coder";

/// Path of the real coderd, or an error that says how to get it.
pub fn locate_coder() -> Result<PathBuf, Error> {
    locate_in(&Sources::from_env()?)
}

/// Finds the real coderd, and builds it if it is missing from the cache. As with [`super::Binaries::build`], one
/// process builds and others wait.
pub async fn build_coder(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
    let sources = Sources::from_env()?;
    if let Ok(found) = locate_in(&sources) {
        return Ok(found);
    }
    let dir = build_dir(&sources);
    std::fs::create_dir_all(&dir).map_err(io("create", &dir))?;
    let mut report = Report::new("the real coderd", &MAINS, progress);
    let _lock = lock(&dir.join("lock"), &mut report).await?;
    if let Ok(found) = locate_in(&sources) {
        return Ok(found);
    }

    report.stage(Stage::Downloading);
    let downloading = tokio::task::spawn_blocking(coder_module);
    let module = downloading.await.map_err(std::io::Error::other).map_err(io("download into", &dir))??;
    let go = find_go(&std::env::var_os("PATH").unwrap_or_default())?;
    let mut list = Command::new(&go);
    list.args(["list", "-mod=readonly", "-deps", MAIN]);
    let listed = run(&mut list, "list", &module, &mut report).await?;
    report.total = listed.lines().count();

    let partial = dir.join("partial");
    remove(&partial)?;
    std::fs::create_dir_all(&partial).map_err(io("create", &partial))?;
    report.stage(Stage::Compiling);
    let mut command = Command::new(&go);
    command.args(flags()).arg("-o").arg(partial.join(PROGRAM)).arg(MAIN);
    run(&mut command, "build", &module, &mut report).await?;

    let bin = dir.join("bin");
    remove(&bin)?;
    std::fs::rename(&partial, &bin).map_err(io("rename", &partial))?;
    locate_in(&sources)
}

/// The flags of `go build`, apart from the output. They are part of the cache's key.
fn flags() -> [String; 7] {
    let version = CODER_VERSION.trim_start_matches('v');
    let ldflags = format!("-s -w -X {MODULE}/buildinfo.tag={version}");
    let [build, verbose, trimmed, read_only, no_vcs] =
        ["build", "-v", "-trimpath", "-mod=readonly", "-buildvcs=false"].map(String::from);
    [build, verbose, trimmed, read_only, no_vcs, "-ldflags".into(), ldflags]
}

fn build_dir(sources: &Sources) -> PathBuf {
    sources.cache.join("coder").join(digest_of(&[MODULE, CODER_VERSION, &flags().join("\n")]))
}

fn locate_in(sources: &Sources) -> Result<PathBuf, Error> {
    let path = build_dir(sources).join("bin").join(PROGRAM);
    if Path::is_file(&path) { Ok(path) } else { Err(Error::NoCoder { path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coderd_that_was_not_built_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = locate_in(&Sources { assets: None, cache: dir.path().into() }).unwrap_err().to_string();
        assert!(text.contains("cargo xtask testbed --with-coder"), "{text}");
    }

    #[test]
    fn the_version_is_stamped_without_its_letter() {
        let flags = flags().join(" ");
        assert!(flags.contains("buildinfo.tag=2."), "{flags}");
    }
}
