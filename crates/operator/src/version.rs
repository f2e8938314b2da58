//! Which build this is: the release, and the commit if the build was told it in `CODER_K8S_COMMIT`, as `cargo xtask dist`
//! does. Nothing else goes into a build, such as its time, so that two builds of one commit are the same.

use std::sync::LazyLock;

/// The release, such as `0.1.0`.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The commit that was built. `None` in a build that was not told it.
pub(crate) const COMMIT: Option<&str> = match option_env!("CODER_K8S_COMMIT") {
    Some(commit) if !commit.is_empty() => Some(commit),
    _ => None,
};

/// What `coder-k8s version` prints after the name of the program.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| describe(COMMIT));

fn describe(commit: Option<&str>) -> String {
    commit.map_or_else(|| RELEASE.to_owned(), |commit| format!("{RELEASE} (commit {commit})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_shown_if_the_build_was_told_it() {
        assert_eq!(describe(Some("4f0c2a9")), format!("{RELEASE} (commit 4f0c2a9)"));
        assert_eq!(describe(None), RELEASE);
    }
}
