//! What the process counts about itself, as `OpenMetrics` text.
//!
//! One method for each fact, so that names, labels and units are decided here and nowhere else. Labels are
//! of low cardinality: kinds, reasons, verbs, resources and codes; never the name of an object.
//! [`lint()`] holds an exposition to the format and to our habits of naming.

mod lint;
mod process;

use coder_k8s_api::Reason;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

pub use lint::lint;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How one reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The object is as its spec asks.
    Settled,
    /// Something outside has to happen first.
    Waiting,
    /// It went wrong and is tried again.
    Failed,
}

impl Outcome {
    /// The value of the `outcome` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconciled {
    kind: &'static str,
    outcome: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ready {
    kind: &'static str,
    ready: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiCall {
    verb: &'static str,
    resource: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CoderdCall {
    call: &'static str,
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CoderdCallName {
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Object {
    namespace: String,
    name: String,
}

/// Jobs of one control plane that need the same tags and wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobQueue {
    /// Namespace of the control plane.
    pub namespace: String,
    /// Name of the control plane.
    pub name: String,
    /// Their organization.
    pub organization: String,
    /// Their tags; of many sets the rest is one.
    pub tags: String,
    /// How many.
    pub pending: usize,
    /// For how many seconds the first of them waits.
    pub waiting: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Jobs {
    namespace: String,
    name: String,
    organization: String,
    tags: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: String,
}

type Count = Counter<u64, AtomicU64>;
type Level = Gauge<i64, AtomicI64>;
type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconciles: Family<Reconciled, Count>,
    reconcile_duration: Durations<Kind>,
    queue_depth: Level,
    queue_wait: Histogram,
    api_calls: Family<ApiCall, Count>,
    api_call_duration: Durations<Verb>,
    leading: Level,
    objects: Family<Ready, Level>,
    unparsable: Family<Kind, Level>,
    watch_restarts: Family<Resource, Count>,
    coderd_calls: Family<CoderdCall, Count>,
    coderd_call_duration: Durations<CoderdCallName>,
    license_expires: Family<Object, Level>,
    jobs_pending: Family<Jobs, Level>,
    jobs_longest_wait: Family<Jobs, Level>,
}

impl Metrics {
    /// Metrics with their own registry, all at zero.
    pub fn new() -> Arc<Self> {
        let mut metrics = Self {
            registry: Registry::default(),
            reconciles: Family::default(),
            reconcile_duration: Family::new_with_constructor(slow_durations),
            queue_depth: Level::default(),
            queue_wait: slow_durations(),
            api_calls: Family::default(),
            api_call_duration: Family::new_with_constructor(call_durations),
            leading: Level::default(),
            objects: Family::default(),
            unparsable: Family::default(),
            watch_restarts: Family::default(),
            coderd_calls: Family::default(),
            coderd_call_duration: Family::new_with_constructor(call_durations),
            license_expires: Family::default(),
            jobs_pending: Family::default(),
            jobs_longest_wait: Family::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        self.registry.register_collector(Box::new(process::Process));
        let ours = self.registry.sub_registry_with_prefix("coder_k8s");

        let build = Family::<Vec<(&'static str, &'static str)>, Level>::default();
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION"))]).set(1);
        ours.register("build_info", "The running version; always 1", build);

        ours.register("reconciles", "Reconciles ended, by outcome and reason", self.reconciles.clone());
        ours.register_with_unit(
            "reconcile_duration",
            "Time one reconcile took",
            Unit::Seconds,
            self.reconcile_duration.clone(),
        );
        ours.register("queue_depth", "Objects waiting to be reconciled now", self.queue_depth.clone());
        ours.register_with_unit(
            "queue_wait",
            "Time an object that was due waited for a free worker",
            Unit::Seconds,
            self.queue_wait.clone(),
        );
        ours.register(
            "api_calls",
            "Calls to the Kubernetes API, by HTTP status or error, timeout, fenced, canceled",
            self.api_calls.clone(),
        );
        ours.register_with_unit(
            "api_call_duration",
            "Time a call to the Kubernetes API took; of a watch, until it was established",
            Unit::Seconds,
            self.api_call_duration.clone(),
        );
        ours.register("leading", "1 while this process leads and works", self.leading.clone());
        ours.register("objects", "Custom resources, by their Ready condition", self.objects.clone());
        ours.register(
            "unparsable_objects",
            "Custom resources that this version cannot read and therefore leaves alone",
            self.unparsable.clone(),
        );
        ours.register(
            "coderd_calls",
            "Calls to coderd, by what they do and ok or the reason of their failure",
            self.coderd_calls.clone(),
        );
        ours.register_with_unit(
            "coderd_call_duration",
            "Time a call to coderd took",
            Unit::Seconds,
            self.coderd_call_duration.clone(),
        );
        ours.register_with_unit(
            "license_expires_timestamp",
            "When the license of a control plane ends, since 1970",
            Unit::Seconds,
            self.license_expires.clone(),
        );
        ours.register(
            "jobs_pending",
            "Provisioner jobs that wait for a daemon, by the tags that they need",
            self.jobs_pending.clone(),
        );
        ours.register_with_unit(
            "jobs_longest_wait",
            "Time that the first of these jobs has waited",
            Unit::Seconds,
            self.jobs_longest_wait.clone(),
        );
        ours.register("watch_restarts", "Watches that had to be started again", self.watch_restarts.clone());
    }

    /// A reconcile of `kind` ended.
    pub fn reconciled(&self, kind: &'static str, outcome: Outcome, reason: Reason, took: Duration) {
        let labels = Reconciled { kind, outcome: outcome.as_str(), reason: reason.to_string() };
        self.reconciles.get_or_create(&labels).inc();
        self.reconcile_duration.get_or_create(&Kind { kind }).observe(took.as_secs_f64());
    }

    /// How many objects wait to be reconciled.
    pub fn queue_depth(&self, depth: usize) {
        self.queue_depth.set(level(depth));
    }

    /// How long an object that was due waited for a worker.
    pub fn queue_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }

    /// A call to the API server ended. `code` is the HTTP status, or `error`, `timeout`, `fenced`,
    /// `canceled`.
    pub fn api_call(&self, verb: &'static str, resource: &str, code: &str, took: Duration) {
        let labels = ApiCall { verb, resource: resource.to_owned(), code: code.to_owned() };
        self.api_calls.get_or_create(&labels).inc();
        self.api_call_duration.get_or_create(&Verb { verb }).observe(took.as_secs_f64());
    }

    /// A call to coderd ended: `ok`, or the reason of its failure.
    pub fn coderd_call(&self, call: &'static str, outcome: &str, took: Duration) {
        self.coderd_calls.get_or_create(&CoderdCall { call, outcome: outcome.to_owned() }).inc();
        self.coderd_call_duration.get_or_create(&CoderdCallName { call }).observe(took.as_secs_f64());
    }

    /// When the licenses of control planes end, by namespace and name, in seconds since 1970. Replaces what was there.
    pub fn licenses_expire(&self, all: impl IntoIterator<Item = (String, String, i64)>) {
        self.license_expires.clear();
        for (namespace, name, at) in all {
            self.license_expires.get_or_create(&Object { namespace, name }).set(at);
        }
    }

    /// The jobs that wait. Replaces what was there.
    pub fn job_queues(&self, all: impl IntoIterator<Item = JobQueue>) {
        self.jobs_pending.clear();
        self.jobs_longest_wait.clear();
        for JobQueue { namespace, name, organization, tags, pending, waiting } in all {
            let labels = Jobs { namespace, name, organization, tags };
            self.jobs_pending.get_or_create(&labels).set(level(pending));
            self.jobs_longest_wait.get_or_create(&labels).set(waiting);
        }
    }

    /// Whether this process holds the lease.
    pub fn leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// How many objects of `kind` have `ready` (`true`, `false`, `unknown`) in their Ready condition.
    pub fn objects(&self, kind: &'static str, ready: &'static str, count: usize) {
        self.objects.get_or_create(&Ready { kind, ready }).set(level(count));
    }

    /// How many objects of `kind` cannot be read.
    pub fn unparsable(&self, kind: &'static str, count: usize) {
        self.unparsable.get_or_create(&Kind { kind }).set(level(count));
    }

    /// The watch on `resource` had to be started again.
    pub fn watch_restarts(&self, resource: &str) {
        self.watch_restarts.get_or_create(&Resource { resource: resource.to_owned() }).inc();
    }

    /// The exposition. The process's own numbers are read from the system at this moment.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn level(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn call_durations() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

fn slow_durations() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0])
}

#[cfg(test)]
mod tests;
