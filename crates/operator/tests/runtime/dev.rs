//! `coder-k8s dev`, as a newcomer runs it, and as it may end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use coder_k8s_testbed::eventually;
use rustix::process::{Pid, Signal};

/// Longer than `dev` gives itself.
const PATIENCE: Duration = Duration::from_mins(3);

struct Dev {
    child: Child,
    output: PathBuf,
}

impl Dev {
    fn start(name: &str, args: &[&str]) -> Self {
        let output = std::env::temp_dir().join(format!("coder-k8s-dev-{name}-{}", std::process::id()));
        let file = fs::File::create(&output).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_coder-k8s"))
            .arg("dev")
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, output }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    async fn says(&self, text: &str) {
        let said = eventually(PATIENCE, || async {
            if self.output().contains(text) { Ok(()) } else { Err(self.output()) }
        });
        said.await.unwrap_or_else(|error| panic!("{text:?} was not said: {error}"));
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(),
            signal,
        )
        .unwrap();
    }

    /// The folder of its cluster.
    fn folder(&self) -> PathBuf {
        let output = self.output();
        let kubeconfig =
            output.lines().find_map(|line| line.trim().strip_prefix("export KUBECONFIG=")).unwrap();
        Path::new(kubeconfig).parent().unwrap().to_owned()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.output);
    }
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
async fn it_ends_by_itself_when_every_sample_is_settled() {
    // Less than the minutes after which a license is asked for again.
    let mut dev = Dev::start("until-ready", &["--until-ready", "--timeout=90s"]);
    dev.says("done: nothing is left behind").await;
    let folder = dev.folder();
    assert_eq!(dev.child.wait().unwrap().code(), Some(0), "{}", dev.output());
    for line in [
        "applied CoderProvisioner coder/build-pool",
        "created ServiceAccount coder/coder",
        "created Deployment coder/provisioner-build-pool",
        "every sample is settled",
    ] {
        assert!(dev.output().contains(line), "{line} is missing in\n{}", dev.output());
    }
    gone(&folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_leaves_nothing_behind_however_it_ends() {
    for (name, signal, code) in [("killed", Signal::KILL, None), ("interrupted", Signal::INT, Some(0))] {
        let mut dev = Dev::start(name, &[]);
        dev.says("watching; Ctrl-C ends it").await;
        let folder = dev.folder();
        dev.signal(signal);
        assert_eq!(dev.child.wait().unwrap().code(), code, "{}", dev.output());
        gone(&folder).await;
    }
}
