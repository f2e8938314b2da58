//! The real coderd, built unmodified from its pinned module, once.
//!
//! Only the version that it reports is set, which would be that of a development build otherwise.

use std::path::PathBuf;

use super::coder::MODULE;
use super::module::ModuleProgram;
use super::{CODER_VERSION, Error, Progress, Sources};

const CODER: ModuleProgram = ModuleProgram {
    subject: "the real coderd",
    name: "coder",
    module: MODULE,
    version: CODER_VERSION,
    main: "./enterprise/cmd/coder",
    mains: &["github.com/coder/coder/v2/enterprise/cmd/coder"],
    flags,
    is_pure_go: false,
};

/// Path of the real coderd, or an error that says how to get it.
pub fn locate_coder() -> Result<PathBuf, Error> {
    locate_in(&Sources::from_env()?)
}

/// Finds the real coderd, and builds it if it is missing from the cache. As with [`super::Binaries::build`], one
/// process builds and others wait.
pub async fn build_coder(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
    CODER.build(&Sources::from_env()?, progress).await
}

fn flags() -> Vec<String> {
    let version = CODER_VERSION.trim_start_matches('v');
    let ldflags = format!("-s -w -X {MODULE}/buildinfo.tag={version}");
    let fixed = ["build", "-v", "-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags"];
    fixed.map(String::from).into_iter().chain([ldflags]).collect()
}

fn locate_in(sources: &Sources) -> Result<PathBuf, Error> {
    CODER.locate(sources).ok_or_else(|| Error::NoCoder { path: CODER.path(sources) })
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
