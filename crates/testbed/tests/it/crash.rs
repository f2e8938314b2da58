//! Nothing is left behind, however the process ends.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use coder_k8s_testbed::{Cluster, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{SOON, alone};

/// A process of its own that has started a cluster.
struct Victim {
    child: Child,
    dir: PathBuf,
    guard: i32,
    pids: Vec<i32>,
}

impl Victim {
    fn start() -> Self {
        let mut child =
            Command::new(env!("CARGO_BIN_EXE_testbed-cluster")).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let facts: Value = serde_json::from_str(&line).expect("the victim has started its cluster");
        Self {
            child,
            dir: facts["dir"].as_str().unwrap().into(),
            guard: serde_json::from_value(facts["guard"].clone()).unwrap(),
            pids: serde_json::from_value(facts["pids"].clone()).unwrap(),
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn until_nothing_is_left(&self) {
        eventually(SOON, || async {
            let left: Vec<_> = self.pids.iter().filter(|&&pid| is_alive(pid)).collect();
            let dir = self.dir.exists();
            if left.is_empty() && !dir { Ok(()) } else { Err(format!("processes {left:?}, directory {dir}")) }
        })
        .await
        .unwrap();
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

#[tokio::test]
async fn a_killed_process_takes_its_cluster_with_it() {
    let _alone = alone().await;
    let mut victim = tokio::task::spawn_blocking(Victim::start).await.unwrap();
    assert_eq!(victim.pids.len(), 4, "the guard and three components");
    victim.kill();
    victim.until_nothing_is_left().await;
}

#[tokio::test]
async fn the_next_start_removes_what_a_killed_guard_left() {
    let _alone = alone().await;
    let mut victim = tokio::task::spawn_blocking(Victim::start).await.unwrap();
    kill_process(Pid::from_raw(victim.guard).unwrap(), Signal::KILL).unwrap();
    victim.kill();
    let cluster = Cluster::builder().controller_manager(false).start().await.unwrap();
    victim.until_nothing_is_left().await;
    assert!(cluster.run_dir().exists());
}
