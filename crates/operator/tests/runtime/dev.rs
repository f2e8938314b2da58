//! `coder-k8s dev`, as a newcomer runs it, on a terminal and without one, and as it may end.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use coder_k8s_testbed::eventually;
use parking_lot::Mutex;
use rustix::{
    process::{Pid, Signal},
    pty,
    termios::{Winsize, tcsetwinsize},
};

/// Longer than `dev` gives itself.
const PATIENCE: Duration = Duration::from_mins(3);

/// What switches the full-screen mode on and off, and hides and shows the cursor.
const MODES: [(&str, &str); 2] = [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")];

/// A running `dev` and all that it has printed. It has a cache of its own for its link, with the programs of the real one.
struct Dev {
    child: Child,
    printed: Arc<Mutex<Vec<u8>>>,
    cache: PathBuf,
}

impl Dev {
    /// Without a terminal.
    fn start(name: &str, args: &[&str]) -> Self {
        let (reader, writer) = io::pipe().unwrap();
        let mut command = command(name, args);
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        Self::spawn(name, command, reader)
    }

    /// On a terminal of this size. The other side of the terminal is for changing its size.
    fn on_terminal(name: &str, args: &[&str], size: Winsize) -> (Self, fs::File) {
        let ours = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
        pty::grantpt(&ours).unwrap();
        pty::unlockpt(&ours).unwrap();
        let path = pty::ptsname(&ours, Vec::new()).unwrap();
        let theirs = fs::File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        tcsetwinsize(&ours, size).unwrap();
        let mut command = command(name, args);
        command.env("TERM", "xterm-256color").stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let ours = fs::File::from(ours);
        (Self::spawn(name, command, ours.try_clone().unwrap()), ours)
    }

    fn spawn(name: &str, mut command: Command, mut reader: impl Read + Send + 'static) -> Self {
        let child = command.spawn().unwrap();
        // Closes this process's copies of what the child writes to.
        drop(command);
        let printed = Arc::new(Mutex::new(Vec::new()));
        let kept = printed.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other side is closed reads as an error.
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                kept.lock().extend_from_slice(&buffer[..length]);
            }
        });
        Self { child, printed, cache: cache(name) }
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&self.printed.lock()).into_owned()
    }

    async fn says(&self, text: &str) {
        let said = eventually(PATIENCE, || async {
            if self.output().contains(text) { Ok(()) } else { Err(self.output()) }
        });
        said.await.unwrap_or_else(|error| panic!("{text:?} was not said: {error}"));
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end, and returns the exit code.
    async fn ends(&mut self) -> Option<i32> {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // The reader may be a moment behind.
                tokio::time::sleep(Duration::from_millis(200)).await;
                return status.code();
            }
            assert!(std::time::Instant::now() < deadline, "it does not end: {}", self.output());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The folder of its cluster.
    fn folder(&self) -> PathBuf {
        fs::read_link(self.cache.join("dev")).unwrap().parent().unwrap().to_owned()
    }

    /// The lines to paste into another terminal: the one that sets its environment, and the commands.
    fn commands(&self) -> (String, Vec<String>) {
        let output = self.output();
        let after = output.lines().skip_while(|line| !line.starts_with("TRY NEXT")).skip(1);
        let mut lines = after.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with('#'));
        let environment = lines.next().unwrap().to_owned();
        (environment, lines.map(str::to_owned).collect())
    }

    /// Pastes a command into another terminal.
    fn paste(&self, line: &str) -> String {
        let (environment, _) = self.commands();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{environment}\n{line}")]).env_remove("KUBECONFIG");
        let Output { status, stdout, stderr } = shell.output().unwrap();
        let text = String::from_utf8_lossy(&stdout).into_owned();
        assert!(status.success(), "{line}: {text}{}", String::from_utf8_lossy(&stderr));
        assert!(stderr.is_empty(), "{line} warns: {}", String::from_utf8_lossy(&stderr));
        text
    }

    /// Waits until a command prints what it should.
    async fn prints(&self, line: &str, expected: impl Fn(&str) -> bool) -> String {
        let found = eventually(PATIENCE, || async {
            let text = self.paste(line);
            if expected(&text) { Ok(text) } else { Err(text) }
        });
        found.await.unwrap_or_else(|error| panic!("{line}: {error}\n{}", self.output()))
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.cache);
    }
}

fn cache(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("coder-k8s-dev-{name}-{}", std::process::id()))
}

fn command(name: &str, args: &[&str]) -> Command {
    let cache = cache(name);
    fs::create_dir_all(&cache).unwrap();
    let binaries = coder_k8s_testbed::Binaries::locate().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_coder-k8s"));
    command
        .arg("dev")
        .args(args)
        .env("CODER_K8S_CACHE", &cache)
        .env("KUBEBUILDER_ASSETS", binaries.kube_apiserver.parent().unwrap())
        .stdin(Stdio::null());
    command
}

/// Waits until neither the folder nor a process that has it in its command line is there.
async fn gone(folder: &Path) {
    eventually(PATIENCE, || async {
        let mentions = |pid: &PathBuf| {
            let line = fs::read(pid.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&*folder.to_string_lossy())
        };
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(mentions)
            .count();
        match (processes, folder.exists()) {
            (0, false) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_by_itself_when_everything_is_ready() {
    // Less than the minutes after which a license is asked for again.
    let mut dev = Dev::start("until-ready", &["--until-ready", "--timeout=90s"]);
    dev.says("stopping the cluster").await;
    let code = dev.ends().await;
    let output = dev.output();
    assert_eq!(code, Some(0), "{output}");
    assert!(!output.contains('\x1b'), "escape sequences without a terminal:\n{output}");
    assert!(
        !output.contains("WARN") && !output.contains("Warning"),
        "a warning for what is expected:\n{output}"
    );
    for line in [
        "created ServiceAccount coder/coder",
        "created Deployment coder/provisioner-pool-eu",
        "everything is Ready",
        "done: nothing is left behind",
    ] {
        assert!(output.contains(line), "{line} is missing in\n{output}");
    }
    let table: Vec<_> = output.lines().skip_while(|line| !line.starts_with("KIND")).collect();
    for (kind, name, fact) in [
        ("CoderControlPlane", "coder/coder", "simulated coderd v2.36.1, premium license until "),
        ("CoderProvisioner", "coder/pool-eu", "tags region=eu, key pool-eu, 2 simulated daemons connected"),
        ("CoderProvisioner", "coder/pool-us", "tags region=us, key pool-us, 1 simulated daemon connected"),
        ("CoderWorkspaceProxy", "coder/proxy-eu", "registered as proxy-eu, simulated health ok"),
    ] {
        let row = table.iter().position(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(kind) && words.next() == Some(name) && words.next() == Some("True")
        });
        let row = row.unwrap_or_else(|| panic!("{kind} {name} is not Ready in\n{output}"));
        assert!(table[row + 1].contains(fact), "{fact} is missing in\n{output}");
    }
    let (_, commands) = dev.commands();
    assert_eq!(commands.len(), 3, "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_fails_with_what_is_missing_when_not_everything_is_ready() {
    let folder = cache("missing-manifests");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("lost.yaml"),
        "apiVersion: coder.com/v1alpha1\nkind: CoderProvisioner\nmetadata: {name: lost, namespace: elsewhere}\n\
         spec: {controlPlaneRef: {name: nobody}}\n",
    )
    .unwrap();
    let path = folder.to_str().unwrap();
    let mut dev = Dev::start("missing", &["--until-ready", "--timeout=40s", "-f", path]);
    let code = dev.ends().await;
    let output = dev.output();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(code, Some(1), "{output}");
    let told = output.lines().skip_while(|line| !line.contains("not everything is Ready after 40s:"));
    let told: Vec<_> = told.collect();
    assert!(
        told.iter().any(|line| line.contains("CoderProvisioner elsewhere/lost: Ready=False ")),
        "{output}"
    );
    assert!(!output.contains("TRY NEXT"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_that_it_shows_work_in_another_terminal() {
    let mut dev = Dev::start("commands", &[]);
    dev.says("watching; Ctrl-C ends it").await;
    let folder = dev.folder();
    let (_, commands) = dev.commands();
    let [renew, retag, delete] = &commands[..] else { panic!("three commands: {commands:?}") };
    let status =
        |kind: &str, path: &str| format!("kubectl get {kind} --output=jsonpath='{{.status.{path}}}'");

    let expires = status("ccp/coder", "license.expires");
    let before = dev.paste(&expires);
    dev.paste(renew);
    let after = dev.prints(&expires, |text| text != before).await;
    assert!(after > before, "{before} to {after}");

    let key = status("cprov/pool-us", "provisionerKeyName");
    assert_eq!(dev.paste(&key), "pool-us");
    dev.paste(retag);
    let key = dev.prints(&key, |text| text != "pool-us").await;
    assert!(key.starts_with("pool-us-"), "{key}");
    // The old key goes when no daemon uses it, and the daemon of the new one is connected.
    dev.prints(&status("cprov/pool-us", "staleKeys"), str::is_empty).await;
    dev.paste("kubectl wait cprov/pool-us --for=condition=Ready --timeout=60s");
    dev.paste("kubectl wait cprov/pool-us --for=condition=DaemonsConnected --timeout=60s");
    assert!(dev.paste(&status("cprov/pool-us", "daemons.connected")).starts_with('1'));

    dev.paste(delete);
    let left = dev.paste("kubectl get coder,deployments --output=name");
    let left: Vec<_> = left.lines().filter(|line| !line.starts_with("deployment")).collect();
    assert!(left.is_empty(), "{left:?}");
    dev.prints("kubectl get deployments,pods --output=name", str::is_empty).await;

    dev.signal(Signal::INT);
    assert_eq!(dev.ends().await, Some(0), "{}", dev.output());
    assert!(!dev.output().contains("WARN"), "{}", dev.output());
    gone(&folder).await;
    assert!(fs::symlink_metadata(dev.cache.join("dev")).is_err(), "the link is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_it_draws_in_place_and_restores_the_screen() {
    let size = |columns, rows| Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut dev, terminal) = Dev::on_terminal("terminal", &[], size(100, 40));
    dev.says("everything is Ready").await;
    let output = dev.output();
    for (on, off) in MODES {
        assert!(output.contains(on) && !output.contains(off), "the view has the screen");
    }
    for part in ["LAST EVENTS", "TRY NEXT, in another terminal", "kubectl delete coder --all", "\x1b[32m●"]
    {
        assert!(output.contains(part), "{part} is missing in\n{output}");
    }
    // Every frame begins at the upper left corner. None has more lines than the terminal, which would scroll.
    let frame = |output: &str| output.rsplit("\x1b[H").nth(1).unwrap().to_owned();
    assert!(frame(&output).matches('\n').count() < 40);

    tcsetwinsize(&terminal, size(50, 12)).unwrap();
    dev.signal(Signal::WINCH);
    let resized = eventually(PATIENCE, || async {
        let frame = frame(&dev.output());
        if frame.matches('\n').count() < 12 { Ok(frame) } else { Err(frame) }
    });
    let frame = resized.await.unwrap();
    assert!(!frame.contains("LAST EVENTS") && frame.contains("coder/pool-us"), "{frame}");

    let folder = dev.folder();
    dev.signal(Signal::INT);
    assert_eq!(dev.ends().await, Some(0));
    let output = dev.output();
    for (on, off) in MODES {
        assert!(output.rfind(off) > output.rfind(on), "the screen is restored");
    }
    let after = output.rsplit(MODES[0].1).next().unwrap();
    assert!(after.contains("CoderWorkspaceProxy") && after.contains("nothing is left behind"), "{after}");
    gone(&folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_leaves_nothing_behind_when_it_is_killed() {
    let mut dev = Dev::start("killed", &[]);
    dev.says("applied CoderControlPlane").await;
    let folder = dev.folder();
    dev.signal(Signal::KILL);
    assert_eq!(dev.ends().await, None, "{}", dev.output());
    gone(&folder).await;
    assert!(!dev.cache.join("dev").exists(), "the link leads nowhere, and the next run takes it");
}

#[test]
fn a_bad_manifest_is_reported_before_anything_starts() {
    let folder = cache("bad");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("bad.yaml");
    fs::write(&file, "kind: CoderProvisioner\nmetadata: {name: x}\n").unwrap();
    for (path, sentence) in [
        (file.as_path(), "document 1: not a manifest of Kubernetes: it has no apiVersion"),
        (Path::new("/nowhere/x.yaml"), "cannot read -f /nowhere/x.yaml: No such file or directory"),
        (Path::new("/proc/self/fdinfo"), "the folder has no .yaml, .yml or .json file"),
    ] {
        let Output { status, stdout, stderr } =
            Command::new(env!("CARGO_BIN_EXE_coder-k8s")).args(["dev", "-f"]).arg(path).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert!(status.code() == Some(1) && said.contains(sentence), "{}: {said}", path.display());
        assert!(stdout.is_empty(), "nothing is started");
    }
    fs::remove_dir_all(&folder).unwrap();
}
