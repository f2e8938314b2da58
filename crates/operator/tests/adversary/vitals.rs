//! What must hold of the operator all the time: its memory, its probe, its lease, its workers, and where its requests go.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use coder_k8s_testbed::AuditEvent;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::{task::JoinError, time::error::Elapsed};

use crate::{Ran, Verdict, ensure, stage::Stage};

/// What memory may grow by.
const GROWTH_KIB: u64 = 64 * 1024;
/// How long a probe may take to be answered on a busy machine.
const PROBE: Duration = Duration::from_secs(5);
/// So many probes in a row without an answer, and the kubelet restarts the container.
const LOST_IN_A_ROW: usize = 3;
/// No object waits longer for a free worker. A bucket of the histogram.
const WAIT: &str = "10.0";

#[derive(Default)]
struct Observed {
    peak_kib: u64,
    /// The attacks that were under way then.
    at_peak: Vec<&'static str>,
    probes: u32,
    slowest: Duration,
    failures: Vec<String>,
    in_a_row: usize,
    most_in_a_row: usize,
}

impl Observed {
    fn probed(&mut self, took: Duration, answer: Result<Result<(u16, String), JoinError>, Elapsed>) {
        self.probes += 1;
        self.slowest = self.slowest.max(took);
        match answer {
            Ok(Ok((200, _))) => self.in_a_row = 0,
            other => {
                self.failures.push(format!("{other:?}"));
                self.in_a_row += 1;
                self.most_in_a_row = self.most_in_a_row.max(self.in_a_row);
            }
        }
    }
}

/// Watches the operator until it is judged.
pub(crate) struct Vitals {
    idle_kib: u64,
    lease: Lease,
    seen: Arc<Mutex<Observed>>,
    task: tokio::task::JoinHandle<()>,
}

impl Vitals {
    /// Begins, with an operator that has nothing to do.
    pub(crate) async fn watch(stage: &'static Stage) -> Self {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let seen = Arc::<Mutex<Observed>>::default();
        let idle_kib = resident_kib(stage);
        let task = tokio::spawn(look(stage, seen.clone()));
        Self { idle_kib, lease: lease(stage).await, seen, task }
    }

    /// The rows about the whole time.
    pub(crate) async fn judge(self, stage: &'static Stage) -> Vec<Ran> {
        self.task.abort();
        let Self { idle_kib, lease: before, seen, .. } = self;
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let row =
            |id, must, verdict| Ran { id, does: "all of these attacks", must, verdict, took: Duration::ZERO };
        vec![
            row("all memory", "memory stays within 64 MiB of idle", memory(idle_kib, &seen)),
            row("all probe", "/livez answers", probe(&seen)),
            row("all lease", "the lease is kept", kept(&before, &lease(stage).await)),
            row("all workers", "nothing waits long for a free worker", workers(&stage.metrics().await)),
            row("all requests", "no request goes where it should not", requests(stage)),
        ]
    }
}

async fn look(stage: &'static Stage, seen: Arc<Mutex<Observed>>) {
    loop {
        let now = resident_kib(stage);
        let grown = now > seen.lock().unwrap().peak_kib;
        if grown {
            let mut seen = seen.lock().unwrap();
            (seen.peak_kib, seen.at_peak) = (now, stage.under_way());
        }
        let began = Instant::now();
        let asked = tokio::spawn(stage.operator.get("--health-addr", "/livez"));
        let answer = tokio::time::timeout(PROBE, asked).await;
        seen.lock().unwrap().probed(began.elapsed(), answer);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn resident_kib(stage: &Stage) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", stage.operator.pid())).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or_default()
}

async fn lease(stage: &Stage) -> Lease {
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "coder-system");
    leases.get(coder_k8s_api::names::LEASE).await.unwrap()
}

fn memory(idle: u64, seen: &Observed) -> Verdict {
    let grown = seen.peak_kib.saturating_sub(idle);
    let figures = format!(
        "{} MiB idle, {} MiB at the peak, during {}",
        idle / 1024,
        seen.peak_kib / 1024,
        seen.at_peak.join(", ")
    );
    ensure(grown <= GROWTH_KIB, || figures.clone())?;
    Ok(figures)
}

fn probe(seen: &Observed) -> Verdict {
    let lost = seen.failures.len();
    let figures = format!("{} probes, {lost} of them lost, the slowest {:?}", seen.probes, seen.slowest);
    ensure(seen.most_in_a_row < LOST_IN_A_ROW && seen.probes > 0, || {
        format!("{figures}, {} in a row: {:?}", seen.most_in_a_row, seen.failures.first())
    })?;
    Ok(figures)
}

fn kept(before: &Lease, after: &Lease) -> Verdict {
    let [before, after] = [before, after].map(|lease| {
        let spec = lease.spec.clone().unwrap_or_default();
        (spec.holder_identity, spec.lease_transitions)
    });
    ensure(before == after, || format!("{before:?} became {after:?}"))?;
    Ok("the same holder".to_owned())
}

/// From the histogram of how long objects waited for a worker.
fn workers(metrics: &str) -> Verdict {
    let value = |start: &str| {
        let line = metrics.lines().find(|line| line.starts_with(start));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    let all = value("coder_k8s_queue_wait_seconds_count").ok_or("no histogram of waits")?;
    let within =
        value(&format!("coder_k8s_queue_wait_seconds_bucket{{le=\"{WAIT}\"}}")).ok_or("no such bucket")?;
    ensure(all == within, || format!("{} of {all} waited longer than {WAIT} s", all - within))?;
    Ok(format!("{all} waits, all within {WAIT} s"))
}

/// The Secrets of others are watched by their metadata, and read one by one.
fn requests(stage: &Stage) -> Verdict {
    let all = stage.requests(|_| true);
    let odd: Vec<_> = all
        .iter()
        .filter(|event| is_odd(event))
        .map(|event| format!("{} {}", event.verb, event.uri))
        .collect();
    ensure(odd.is_empty(), || format!("{} requests: {}", odd.len(), odd[..odd.len().min(3)].join(", ")))?;
    Ok(format!("{} requests", all.len()))
}

fn is_odd(event: &AuditEvent) -> bool {
    let AuditEvent { verb, resource, namespace, uri, .. } = event;
    let referenced = ["secrets", "configmaps"].contains(&resource.as_str());
    let collection = verb == "list" || verb == "watch";
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let written = ["create", "update", "patch", "delete", "deletecollection"].contains(&verb.as_str());
    // Its own Secrets are found by their labels.
    (referenced && collection && !namespace.is_empty() && !query.contains("labelSelector="))
        || (verb == "get" && query.contains("watch="))
        || path.contains("..")
        || path.contains('%')
        || (written && ["kube-system", "kube-public", "default"].contains(&namespace.as_str()))
}
