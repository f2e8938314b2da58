//! Programs that Go builds unmodified from the source of a pinned module, once.
//!
//! Go builds in the directory of the module, with the module's own `go.mod` and `go.sum`. The build has a directory of its
//! own in the cache, under a digest of module, version and flags, and is renamed into place when it is complete.

use std::path::PathBuf;
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;

use super::build::{Report, find_go, io, lock, remove, run};
use super::{Error, Progress, Sources, Stage, digest_of};

/// A program and where its source is.
pub(super) struct ModuleProgram {
    /// What it is, in a few words for people.
    pub(super) subject: &'static str,
    /// Name of the file, and of the folder in the cache.
    pub(super) name: &'static str,
    pub(super) module: &'static str,
    pub(super) version: &'static str,
    /// The main package, relative to the module.
    pub(super) main: &'static str,
    /// The same by its import path, which Go reports right before it links.
    pub(super) mains: &'static [&'static str],
    /// The flags of `go build`, apart from the output. They are part of the cache's key.
    pub(super) flags: fn() -> Vec<String>,
    /// Whether it is built without C.
    pub(super) is_pure_go: bool,
}

impl ModuleProgram {
    /// Where the program is once it is built.
    pub(super) fn path(&self, sources: &Sources) -> PathBuf {
        self.build_dir(sources).join("bin").join(self.name)
    }

    /// Path of the program, if it is built.
    pub(super) fn locate(&self, sources: &Sources) -> Option<PathBuf> {
        Some(self.path(sources)).filter(|path| path.is_file())
    }

    fn build_dir(&self, sources: &Sources) -> PathBuf {
        let digest = digest_of(&[self.module, self.version, &(self.flags)().join("\n")]);
        sources.cache.join(self.name).join(digest)
    }

    /// Finds the program, or builds it into the cache. One process builds, and others wait.
    pub(super) async fn build(
        &self,
        sources: &Sources,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, Error> {
        if let Some(found) = self.locate(sources) {
            return Ok(found);
        }
        let dir = self.build_dir(sources);
        std::fs::create_dir_all(&dir).map_err(io("create", &dir))?;
        let mut report = Report::new(self.subject, self.mains, progress);
        let _lock = lock(&dir.join("lock"), &mut report).await?;
        if let Some(found) = self.locate(sources) {
            return Ok(found);
        }

        report.stage(Stage::Downloading);
        let (module, version) = (self.module, self.version);
        let downloading = tokio::task::spawn_blocking(move || download(module, version));
        let module =
            downloading.await.map_err(std::io::Error::other).map_err(io("download into", &dir))??;
        let go = find_go(&std::env::var_os("PATH").unwrap_or_default())?;
        let command = || {
            let mut command = Command::new(&go);
            if self.is_pure_go {
                command.env("CGO_ENABLED", "0");
            }
            command
        };
        let mut list = command();
        list.args(["list", "-mod=readonly", "-deps", self.main]);
        let listed = run(&mut list, "list", &module, &mut report).await?;
        report.total = listed.lines().count();

        let partial = dir.join("partial");
        remove(&partial)?;
        std::fs::create_dir_all(&partial).map_err(io("create", &partial))?;
        report.stage(Stage::Compiling);
        let mut build = command();
        build.args((self.flags)()).arg("-o").arg(partial.join(self.name)).arg(self.main);
        run(&mut build, "build", &module, &mut report).await?;

        let bin = dir.join("bin");
        remove(&bin)?;
        std::fs::rename(&partial, &bin).map_err(io("rename", &partial))?;
        Ok(self.path(sources))
    }
}

/// Output of `go mod download -json`.
#[derive(Deserialize)]
struct Downloaded {
    #[serde(rename = "Dir", default)]
    dir: PathBuf,
    #[serde(rename = "Error", default)]
    error: String,
}

/// Directory of a module, which is downloaded if it is missing. Blocks.
pub(super) fn download(module: &str, version: &str) -> Result<PathBuf, Error> {
    let go = find_go(&std::env::var_os("PATH").unwrap_or_default())?;
    let output = std::process::Command::new(&go)
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
