//! The operator as a process, and what the kernel says about it and about the API server.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use coder_k8s_testbed::own_address;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// How often an operator that starts is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(5);

/// How to start an operator.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// For a shell, which finds the cluster's kubeconfig in `KUBECONFIG`.
    pub(crate) command: String,
    pub(crate) kubeconfig: PathBuf,
    /// Where its output goes.
    pub(crate) log: PathBuf,
    /// Whether it serves `/readyz` at the address in `CODER_K8S_HEALTH_ADDR`, and metrics at that in
    /// `CODER_K8S_METRICS_ADDR`.
    pub(crate) has_probes: bool,
    /// The process group that it joins: that of the cluster, whose guard ends it if the bench is killed. 0: its own.
    pub(crate) group: i32,
}

/// A running operator. Killed when dropped.
pub(crate) struct Operator {
    child: Child,
    log: PathBuf,
    /// None: it has no probes.
    pub(crate) probes: Option<SocketAddr>,
}

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Memory {
    pub(crate) rss: u64,
    /// Pages that are shared with other processes count in part.
    pub(crate) pss: u64,
}

impl Memory {
    /// How much more there is of it than before, in KiB of PSS. Negative if there is less.
    #[expect(clippy::cast_precision_loss, reason = "KiB of a process")]
    pub(crate) fn grown(self, before: Self) -> f64 {
        self.pss as f64 - before.pss as f64
    }
}

impl Recipe {
    pub(crate) fn start(&self) -> Result<Operator> {
        let file = File::options().create(true).append(true).open(&self.log)?;
        // An address for each instance: two of them run at a time.
        let address = self.has_probes.then(own_address).transpose()?;
        let probes = address.map(|address| SocketAddr::from((address, 8081)));
        let child = Command::new("sh")
            // The shell is replaced, so that the process is the operator.
            .args(["-c", &format!("exec {}", self.command)])
            .env("KUBECONFIG", &self.kubeconfig)
            .envs(probes.map(|address| ("CODER_K8S_HEALTH_ADDR", address.to_string())))
            .envs(probes.map(|address| ("CODER_K8S_METRICS_ADDR", metrics_of(address).to_string())))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(self.group)
            .spawn()
            .with_context(|| format!("cannot start {}", self.command))?;
        Ok(Operator { child, log: self.log.clone(), probes })
    }
}

impl Operator {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the operator has ended, with the end of what it wrote.
    pub(crate) fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<_> = text.lines().rev().take(5).collect();
        bail!("the operator ended with {status}: {}", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
    }

    /// Waits until the operator ends, which it should not.
    pub(crate) async fn until_ended(&mut self) -> anyhow::Error {
        loop {
            if let Err(ended) = self.check() {
                return ended;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        memory(self.pid())
    }

    /// Asks it to stop, and waits.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        for _ in 0..600 {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the operator did not stop within 30 s of SIGTERM")
    }

    /// Ends it at once.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.child.wait()?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid =
            i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a process without an id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `/readyz` answers with 200.
pub(crate) async fn until_ready(probes: SocketAddr) {
    while !is_ready(probes).await.unwrap_or(false) {
        tokio::time::sleep(READY_POLL).await;
    }
}

async fn is_ready(probes: SocketAddr) -> io::Result<bool> {
    Ok(get(probes, "/readyz").await?.starts_with("HTTP/1.1 200"))
}

/// Where an instance with these probes serves its metrics.
fn metrics_of(probes: SocketAddr) -> SocketAddr {
    SocketAddr::new(probes.ip(), 8080)
}

/// The sum of a gauge of the operator over all its series.
pub(crate) async fn gauge(probes: SocketAddr, name: &str) -> Result<f64> {
    let text = get(metrics_of(probes), "/metrics").await?;
    let series =
        text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<f64>().ok());
    let values: Vec<_> = series.collect();
    if values.is_empty() {
        bail!("the operator has no metric {name}");
    }
    Ok(values.into_iter().sum())
}

async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The memory of any process.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (rss, pss) = value("Rss:").zip(value("Pss:")).context("smaps_rollup has another form")?;
    Ok(Memory { rss, pss })
}

/// The CPU time that a process has used so far.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may hold blanks.
    let (_, rest) = text.rsplit_once(')').context("/proc/PID/stat has another form")?;
    let ticks: u64 = rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    let a_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / a_second.max(1)))
}

/// The process among these that runs a program of this name.
pub(crate) fn named(pids: &[i32], name: &str) -> Result<u32> {
    let runs = |pid: &&i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
            let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
            Path::new(&*String::from_utf8_lossy(program)).file_name().is_some_and(|file| file == name)
        })
    };
    let found = pids.iter().find(runs).with_context(|| format!("no process of the cluster is {name}"))?;
    Ok(u32::try_from(*found)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_process_can_be_measured() {
        let own = std::process::id();
        let Memory { rss, pss } = memory(own).unwrap();
        assert!(rss > 500 && pss <= rss, "{rss} {pss}");
        let before = cpu(own).unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            std::hint::black_box((0..1000_u64).sum::<u64>());
        }
        assert!(cpu(own).unwrap() > before);
    }

    #[tokio::test]
    async fn only_a_200_of_readyz_counts_as_ready() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let probes = listener.local_addr().unwrap();
        let serve = async {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 128];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let ready = tokio::time::timeout(Duration::from_secs(10), until_ready(probes));
        assert!(tokio::join!(serve, ready).1.is_ok());
        drop(listener);
        assert!(is_ready(probes).await.is_err(), "nothing listens");
    }

    #[tokio::test]
    async fn an_operator_that_ends_is_noticed_with_its_last_words() {
        let folder = std::env::temp_dir().join(format!("coder-k8s-bench-{}", std::process::id()));
        let recipe = Recipe {
            command: "echo no such flag; false".into(),
            kubeconfig: PathBuf::new(),
            log: folder.clone(),
            has_probes: false,
            group: 0,
        };
        // `exec` of a builtin does not return: the list ends with its first command.
        let mut operator = recipe.start().unwrap();
        let failed = loop {
            if let Err(error) = operator.check() {
                break error;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(failed.to_string().contains("the operator ended"), "{failed}");
        fs::remove_file(folder).unwrap();
    }
}
