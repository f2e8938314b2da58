//! The directory of one running cluster, and the removal of directories whose owner is dead.
//!
//! Every directory has a `lock` file, which its owner locks exclusively while it lives. The kernel releases the lock
//! however the owner ends, so a lock that can be taken means a dead owner. Creation and sweep exclude each other, so
//! that no sweep sees a directory before it is locked. Children do not inherit the lock, because the standard library
//! opens files close-on-exec.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

const GUARD: &str = "guard";
const LOCK: &str = "lock";
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Number of directories that this process has created. A name is never reused: the guard and the owner both remove a
/// directory, and the later of the two must not remove another one.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A directory that belongs to this process until it is dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Removes the directories of dead owners, then creates one.
    pub(crate) fn create() -> io::Result<Self> {
        Self::create_under(&root())
    }

    fn create_under(root: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(root) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => other?,
        }
        if std::fs::symlink_metadata(root)?.uid() != rustix::process::getuid().as_raw() {
            return Err(io::Error::other(format!("{} belongs to another user", root.display())));
        }
        let all = File::create(root.join(LOCK))?;
        all.lock()?;
        sweep(root)?;
        let path = loop {
            let path = root.join(format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => break path,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock()?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file that only this user can read.
    pub(crate) fn write(&self, name: &str, content: &str) -> io::Result<PathBuf> {
        let path = self.file(name);
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(content.as_bytes())?;
        Ok(path)
    }

    /// Lets another user traverse the directory to its own files. It can neither list the directory nor read other
    /// files.
    pub(crate) fn let_others_pass(&self) -> io::Result<()> {
        for dir in self.path.parent().into_iter().chain([self.path()]) {
            std::fs::set_permissions(dir, Permissions::from_mode(0o711))?;
        }
        Ok(())
    }

    /// Records the guard, whose group a later process kills if this one cannot.
    pub(crate) fn record_guard(&self, pid: u32) -> io::Result<()> {
        self.write(GUARD, &pid.to_string()).map(drop)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// One directory for each user, because a user can neither lock nor remove files of another.
fn root() -> PathBuf {
    std::env::temp_dir().join(format!("coder-k8s-testbed-{}", rustix::process::getuid().as_raw()))
}

fn sweep(root: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(root)? {
        let dir = entry?.path();
        if !dir.is_dir() {
            continue;
        }
        let abandoned = match File::open(dir.join(LOCK)) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if abandoned {
            kill_guarded(&dir);
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
    Ok(())
}

/// Kills the recorded group of a directory if it still is that group.
///
/// Process ids are reused. So at least one member of the group must be provably ours: every component and the guard
/// have the directory in their command line.
fn kill_guarded(dir: &Path) {
    let Some(pid) = std::fs::read_to_string(dir.join(GUARD)).ok().and_then(|text| text.parse::<i32>().ok())
    else {
        return;
    };
    let ours = members(pid).into_iter().any(|member| mentions(member, dir));
    if let (true, Some(group)) = (ours, Pid::from_raw(pid)) {
        kill_and_wait(group);
    }
}

/// Kills a process group and waits briefly until its members are gone, so that none of them writes files afterwards.
pub(crate) fn kill_and_wait(group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
    let deadline = Instant::now() + GONE_WITHIN;
    while !members(group.as_raw_pid()).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Running processes of a process group.
pub(crate) fn members(group: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            group_of(&stat) == Some(group)
        })
        .collect()
}

/// Process group from a line of `/proc/<pid>/stat`. `None` for a zombie.
fn group_of(stat: &str) -> Option<i32> {
    // The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

fn mentions(pid: i32, dir: &Path) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).contains(&*dir.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_directory_without_an_owner_is_swept_and_a_live_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        let live = RunDir::create_under(root.path()).unwrap();
        let dead = root.path().join("1-0");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(LOCK), "").unwrap();
        let second = RunDir::create_under(root.path()).unwrap();
        assert!(live.path().is_dir() && second.path().is_dir());
        assert!(!dead.exists());
    }

    #[test]
    fn a_name_is_never_used_again() {
        let root = tempfile::tempdir().unwrap();
        let first = RunDir::create_under(root.path()).unwrap();
        std::fs::remove_dir_all(first.path()).unwrap();
        let second = RunDir::create_under(root.path()).unwrap();
        drop(first);
        assert!(second.path().is_dir());
    }

    #[test]
    fn a_recorded_process_that_is_not_our_guard_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let mut foreign = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let dead = root.path().join("1-0");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(GUARD), foreign.id().to_string()).unwrap();
        RunDir::create_under(root.path()).unwrap();
        assert!(!dead.exists());
        assert!(foreign.try_wait().unwrap().is_none());
        foreign.kill().unwrap();
        foreign.wait().unwrap();
    }

    #[test]
    fn the_process_group_is_read_past_a_strange_program_name() {
        assert_eq!(group_of("12 (a) b) S 1 77 77 0"), Some(77));
        assert_eq!(group_of("12 (sh) Z 1 77 77 0"), None);
        assert_eq!(group_of(""), None);
    }
}
