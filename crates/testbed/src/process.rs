//! The processes of one cluster, none of which outlives the process that started it.
//!
//! A shell, the *guard*, leads a process group that every component joins. It reads a pipe whose other end only
//! this process holds. When this process ends, in whatever way, the pipe closes, and the guard ends the group and
//! removes the run directory. An orderly stop closes the pipe too and waits for the same to happen. Components are
//! not in the terminal's group, so Ctrl-C reaches only this process.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::rundir::{RunDir, kill_and_wait, members};
use crate::user::User;

const STOP_WITHIN: Duration = Duration::from_secs(5);
const TAIL_LINES: usize = 25;

/// A process group with a guard and a run directory.
#[derive(Debug)]
pub(crate) struct Group {
    guard: Mutex<Guard>,
    pid: u32,
    components: Mutex<Vec<Arc<Component>>>,
    dir: RunDir,
}

#[derive(Debug)]
struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Group {
    /// Creates a run directory and starts its guard.
    pub(crate) fn start() -> io::Result<Self> {
        let dir = RunDir::create()?;
        let mut child = Command::new("/bin/sh")
            .args(["-c", include_str!("guard.sh"), "coder-k8s-testbed-guard"])
            .arg(dir.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        dir.record_guard(child.id())?;
        let pipe = child.stdin.take();
        let pid = child.id();
        Ok(Self { guard: Mutex::new(Guard { child, pipe }), pid, components: Mutex::default(), dir })
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    pub(crate) fn guard_pid(&self) -> u32 {
        self.pid
    }

    /// Starts a program in the group. Its output is appended to `<name>.log` in the run directory.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        program: &Path,
        args: &[String],
    ) -> io::Result<Arc<Component>> {
        self.spawn_as(None, name, program, args)
    }

    /// As [`Group::spawn`], as another user.
    pub(crate) fn spawn_as(
        &self,
        user: Option<User>,
        name: &'static str,
        program: &Path,
        args: &[String],
    ) -> io::Result<Arc<Component>> {
        let log = self.dir.file(&format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(program);
        if let Some(User { uid, gid }) = user {
            command.uid(uid).gid(gid);
        }
        let child = command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .process_group(self.group()?.as_raw_pid())
            .spawn()?;
        let component = Arc::new(Component { name, pid: child.id(), log, child: Mutex::new(child) });
        let mut components = self.components.lock();
        components.retain(|other| other.exited().is_none());
        components.push(component.clone());
        Ok(component)
    }

    fn group(&self) -> io::Result<Pid> {
        pid(self.pid)
    }

    /// Starts a command in the group, for a container. Its output is appended to `log`.
    pub(crate) fn launch(&self, mut command: Command, log: PathBuf) -> io::Result<Arc<Component>> {
        let out = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .process_group(self.group()?.as_raw_pid())
            .spawn()?;
        let component =
            Arc::new(Component { name: "container", pid: child.id(), log, child: Mutex::new(child) });
        let mut components = self.components.lock();
        components.retain(|other| other.exited().is_none());
        components.push(component.clone());
        Ok(component)
    }

    /// Kills the group and removes the directory. Blocks for at most about five seconds.
    pub(crate) fn stop(&self) {
        let mut guard = self.guard.lock();
        if guard.pipe.is_none() {
            return;
        }
        let components = self.components.lock();
        // SIGKILL: a graceful shutdown of a component takes seconds, and there is nothing to save.
        for component in components.iter() {
            let _ = component.child.lock().kill();
        }
        guard.pipe = None;
        let deadline = Instant::now() + STOP_WITHIN;
        while self.guard_is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The guard itself may have been killed, so its work is done again. The group's id cannot have passed to
        // anyone else, because the guard has not been reaped yet.
        if let Ok(group) = self.group() {
            kill_and_wait(group);
        }
        for component in components.iter() {
            let _ = component.child.lock().wait();
        }
        let _ = guard.child.wait();
        let _ = std::fs::remove_dir_all(self.dir.path());
    }

    /// Does not reap the process.
    fn guard_is_running(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.group().is_ok_and(|pid| matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Running processes of the group, including the guard.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.group().map(|group| members(group.as_raw_pid())).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A running program of a cluster.
#[derive(Debug)]
pub(crate) struct Component {
    pub(crate) name: &'static str,
    pid: u32,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Component {
    /// Exit status, if the program has exited.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        // The lock keeps the process from being reaped, and its id from being used again, in between.
        let mut child = self.child.lock();
        match child.try_wait()? {
            Some(status) => Err(io::Error::other(format!("{} has ended ({status})", self.name))),
            None => Ok(kill_process(pid(self.pid)?, signal)?),
        }
    }

    /// Suspends the program and waits until its last thread has stopped: on a busy machine that takes a while after
    /// the signal, and the other threads go on in the meantime.
    pub(crate) fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let deadline = Instant::now() + STOP_WITHIN;
        while waitid(WaitId::Pid(pid(self.pid)?), options)?.is_none() {
            if Instant::now() >= deadline {
                return Err(io::Error::other(format!("{} did not stop within {STOP_WITHIN:?}", self.name)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Kills the program and waits until it has exited.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let mut child = self.child.lock();
        child.kill()?;
        child.wait().map(drop)
    }

    /// Waits until the program exits by itself. Returns whether it did.
    pub(crate) fn ended_within(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.exited().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n")
    }
}

fn pid(raw: u32) -> io::Result<Pid> {
    i32::try_from(raw).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("not a process id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(group: &Group, script: &str) -> Arc<Component> {
        group.spawn("sleeper", Path::new("/bin/sh"), &["-c".into(), script.into()]).unwrap()
    }

    fn until_ready(component: &Component) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while component.log_tail().is_empty() {
            assert!(Instant::now() < deadline, "{} wrote nothing", component.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_stop_ends_the_group_and_removes_the_directory() {
        let group = Group::start().unwrap();
        let component = sleeper(&group, "sleep 600 & echo ready; wait");
        until_ready(&component);
        let stopped = sleeper(&group, "sleep 600");
        stopped.pause().unwrap();
        assert!(group.pids().len() >= 3);
        let began = Instant::now();
        group.stop();
        assert!(began.elapsed() < STOP_WITHIN, "took {:?}", began.elapsed());
        assert!(component.exited().is_some());
        assert!(group.pids().is_empty());
        assert!(!group.dir().path().exists());
    }

    #[test]
    fn a_process_that_ignores_the_request_to_end_is_killed() {
        let group = Group::start().unwrap();
        let component = sleeper(&group, "(trap '' TERM; echo ready; while :; do sleep 1; done) & wait");
        until_ready(&component);
        group.stop();
        assert!(group.pids().is_empty());
        assert!(!group.dir().path().exists());
    }

    #[test]
    fn a_stop_works_without_the_guard() {
        let group = Group::start().unwrap();
        let component = sleeper(&group, "sleep 600 & echo ready; wait");
        until_ready(&component);
        kill_process(group.group().unwrap(), Signal::KILL).unwrap();
        group.stop();
        assert!(group.pids().is_empty());
        assert!(!group.dir().path().exists());
    }
}
