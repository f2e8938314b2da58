//! The metrics registry of the process, the metrics that every controller has, and their `OpenMetrics` text.
//!
//! Each fact has one method, which alone decides its name, labels and unit. The labels here are of low
//! cardinality: kinds, reasons, verbs, resources and codes, never the name of an object. The operator adds the
//! metrics of its own domain with [`Metrics::register`].

mod process;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use coder_k8s_api::Reason;
use parking_lot::RwLock;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How one reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReconcileOutcome {
    /// The object is as its spec asks.
    Settled,
    /// The reconcile did all it could and waits for a change outside of it.
    Waiting,
    /// The reconcile failed and is retried.
    Failed,
}

impl ReconcileOutcome {
    fn as_str(self) -> &'static str {
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
struct Resource {
    resource: String,
}

/// A counter that starts at zero with the process.
pub type Count = Counter<u64, AtomicU64>;
/// A gauge of whole numbers.
pub type Level = Gauge<i64, AtomicI64>;
/// Histograms of seconds, one for each set of labels.
pub type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// The registry of the process and the metrics of the engine.
#[derive(Debug)]
pub struct Metrics {
    /// Locked for writing only while metrics are registered, at the start of the process.
    registry: RwLock<Registry>,
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
}

impl Metrics {
    /// Creates a registry with the metrics of the engine, all at zero.
    pub fn new() -> Arc<Self> {
        let metrics = Self {
            registry: RwLock::default(),
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
        };
        metrics.registry.write().register_collector(Box::new(process::Process));
        metrics.register(|registry| metrics.register_own(registry));
        Arc::new(metrics)
    }

    /// Registers further metrics under the prefix of the program. `add` registers the metrics; its caller keeps clones
    /// of them, which share their values, to set them later.
    ///
    /// Call it once for each metric, before the first [`encode`](Self::encode): the registry does not notice a name that
    /// is registered twice.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(self.registry.write().sub_registry_with_prefix(crate::PREFIX));
    }

    fn register_own(&self, registry: &mut Registry) {
        let build = Family::<Vec<(&'static str, &'static str)>, Level>::default();
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("build_info", "The running version; always 1", build);

        registry.register("reconciles", "Reconciles ended, by outcome and reason", self.reconciles.clone());
        registry.register_with_unit(
            "reconcile_duration",
            "Time one reconcile took",
            Unit::Seconds,
            self.reconcile_duration.clone(),
        );
        registry.register("queue_depth", "Objects waiting to be reconciled now", self.queue_depth.clone());
        registry.register_with_unit(
            "queue_wait",
            "Time an object that was due waited for a free worker",
            Unit::Seconds,
            self.queue_wait.clone(),
        );
        registry.register(
            "api_calls",
            "Calls to the Kubernetes API, by HTTP status or error, timeout, fenced, canceled",
            self.api_calls.clone(),
        );
        registry.register_with_unit(
            "api_call_duration",
            "Time a call to the Kubernetes API took; of a watch, until it was established",
            Unit::Seconds,
            self.api_call_duration.clone(),
        );
        registry.register("leading", "1 while this process leads and works", self.leading.clone());
        registry.register("objects", "Custom resources, by their Ready condition", self.objects.clone());
        registry.register(
            "unparsable_objects",
            "Custom resources that this version cannot read and therefore leaves alone",
            self.unparsable.clone(),
        );
        registry.register(
            "watch_restarts",
            "Watches that had to be started again",
            self.watch_restarts.clone(),
        );
    }

    /// Counts a reconcile of an object of `kind`.
    pub fn reconciled(&self, kind: &'static str, outcome: ReconcileOutcome, reason: Reason, took: Duration) {
        let labels = Reconciled { kind, outcome: outcome.as_str(), reason: reason.to_string() };
        self.reconciles.get_or_create(&labels).inc();
        self.reconcile_duration.get_or_create(&Kind { kind }).observe(took.as_secs_f64());
    }

    /// Sets the number of objects that wait to be reconciled.
    pub fn queue_depth(&self, depth: usize) {
        self.queue_depth.set(level(depth));
    }

    /// Records how long an object that was due waited for a worker.
    pub fn queue_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }

    /// Counts a call to the API server. `code` is the HTTP status, or `error`, `timeout`, `fenced`, `canceled`.
    pub fn api_call(&self, verb: &'static str, resource: &str, code: &str, took: Duration) {
        let labels = ApiCall { verb, resource: resource.to_owned(), code: code.to_owned() };
        self.api_calls.get_or_create(&labels).inc();
        self.api_call_duration.get_or_create(&Verb { verb }).observe(took.as_secs_f64());
    }

    /// Sets whether this process holds the lease and works.
    pub fn leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// Sets how many objects of `kind` have `ready` (`true`, `false`, `unknown`) in their Ready condition.
    pub fn objects(&self, kind: &'static str, ready: &'static str, count: usize) {
        self.objects.get_or_create(&Ready { kind, ready }).set(level(count));
    }

    /// Sets how many objects of `kind` this version cannot parse.
    pub fn unparsable(&self, kind: &'static str, count: usize) {
        self.unparsable.get_or_create(&Kind { kind }).set(level(count));
    }

    /// Counts a watch on `resource` that failed and is started again.
    pub fn watch_restarts(&self, resource: &str) {
        self.watch_restarts.get_or_create(&Resource { resource: resource.to_owned() }).inc();
    }

    /// Encodes all metrics as text. CPU, memory and open files of the process are read from the system during the call.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry.read())?;
        Ok(text)
    }
}

/// A count as the value of a [`Level`].
pub fn level(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A histogram for remote calls, whose deadlines are at most 30 s.
pub fn call_durations() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

/// A histogram for reconciles and queues, which may take minutes.
fn slow_durations() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0])
}

#[cfg(test)]
mod tests;
