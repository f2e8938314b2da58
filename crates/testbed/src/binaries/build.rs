//! Builds the programs from the pinned Go modules, once.
//!
//! One process builds at a time, under a lock in the cache. The build has a directory of its own and is renamed into
//! place, so that an interrupted build is never used.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::MissedTickBehavior;

use super::{Binaries, ETCD, Error, GO_MOD, GO_SUM, KUBERNETES_VERSION, Progress, Sources, Stage};

const NEEDED_GO: &str = "1.26";
/// Often enough for a bar that moves. Who prints lines takes fewer of them, see [`super::Pace`].
const REPORT_EVERY: Duration = Duration::from_millis(200);
const TAIL_LINES: usize = 20;

/// The main packages, which Go reports right before it links them.
const TOOLS: [&str; 4] = [
    "go.etcd.io/etcd/server/v3",
    "k8s.io/kubernetes/cmd/kube-apiserver",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kubectl",
];

/// Go names a program after its package; etcd's main package is called `server`.
const ETCD_AS_BUILT: &str = "server";

/// The flags of `go build`, apart from the output directory. They are part of the cache's key.
pub(super) fn flags() -> [String; 6] {
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    let version = "k8s.io/component-base/version";
    let ldflags = format!(
        "-s -w -X {version}.gitVersion={KUBERNETES_VERSION} -X {version}.gitMajor={major} \
         -X {version}.gitMinor={minor} -X {version}.gitTreeState=clean"
    );
    ["build".into(), "-v".into(), "-trimpath".into(), "-mod=readonly".into(), "-ldflags".into(), ldflags]
}

/// Finds the programs, or builds them into the cache.
pub(super) async fn build(sources: &Sources, progress: &mut dyn FnMut(Progress)) -> Result<Binaries, Error> {
    match Binaries::locate_in(sources) {
        Err(Error::NotBuilt { .. } | Error::InNeither { .. }) => {}
        found => return found,
    }
    let dir = sources.build_dir();
    std::fs::create_dir_all(&dir).map_err(io("create", &dir))?;
    let mut report = Report::new("the cluster's binaries", &TOOLS, progress);
    let _lock = lock(&dir.join("lock"), &mut report).await?;
    if let Ok(found) = Binaries::locate_in(sources) {
        return Ok(found);
    }

    let path = std::env::var_os("PATH").unwrap_or_default();
    let go = find_go(&path)?;
    let work = dir.join("module");
    std::fs::create_dir_all(&work).map_err(io("create", &work))?;
    for (name, text) in [("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
        let file = work.join(name);
        std::fs::write(&file, text).map_err(io("write", &file))?;
    }

    report.stage(Stage::Downloading);
    let mut list = Command::new(&go);
    list.args(["list", "-mod=readonly", "-deps", "tool"]).env("CGO_ENABLED", "0");
    let listed = run(&mut list, "list", &work, &mut report).await?;
    report.total = listed.lines().count();

    let partial = dir.join("partial");
    remove(&partial)?;
    std::fs::create_dir_all(&partial).map_err(io("create", &partial))?;
    report.stage(Stage::Compiling);
    let mut command = Command::new(&go);
    command.args(flags()).arg("-o").arg(&partial).arg("tool").env("CGO_ENABLED", "0");
    run(&mut command, "build", &work, &mut report).await?;

    let built = partial.join(ETCD_AS_BUILT);
    std::fs::rename(&built, partial.join(ETCD)).map_err(io("rename", &built))?;
    let bin = sources.bin_dir();
    remove(&bin)?;
    std::fs::rename(&partial, &bin).map_err(io("rename", &partial))?;
    Binaries::locate_in(sources)
}

/// Takes the exclusive lock. Reports that it waits while another process has it.
pub(super) async fn lock(path: &Path, report: &mut Report<'_>) -> Result<File, Error> {
    let file = File::create(path).map_err(io("create", path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                report.stage(Stage::Waiting);
                tokio::time::sleep(Duration::from_millis(200)).await;
                report.tick();
            }
            Err(TryLockError::Error(source)) => return Err(io("lock", path)(source)),
        }
    }
}

/// Runs Go in the directory of the module. Returns its standard output.
pub(super) async fn run(
    command: &mut Command,
    name: &'static str,
    work: &Path,
    report: &mut Report<'_>,
) -> Result<String, Error> {
    let mut child = command
        .current_dir(work)
        .env("GOWORK", "off")
        .env_remove("GOFLAGS")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(io("run go in", work))?;
    let mut tail = VecDeque::new();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read_output = async {
        let mut text = String::new();
        if let Some(mut pipe) = stdout {
            pipe.read_to_string(&mut text).await?;
        }
        Ok(text)
    };
    let read_messages = async {
        let Some(pipe) = stderr else { return Ok(()) };
        let mut lines = BufReader::new(pipe).lines();
        let mut ticks = tokio::time::interval(REPORT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Some(line) = line? else { return Ok::<_, std::io::Error>(()) };
                    report.line(&line);
                    if tail.len() == TAIL_LINES {
                        tail.pop_front();
                    }
                    tail.push_back(line);
                }
                _ = ticks.tick() => report.tick(),
            }
        }
    };
    let (text, ()) = tokio::try_join!(read_output, read_messages).map_err(io("read go's output in", work))?;
    let status = child.wait().await.map_err(io("wait for go in", work))?;
    if status.success() {
        Ok(text)
    } else {
        Err(Error::Go { command: name, status, output: Vec::from(tail).join("\n") })
    }
}

pub(super) fn find_go(path: &OsStr) -> Result<PathBuf, Error> {
    std::env::split_paths(path)
        .map(|dir| dir.join("go"))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| Error::NoGo { needed: NEEDED_GO, searched: path.to_string_lossy().into_owned() })
}

pub(super) fn remove(dir: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("remove", dir)(error)),
        _ => Ok(()),
    }
}

pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}

/// Turns the messages of Go into [`Progress`], at a bounded rate.
pub(super) struct Report<'a> {
    subject: &'static str,
    mains: &'static [&'static str],
    callback: &'a mut dyn FnMut(Progress),
    stage: Option<Stage>,
    done: usize,
    pub(super) total: usize,
    detail: String,
    mains_seen: usize,
    began: Instant,
    told: Instant,
}

impl<'a> Report<'a> {
    /// Reports on a build with these main packages.
    pub(super) fn new(
        subject: &'static str,
        mains: &'static [&'static str],
        callback: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let now = Instant::now();
        let detail = String::new();
        Self {
            subject,
            mains,
            callback,
            stage: None,
            done: 0,
            total: 0,
            detail,
            mains_seen: 0,
            began: now,
            told: now,
        }
    }

    pub(super) fn stage(&mut self, stage: Stage) {
        if self.stage == Some(stage) {
            return;
        }
        self.stage = Some(stage);
        if stage != Stage::Linking {
            self.done = 0;
        }
        self.tell();
    }

    /// Handles a line of Go's standard error: a package with `-v`, or a message of Go itself.
    fn line(&mut self, line: &str) {
        if let Some(module) = line.strip_prefix("go: downloading ") {
            if self.stage == Some(Stage::Downloading) {
                self.done += 1;
            }
            module.clone_into(&mut self.detail);
        } else if self.stage != Some(Stage::Downloading) && !line.contains(' ') {
            self.done += 1;
            line.clone_into(&mut self.detail);
            if self.mains.contains(&line) {
                self.mains_seen += 1;
            }
            if self.mains_seen == self.mains.len() {
                self.stage(Stage::Linking);
            }
        }
        self.tick();
    }

    fn tick(&mut self) {
        if self.told.elapsed() >= REPORT_EVERY {
            self.tell();
        }
    }

    fn tell(&mut self) {
        let Some(stage) = self.stage else { return };
        self.told = Instant::now();
        (self.callback)(Progress {
            subject: self.subject,
            stage,
            done: self.done,
            total: self.total,
            detail: self.detail.clone(),
            elapsed: self.began.elapsed(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_and_the_go_version_are_those_of_the_module() {
        for tool in TOOLS {
            assert!(GO_MOD.contains(&format!("\t{tool}\n")), "{tool} is no tool of go.mod");
        }
        assert!(GO_MOD.contains(&format!("\ngo {NEEDED_GO}")));
    }

    #[test]
    fn a_missing_go_is_reported_with_the_version_and_the_places() {
        let text = find_go(OsStr::new("/nowhere/bin:/nothing")).unwrap_err().to_string();
        assert!(text.contains("Go 1.26") && text.contains("/nowhere/bin:/nothing"), "{text}");
    }

    #[test]
    fn gos_messages_become_stages_and_counts() {
        let mut told = Vec::new();
        let mut callback = |progress: Progress| told.push((progress.stage, progress.done));
        let mut report = Report::new("them", &TOOLS, &mut callback);
        report.stage(Stage::Downloading);
        report.line("go: downloading k8s.io/api v0.36.3");
        report.stage(Stage::Compiling);
        report.line("internal/abi");
        report.line("# a warning of the linker");
        for tool in TOOLS {
            report.line(tool);
        }
        assert_eq!(report.done, 5);
        assert_eq!(told, [(Stage::Downloading, 0), (Stage::Compiling, 0), (Stage::Linking, 5)]);
    }

    #[tokio::test]
    async fn a_failing_build_carries_gos_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut silent = |_| {};
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "for n in $(seq 30); do echo line $n >&2; done; exit 3"]);
        let mut report = Report::new("them", &TOOLS, &mut silent);
        let error = run(&mut command, "build", dir.path(), &mut report).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("line 30"), "{text}");
        assert!(text.contains("line 11\n") && !text.contains("line 10\n"), "{text}");
    }
}
