//! Where the cluster's programs come from.
//!
//! `KUBEBUILDER_ASSETS` wins. Otherwise they are in a cache directory whose name is a digest of the pinned Go
//! modules and the build flags, so a change of either is a new build and an old one is never mistaken for it.
//! [`Binaries::locate`] only looks; [`Binaries::build`] also builds. A program that is missing is an error that
//! says how to get it.

mod build;
mod coder;
mod coderd;
mod helm;
mod module;
mod progress;
mod promtool;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use coder::{CODER_VERSION, coder_migrations, coder_module};
pub use coderd::{build_coder, locate_coder};
pub use helm::{HELM_VERSION, build_helm, locate_helm, prometheus_operator_crds};
pub use progress::{Pace, Progress, Stage};
pub use promtool::{PROMETHEUS_VERSION, build_promtool, locate_promtool};

/// Release of Kubernetes that the pinned Go modules build.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

const ASSETS: &str = "KUBEBUILDER_ASSETS";
const GO_MOD: &str = include_str!("../binaries/go.mod");
const GO_SUM: &str = include_str!("../binaries/go.sum");

const ETCD: &str = "etcd";
const KUBE_APISERVER: &str = "kube-apiserver";
const KUBE_CONTROLLER_MANAGER: &str = "kube-controller-manager";
const KUBECTL: &str = "kubectl";

/// Why a program could not be found or built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cache is empty, and there is no other source.
    #[error(
        "the cluster needs `{program}`, which is not in {}: run `cargo xtask testbed` to build it, or set {ASSETS} \
         to a directory that has it",
        .cache.display()
    )]
    NotBuilt {
        /// Name of the missing program.
        program: &'static str,
        /// The cache directory.
        cache: PathBuf,
    },
    /// `KUBEBUILDER_ASSETS` is set, and its directory is incomplete.
    #[error(
        "{ASSETS} is set to {}, which has no `{program}`: put it there, or unset {ASSETS} and run `cargo xtask testbed`",
        .assets.display()
    )]
    NotInAssets {
        /// Name of the missing program.
        program: &'static str,
        /// Value of the variable.
        assets: PathBuf,
    },
    /// Envtest bundles have no controller-manager, and the cache that would supply it is empty.
    #[error(
        "neither {ASSETS} ({}) nor the cache ({}) has `{program}`: run `cargo xtask testbed` to build it into the cache",
        .assets.display(), .cache.display()
    )]
    InNeither {
        /// Name of the missing program.
        program: &'static str,
        /// Value of the variable.
        assets: PathBuf,
        /// The cache directory.
        cache: PathBuf,
    },
    /// The real coderd has not been built.
    #[error("the real coderd is not there as {}: run `cargo xtask testbed --with-coder` to build it", .path.display())]
    NoCoder {
        /// Where it would be.
        path: PathBuf,
    },
    /// promtool has not been built.
    #[error("promtool is not there as {}: run `cargo xtask testbed --with-promtool` to build it", .path.display())]
    NoPromtool {
        /// Where it would be.
        path: PathBuf,
    },
    /// Helm has not been built.
    #[error("Helm is not there as {}: run `cargo xtask chart`, which builds it and runs the tests of the chart", .path.display())]
    NoHelm {
        /// Where it would be.
        path: PathBuf,
    },
    /// No directory for a cache is configured.
    #[error("no cache directory: set CODER_K8S_CACHE, XDG_CACHE_HOME or HOME")]
    NoCache,
    /// The Go toolchain is missing.
    #[error(
        "building the cluster's programs needs Go {needed} or later, but there is no `go` in any of {searched}: install it \
         from https://go.dev/dl, and add its `bin` directory to PATH"
    )]
    NoGo {
        /// Go version that the pinned modules require.
        needed: &'static str,
        /// Value of `PATH`.
        searched: String,
    },
    /// The Go build failed.
    #[error("`go {command}` failed ({status}); its last lines:\n{output}")]
    Go {
        /// The subcommand of `go`.
        command: &'static str,
        /// Exit status.
        status: std::process::ExitStatus,
        /// Last lines of the output.
        output: String,
    },
    /// An operation on a file or process failed.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// Directories that are searched for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// Directory in `KUBEBUILDER_ASSETS`.
    pub assets: Option<PathBuf>,
    /// Root of the cache of the project.
    pub cache: PathBuf,
}

impl Sources {
    /// Reads `KUBEBUILDER_ASSETS`, and `CODER_K8S_CACHE`, `XDG_CACHE_HOME` or `HOME`.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let path = |name| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = path("CODER_K8S_CACHE")
            .or_else(|| path("XDG_CACHE_HOME").map(|dir| dir.join("coder-k8s")))
            .or_else(|| path("HOME").map(|dir| dir.join(".cache/coder-k8s")))
            .ok_or(Error::NoCache)?;
        Ok(Self { assets: path(ASSETS), cache })
    }

    /// Directory of the programs of these modules and flags.
    pub fn build_dir(&self) -> PathBuf {
        self.cache.join("testbed").join(digest())
    }

    fn bin_dir(&self) -> PathBuf {
        self.build_dir().join("bin")
    }
}

/// Programs of a cluster, by absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The store of the API server.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// The controllers.
    pub kube_controller_manager: PathBuf,
    /// Only some tests need kubectl, so it may be missing: [`Binaries::kubectl`] then says how to get it.
    pub kubectl: Option<PathBuf>,
}

impl Binaries {
    /// Finds the programs without building anything.
    pub fn locate() -> Result<Self, Error> {
        Self::locate_in(&Sources::from_env()?)
    }

    /// As [`Binaries::locate`], in these directories.
    pub fn locate_in(sources: &Sources) -> Result<Self, Error> {
        let cache = sources.bin_dir();
        let Some(assets) = &sources.assets else {
            let need = |program| {
                find(&cache, program).ok_or_else(|| Error::NotBuilt { program, cache: cache.clone() })
            };
            return Ok(Self {
                etcd: need(ETCD)?,
                kube_apiserver: need(KUBE_APISERVER)?,
                kube_controller_manager: need(KUBE_CONTROLLER_MANAGER)?,
                kubectl: find(&cache, KUBECTL),
            });
        };
        let need = |program| {
            find(assets, program).ok_or_else(|| Error::NotInAssets { program, assets: assets.clone() })
        };
        let either = |program| find(assets, program).or_else(|| find(&cache, program));
        Ok(Self {
            etcd: need(ETCD)?,
            kube_apiserver: need(KUBE_APISERVER)?,
            kube_controller_manager: either(KUBE_CONTROLLER_MANAGER).ok_or_else(|| Error::InNeither {
                program: KUBE_CONTROLLER_MANAGER,
                assets: assets.clone(),
                cache: cache.clone(),
            })?,
            kubectl: either(KUBECTL),
        })
    }

    /// Path of kubectl, or an error that says how to get it.
    pub fn kubectl(&self) -> Result<&Path, Error> {
        self.kubectl.as_deref().ok_or_else(|| Error::NotBuilt {
            program: KUBECTL,
            cache: Sources::from_env().map(|sources| sources.bin_dir()).unwrap_or_default(),
        })
    }

    /// Finds the programs, and builds those that are missing from the cache.
    ///
    /// Processes may call this concurrently: one builds, the others wait. `progress` is called at each change of
    /// stage and about five times a second. Dropping the future ends the build; what Go has compiled by then stays in
    /// Go's own cache.
    pub async fn build(progress: &mut dyn FnMut(Progress)) -> Result<Self, Error> {
        build::build(&Sources::from_env()?, progress).await
    }
}

fn find(dir: &Path, program: &str) -> Option<PathBuf> {
    std::path::absolute(dir.join(program)).ok().filter(|path| path.is_file())
}

fn digest() -> String {
    digest_of(&[GO_MOD, GO_SUM, &build::flags().join("\n")])
}

fn digest_of(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(6).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
    fn the_pinned_modules_build_the_version_that_is_stamped() {
        assert!(
            GO_MOD.contains(&format!("\tk8s.io/kubernetes {KUBERNETES_VERSION}")),
            "go.mod and KUBERNETES_VERSION differ"
        );
    }

    #[test]
    fn the_cache_root_follows_the_environment() {
        let sources = |vars: &[(&str, &str)]| {
            Sources::from_vars(|name| {
                vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            })
        };
        let home = ("HOME", "/h");
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(sources(&[home]).unwrap().cache, Path::new("/h/.cache/coder-k8s"));
        assert_eq!(sources(&[home, xdg]).unwrap().cache, Path::new("/x/coder-k8s"));
        assert_eq!(sources(&[home, xdg, ("CODER_K8S_CACHE", "/c")]).unwrap().cache, Path::new("/c"));
        assert_eq!(
            sources(&[home, ("CODER_K8S_CACHE", "")]).unwrap().cache,
            Path::new("/h/.cache/coder-k8s")
        );
        assert_eq!(sources(&[home, (ASSETS, "")]).unwrap().assets, None);
        assert!(matches!(sources(&[]), Err(Error::NoCache)));
    }

    #[test]
    fn a_program_that_was_not_built_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { assets: None, cache: dir.path().into() };
        place(&sources.bin_dir(), &["etcd"]);
        let text = Binaries::locate_in(&sources).unwrap_err().to_string();
        assert!(text.contains("`kube-apiserver`"), "{text}");
        assert!(text.contains("run `cargo xtask testbed`"), "{text}");
    }

    #[test]
    fn an_incomplete_assets_directory_is_named_with_its_variable() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { assets: Some(dir.path().join("assets")), cache: dir.path().join("cache") };
        place(&dir.path().join("assets"), &["etcd"]);
        let text = Binaries::locate_in(&sources).unwrap_err().to_string();
        assert!(text.contains("`kube-apiserver`") && text.contains("KUBEBUILDER_ASSETS"), "{text}");
    }

    #[test]
    fn an_envtest_bundle_takes_the_controller_manager_from_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let assets = dir.path().join("assets");
        let sources = Sources { assets: Some(assets.clone()), cache: dir.path().join("cache") };
        place(&assets, &["etcd", "kube-apiserver"]);
        let text = Binaries::locate_in(&sources).unwrap_err().to_string();
        assert!(text.contains("`kube-controller-manager`"), "{text}");
        assert!(text.contains("run `cargo xtask testbed`"), "{text}");

        place(&sources.bin_dir(), &["kube-controller-manager"]);
        let found = Binaries::locate_in(&sources).unwrap();
        assert_eq!(found.kube_apiserver, assets.join("kube-apiserver"));
        assert_eq!(found.kube_controller_manager, sources.bin_dir().join("kube-controller-manager"));
        let text = found.kubectl().unwrap_err().to_string();
        assert!(text.contains("`kubectl`"), "{text}");
    }
}
