//! The folder with which another terminal reaches the cluster: `dev` in the cache of the project, with a kubeconfig,
//! kubectl, a file that sets both, and what the commands to try need.
//!
//! Its path is the same in every run, so that commands can be repeated. It is a link to the directory of the running cluster, which goes
//! however this process ends. A second `dev` beside the first gets `dev-2`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use coder_k8s_testbed::{Cluster, Sources};

/// How many clusters can have a link at a time. One more uses the directory of its cluster itself.
const LINKS: usize = 9;

/// The folder, whose link is removed when it is dropped.
pub(super) struct Folder {
    /// Where the files are.
    target: PathBuf,
    link: Option<PathBuf>,
}

impl Folder {
    /// Writes the files, and links them where the path is short.
    pub(super) fn create(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let target = cluster.run_dir().join("dev");
        fs::create_dir(&target).with_context(|| format!("cannot create {}", target.display()))?;
        let cache = Sources::from_env().map(|sources| sources.cache);
        let link = cache.ok().and_then(|cache| claim(&cache, &target).ok().flatten());
        let folder = Self { target, link };
        // The context is the last part of a kubeconfig of the testbed.
        let kubeconfig = format!("{}      namespace: {namespace}\n", cluster.kubeconfig_yaml());
        folder.write("kubeconfig", &kubeconfig)?;
        if let Ok(kubectl) = cluster.binaries().kubectl() {
            symlink(kubectl, folder.target.join("kubectl")).context("cannot link kubectl")?;
        }
        let path = quoted(folder.path());
        folder.write("env", &format!("export KUBECONFIG={path}/kubeconfig\nexport PATH={path}:$PATH\n"))?;
        Ok(folder)
    }

    /// Writes a file that only this user can read.
    pub(super) fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.target.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(content.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    fn path(&self) -> &Path {
        self.link.as_deref().unwrap_or(&self.target)
    }

    /// The path of a file as a person would type it: with `~`, and in quotes where it needs some.
    pub(super) fn typed(&self, name: &str) -> String {
        let path = self.path().join(name);
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        match home.and_then(|home| path.strip_prefix(home).ok().map(quoted)) {
            Some(rest) => format!("~/{rest}"),
            None => quoted(&path),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(link) = self.link.as_ref().filter(|link| points_to(link, &self.target)) {
            let _ = fs::remove_file(link);
        }
    }
}

/// Takes the first link that belongs to no running cluster.
fn claim(cache: &Path, target: &Path) -> io::Result<Option<PathBuf>> {
    fs::create_dir_all(cache)?;
    // Held until the end of this function, so that two processes do not take one link.
    let lock = File::create(cache.join("dev.lock"))?;
    lock.lock()?;
    for number in 1..=LINKS {
        let link = cache.join(if number == 1 { "dev".to_owned() } else { format!("dev-{number}") });
        match fs::symlink_metadata(&link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The directory of a cluster goes with its process. What is no link is somebody else's.
            Ok(found) if found.is_symlink() && !link.exists() => fs::remove_file(&link)?,
            _ => continue,
        }
        symlink(target, &link)?;
        return Ok(Some(link));
    }
    Ok(None)
}

fn points_to(link: &Path, target: &Path) -> bool {
    fs::read_link(link).is_ok_and(|found| found == target)
}

/// A path for a shell.
fn quoted(path: impl AsRef<Path>) -> String {
    let text = path.as_ref().to_string_lossy().into_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_belongs_to_one_running_cluster() {
        let root = std::env::temp_dir().join(format!("coder-k8s-folder-{}", std::process::id()));
        let (cache, first, second) = (root.join("cache"), root.join("first"), root.join("second"));
        fs::create_dir_all(&first).unwrap();
        fs::create_dir_all(&second).unwrap();
        assert_eq!(claim(&cache, &first).unwrap(), Some(cache.join("dev")));
        assert_eq!(claim(&cache, &second).unwrap(), Some(cache.join("dev-2")));
        fs::remove_dir(&first).unwrap();
        assert_eq!(claim(&cache, &second).unwrap(), Some(cache.join("dev")), "the first cluster is gone");
        drop(Folder { target: second.clone(), link: Some(cache.join("dev")) });
        assert!(fs::symlink_metadata(cache.join("dev")).is_err());
        fs::create_dir(cache.join("dev")).unwrap();
        assert_eq!(claim(&cache, &second).unwrap(), Some(cache.join("dev-3")), "a folder is left alone");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_path_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("/tmp/a-b_1/c.d"), "/tmp/a-b_1/c.d");
        assert_eq!(quoted("/tmp/a b's"), "'/tmp/a b'\\''s'");
    }
}
