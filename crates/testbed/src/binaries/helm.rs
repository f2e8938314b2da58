//! Helm, built from a pinned Go module of its own, once; and the CRDs of the Prometheus Operator, which the chart has objects
//! of.
//!
//! Helm has a module of its own so that another version of it does not build the cluster's programs again.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::build::{Report, find_go, io, lock, remove, run};
use super::module::download;
use super::{Error, Progress, Sources, Stage, digest_of};

/// Release of Helm that the pinned Go module builds.
pub const HELM_VERSION: &str = "v4.2.4";

const GO_MOD: &str = include_str!("../../binaries/helm/go.mod");
const GO_SUM: &str = include_str!("../../binaries/helm/go.sum");
const MAINS: [&str; 1] = ["helm.sh/helm/v4/cmd/helm"];
const PROGRAM: &str = "helm";

const PROMETHEUS_OPERATOR: (&str, &str) = ("github.com/prometheus-operator/prometheus-operator", "v0.85.0");

/// Path of Helm, or an error that says how to get it.
pub fn locate_helm() -> Result<PathBuf, Error> {
    locate_in(&Sources::from_env()?)
}

/// Finds Helm, and builds it if it is missing from the cache. As with [`super::Binaries::build`], one process builds and
/// others wait.
pub async fn build_helm(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
    let sources = Sources::from_env()?;
    if let Ok(found) = locate_in(&sources) {
        return Ok(found);
    }
    let dir = build_dir(&sources);
    let (work, partial) = (dir.join("module"), dir.join("partial"));
    std::fs::create_dir_all(&work).map_err(io("create", &work))?;
    let mut report = Report::new("Helm", &MAINS, progress);
    let _lock = lock(&dir.join("lock"), &mut report).await?;
    if let Ok(found) = locate_in(&sources) {
        return Ok(found);
    }

    let go = find_go(&std::env::var_os("PATH").unwrap_or_default())?;
    for (name, text) in [("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        let file = work.join(name);
        std::fs::write(&file, text).map_err(io("write", &file))?;
    }
    report.stage(Stage::Downloading);
    let mut list = Command::new(&go);
    list.args(["list", "-mod=readonly", "-deps", "tool"]).env("CGO_ENABLED", "0");
    let listed = run(&mut list, "list", &work, &mut report).await?;
    report.total = listed.lines().count();

    remove(&partial)?;
    std::fs::create_dir_all(&partial).map_err(io("create", &partial))?;
    report.stage(Stage::Compiling);
    let mut command = Command::new(&go);
    command.args(flags()).arg("-o").arg(&partial).arg("tool").env("CGO_ENABLED", "0");
    run(&mut command, "build", &work, &mut report).await?;

    let bin = dir.join("bin");
    remove(&bin)?;
    std::fs::rename(&partial, &bin).map_err(io("rename", &partial))?;
    locate_in(&sources)
}

/// Files with the CRDs of the Prometheus Operator, one for each kind. Downloads its module if it is missing, and blocks.
pub fn prometheus_operator_crds() -> Result<Vec<PathBuf>, Error> {
    let (module, version) = PROMETHEUS_OPERATOR;
    let dir = download(module, version)?.join("example/prometheus-operator-crd");
    let entries = std::fs::read_dir(&dir).map_err(io("list", &dir))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    Ok(files)
}

/// The flags of `go build`, apart from the output. They are part of the cache's key.
fn flags() -> [String; 6] {
    let ldflags = format!("-s -w -X helm.sh/helm/v4/internal/version.version={HELM_VERSION}");
    ["build".into(), "-v".into(), "-trimpath".into(), "-mod=readonly".into(), "-ldflags".into(), ldflags]
}

fn build_dir(sources: &Sources) -> PathBuf {
    sources.cache.join("helm").join(digest_of(&[GO_MOD, GO_SUM, &flags().join("\n")]))
}

fn locate_in(sources: &Sources) -> Result<PathBuf, Error> {
    let path = build_dir(sources).join("bin").join(PROGRAM);
    if Path::is_file(&path) { Ok(path) } else { Err(Error::NoHelm { path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helm_that_was_not_built_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = locate_in(&Sources { assets: None, cache: dir.path().into() }).unwrap_err().to_string();
        assert!(text.contains("cargo xtask chart"), "{text}");
    }

    #[test]
    fn the_pinned_module_builds_the_version_that_is_stamped() {
        assert!(
            GO_MOD.contains(&format!("\thelm.sh/helm/v4 {HELM_VERSION}")),
            "go.mod and HELM_VERSION differ"
        );
        assert!(GO_MOD.contains(&format!("tool {}\n", MAINS[0])), "Helm is no tool of go.mod");
    }
}
