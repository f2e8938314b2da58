//! promtool, which checks and tests the alerts: built unmodified from the pinned module of Prometheus, once.
//!
//! Without service discovery, which is most of Prometheus' dependencies and no part of what promtool does here.

use std::path::PathBuf;

use super::module::ModuleProgram;
use super::{Error, Progress, Sources};

/// Module version of Prometheus that promtool is of: Prometheus 3.x is v0.3xx.
pub const PROMETHEUS_VERSION: &str = "v0.315.0";

const PROMTOOL: ModuleProgram = ModuleProgram {
    subject: "promtool",
    name: "promtool",
    module: "github.com/prometheus/prometheus",
    version: PROMETHEUS_VERSION,
    main: "./cmd/promtool",
    mains: &["github.com/prometheus/prometheus/cmd/promtool"],
    flags,
    is_pure_go: true,
};

/// Path of promtool, or an error that says how to get it.
pub fn locate_promtool() -> Result<PathBuf, Error> {
    locate_in(&Sources::from_env()?)
}

/// Finds promtool, and builds it if it is missing from the cache. As with [`super::Binaries::build`], one process builds and
/// others wait.
pub async fn build_promtool(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
    PROMTOOL.build(&Sources::from_env()?, progress).await
}

fn flags() -> Vec<String> {
    let fixed =
        ["build", "-v", "-trimpath", "-mod=readonly", "-buildvcs=false", "-tags", "remove_all_sd,netgo"];
    fixed.into_iter().chain(["-ldflags", "-s -w"]).map(String::from).collect()
}

fn locate_in(sources: &Sources) -> Result<PathBuf, Error> {
    PROMTOOL.locate(sources).ok_or_else(|| Error::NoPromtool { path: PROMTOOL.path(sources) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promtool_that_was_not_built_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = locate_in(&Sources { assets: None, cache: dir.path().into() }).unwrap_err().to_string();
        assert!(text.contains("cargo xtask testbed --with-promtool"), "{text}");
    }
}
