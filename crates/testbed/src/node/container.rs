//! A container as a process: started, probed, restarted when it exits, and stopped when its pod is deleted.

use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::environment::{self, Found};
use super::probe::{Prober, Verdict};
use super::processes::{Exit, Processes};
use super::program::Program;
use super::services::Resolver;
use super::substitutions::{listen_on, mentions, replace};
use crate::process::Component;

const POLL: Duration = Duration::from_millis(50);
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Deadline for reading the Secrets and ConfigMaps of a container. A lost request is sent again.
const LOOKUP_DEADLINE: Duration = Duration::from_secs(10);
/// A tenth of the kubelet's, because tests wait for it. As with the kubelet, the first restart has no delay.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);
/// A run of this length resets the delay.
const GOOD_RUN: Duration = Duration::from_mins(1);
const USUAL_GRACE: u64 = 30;

/// State of a container, as its pod status reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) phase: Phase,
    pub(super) restarts: i32,
    pub(super) last: Option<Ended>,
}

/// Phase of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting { reason: &'static str, message: String },
    Running { since: Timestamp, started: bool, ready: bool },
}

/// How a run of a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) exit_code: i32,
    pub(super) began: Timestamp,
    pub(super) finished: Timestamp,
}

/// The task of one container.
pub(super) struct Task {
    pub(super) client: Client,
    pub(super) processes: Arc<Processes>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) program: Program,
    pub(super) address: Ipv4Addr,
    pub(super) observed: Arc<Mutex<Observed>>,
    pub(super) changed: UnboundedSender<()>,
    /// Cancelled when the pod is deleted.
    pub(super) stop: CancellationToken,
}

impl Observed {
    pub(super) fn new() -> Self {
        let phase = Phase::Waiting { reason: "ContainerCreating", message: String::new() };
        Self { phase, restarts: 0, last: None }
    }
}

impl Task {
    /// Runs until the pod is deleted and the process has exited.
    pub(super) async fn run(self) {
        let mut back_off = None;
        while !self.stop.is_cancelled() {
            let began = Instant::now();
            match self.run_once().await {
                Err(problem) => {
                    self.wait("CreateContainerConfigError", problem);
                    self.pause(TRY_AGAIN).await;
                    continue;
                }
                Ok(ended) => self.note(|seen| {
                    seen.last = Some(ended);
                    seen.restarts += 1;
                }),
            }
            if began.elapsed() >= GOOD_RUN {
                back_off = None;
            }
            if let Some(pause) = back_off {
                let (name, pod) = (&self.container.name, self.pod.name_any());
                let message = format!("back-off {pause:?} restarting failed container={name} pod={pod}");
                self.wait("CrashLoopBackOff", message);
                self.pause(pause).await;
            }
            back_off =
                Some(back_off.map_or(FIRST_BACK_OFF, |last: Duration| (last * 2).min(LONGEST_BACK_OFF)));
        }
    }

    /// One run from start to exit. An error means that the process did not start.
    async fn run_once(&self) -> Result<Ended, String> {
        let probes = Probes::new(&self.container, self.address)?;
        let command = tokio::time::timeout(LOOKUP_DEADLINE, self.command()).await;
        let command = command.map_err(|_| "the API server does not answer".to_owned())??;
        let folders = self.processes.folders(&self.pod).map_err(|error| error.to_string())?;
        let group = self.processes.group().map_err(|error| error.to_string())?;
        let program = command.get_program().to_string_lossy().into_owned();
        let component = group
            .launch(command, folders.log(&self.container.name))
            .map_err(|error| format!("cannot run {program}: {error}"))?;
        let began = now();
        let (started, ready) =
            (probes.startup.is_none(), probes.startup.is_none() && probes.readiness.is_none());
        self.note(|seen| seen.phase = Phase::Running { since: began, started, ready });
        let told = tokio::select! {
            _ = exit_of(&component) => None,
            () = self.watch(probes) => Some(Timestamp::now()),
            () = self.stop.cancelled() => Some(Timestamp::now()),
        };
        let status = match told {
            Some(_) => self.end(&component).await,
            None => exit_of(&component).await,
        };
        let (code, finished) = (exit_code(status), Timestamp::now());
        let exit = Exit { pod: self.pod.name_any(), code, told, finished };
        self.processes.ended(self.pod.namespace().unwrap_or_default(), exit);
        Ok(Ended { exit_code: code, began, finished: now() })
    }

    /// The command and environment, with the substitutions that a bare host needs.
    async fn command(&self) -> Result<Command, String> {
        let found = self.sources().await.map_err(|error| error.to_string())?;
        let address = self.address.to_string();
        let mut all = environment::resolve(&self.container, &self.pod, &address, &found)?;
        let resolver = Resolver::new(self.client.clone(), self.processes.clone());
        for (_, value) in &mut all {
            let mut places = Vec::new();
            for mention in mentions(value) {
                let place = resolver.stand_in(&mention, &self.pod, self.address).await;
                let place = place.map_err(|error| error.to_string())?;
                places.extend(place.map(|place| (mention, place)));
            }
            *value = listen_on(self.address, &replace(value, &places));
        }
        let (program, args) = self.program.command_line(&self.container);
        let folders = self.processes.folders(&self.pod).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .args(args.iter().map(|arg| listen_on(self.address, &environment::expand(arg, &all))))
            .current_dir(&folders.home)
            .env_clear()
            .env("HOME", &folders.home)
            .env("HOSTNAME", self.pod.name_any())
            .env("PATH", &folders.path)
            .env("TMPDIR", &folders.temporary)
            .envs(all);
        Ok(command)
    }

    async fn sources(&self) -> kube::Result<Found> {
        let namespace = self.pod.namespace().unwrap_or_default();
        let (secrets, config_maps) = environment::needs(&self.container);
        let mut found = Found::default();
        for name in secrets {
            let secret = Api::<Secret>::namespaced(self.client.clone(), &namespace).get_opt(&name).await?;
            found.secrets.insert(name, secret);
        }
        for name in config_maps {
            let map = Api::<ConfigMap>::namespaced(self.client.clone(), &namespace).get_opt(&name).await?;
            found.config_maps.insert(name, map);
        }
        Ok(found)
    }

    /// Probes until the liveness probe fails, which means that the container must be restarted.
    async fn watch(&self, mut probes: Probes) {
        while let Some(mut startup) = probes.startup.take() {
            tokio::time::sleep_until(startup.due()).await;
            match startup.ask().await {
                Some(Verdict::Failure) => return,
                Some(Verdict::Success) => self.health(Some(true), probes.readiness.is_none().then_some(true)),
                None => probes.startup = Some(startup),
            }
        }
        let readiness = async {
            let Some(probe) = &mut probes.readiness else { return std::future::pending().await };
            loop {
                tokio::time::sleep_until(probe.due()).await;
                if let Some(verdict) = probe.ask().await {
                    self.health(None, Some(verdict == Verdict::Success));
                }
            }
        };
        let liveness = async {
            let Some(probe) = &mut probes.liveness else { return std::future::pending().await };
            loop {
                tokio::time::sleep_until(probe.due()).await;
                if probe.ask().await == Some(Verdict::Failure) {
                    return;
                }
            }
        };
        tokio::select! {
            () = readiness => {}
            () = liveness => {}
        }
    }

    /// Stops the process: the sleep of the preStop hook, SIGTERM, and SIGKILL after the grace period.
    async fn end(&self, component: &Component) -> ExitStatus {
        let spec = self.pod.spec.as_ref();
        let grace = spec.and_then(|spec| u64::try_from(spec.termination_grace_period_seconds?).ok());
        let deadline = Instant::now() + Duration::from_secs(grace.unwrap_or(USUAL_GRACE));
        let hook = self.container.lifecycle.as_ref().and_then(|it| it.pre_stop.as_ref());
        let pause =
            hook.and_then(|hook| u64::try_from(hook.sleep.as_ref()?.seconds).ok()).unwrap_or_default();
        let pause = (Instant::now() + Duration::from_secs(pause)).min(deadline);
        if let Ok(status) = tokio::time::timeout_at(pause, exit_of(component)).await {
            return status;
        }
        let _ = component.signal(Signal::TERM);
        if let Ok(status) = tokio::time::timeout_at(deadline, exit_of(component)).await {
            return status;
        }
        let _ = component.kill();
        exit_of(component).await
    }

    fn health(&self, now_started: Option<bool>, now_ready: Option<bool>) {
        self.note(|seen| {
            if let Phase::Running { started, ready, .. } = &mut seen.phase {
                *started = now_started.unwrap_or(*started);
                *ready = now_ready.unwrap_or(*ready);
            }
        });
    }

    fn wait(&self, reason: &'static str, message: String) {
        self.note(|seen| seen.phase = Phase::Waiting { reason, message });
    }

    /// Changes the observed state, and triggers a status update of the pod if it differs.
    fn note(&self, change: impl FnOnce(&mut Observed)) {
        let mut seen = self.observed.lock();
        let before = seen.clone();
        change(&mut seen);
        if *seen != before {
            let _ = self.changed.unbounded_send(());
        }
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

struct Probes {
    startup: Option<Prober>,
    readiness: Option<Prober>,
    liveness: Option<Prober>,
}

impl Probes {
    fn new(container: &Container, address: Ipv4Addr) -> Result<Self, String> {
        let of = |probe| Prober::new(probe, container, address);
        Ok(Self {
            startup: of(container.startup_probe.as_ref())?,
            readiness: of(container.readiness_probe.as_ref())?,
            liveness: of(container.liveness_probe.as_ref())?,
        })
    }
}

async fn exit_of(component: &Component) -> ExitStatus {
    loop {
        if let Some(status) = component.exited() {
            return status;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Exit code as container runtimes report it: 128 plus the number of the signal.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// The current time in the precision of the API.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
