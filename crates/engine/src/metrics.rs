//! The metrics registry of the process, the metrics that every controller has, and their `OpenMetrics` text.
//!
//! Each fact has one method, which alone decides its name, labels and unit. The labels here are of low
//! cardinality: kinds, reasons, verbs, resources and codes, never the name of an object. The operator adds the
//! metrics of its own domain with [`Metrics::register`]. The names of all of them are in [`Metrics::families`].

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
use parking_lot::{Mutex, RwLock};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
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
struct ApiCall {
    verb: &'static str,
    resource: String,
    code: String,
}

/// Labels of a metric as pairs of name and value, where no more than two are needed.
type Labels<const N: usize, V = &'static str> = [(&'static str, V); N];

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
    /// Names of the registered families, with prefix and unit.
    families: Mutex<Vec<String>>,
    reconciles: Family<Reconciled, Count>,
    reconcile_duration: Durations<Labels<1>>,
    queue_depth: Level,
    queue_wait: Histogram,
    api_calls: Family<ApiCall, Count>,
    api_call_duration: Durations<Labels<1>>,
    leading: Level,
    objects: Family<Labels<2>, Level>,
    unparsable: Family<Labels<1>, Level>,
    cache: Family<Labels<1>, Level>,
    watch_restarts: Family<Labels<1, String>, Count>,
}

impl Metrics {
    /// Creates a registry with the metrics of the engine, all at zero.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process));
        let mut families = Vec::new();
        let own = &mut Registrar {
            registry: registry.sub_registry_with_prefix(crate::PREFIX),
            families: &mut families,
        };
        let build =
            count(own, "build_info", "The running version; always 1", Family::<Labels<1>, Level>::default());
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        Arc::new(Self {
            reconciles: count(
                own,
                "reconciles",
                "Reconciles ended, by outcome and reason",
                Family::default(),
            ),
            reconcile_duration: seconds(
                own,
                "reconcile_duration",
                "Time one reconcile took",
                Family::new_with_constructor(slow_durations),
            ),
            queue_depth: count(own, "queue_depth", "Objects waiting to be reconciled now", Level::default()),
            queue_wait: seconds(
                own,
                "queue_wait",
                "Time an object that was due waited for a free worker",
                slow_durations(),
            ),
            api_calls: count(
                own,
                "api_calls",
                "Calls to the Kubernetes API, by HTTP status or error, timeout, fenced, refused, canceled",
                Family::default(),
            ),
            api_call_duration: seconds(
                own,
                "api_call_duration",
                "Time a call to the Kubernetes API took; of a watch, until it was established",
                Family::new_with_constructor(call_durations),
            ),
            leading: count(own, "leading", "1 while this process leads and works", Level::default()),
            objects: count(own, "objects", "Custom resources, by their Ready condition", Family::default()),
            unparsable: count(
                own,
                "unparsable_objects",
                "Custom resources that this version cannot read and therefore leaves alone",
                Family::default(),
            ),
            cache: bytes(
                own,
                "cache",
                "Memory for the objects that the operator remembers, without their names",
                Family::default(),
            ),
            watch_restarts: count(
                own,
                "watch_restarts",
                "Watches that had to be started again",
                Family::default(),
            ),
            families: Mutex::new(families),
            registry: RwLock::new(registry),
        })
    }

    /// Registers further metrics under the prefix of the program: `add` registers them with [`count`] and [`seconds`], and
    /// returns them.
    ///
    /// Call it once for each metric, before the first [`encode`](Self::encode): the registry does not notice a name that
    /// is registered twice.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registrar<'_>) -> T) -> T {
        let mut registry = self.registry.write();
        add(&mut Registrar {
            registry: registry.sub_registry_with_prefix(crate::PREFIX),
            families: &mut self.families.lock(),
        })
    }

    /// The names of all registered families, with prefix and unit and without the `_total` of a counter. A family without
    /// a series is missing from [`encode`](Self::encode), and not from this list. The `process_*` metrics are not in it.
    pub fn families(&self) -> Vec<String> {
        self.families.lock().clone()
    }

    /// Counts a reconcile of an object of `kind`.
    pub fn reconciled(&self, kind: &'static str, outcome: ReconcileOutcome, reason: Reason, took: Duration) {
        let labels = Reconciled { kind, outcome: outcome.as_str(), reason: reason.to_string() };
        self.reconciles.get_or_create(&labels).inc();
        self.reconcile_duration.get_or_create(&[("kind", kind)]).observe(took.as_secs_f64());
    }

    /// Sets the number of objects that wait to be reconciled.
    pub fn queue_depth(&self, depth: usize) {
        self.queue_depth.set(level(depth));
    }

    /// Records how long an object that was due waited for a worker.
    pub fn queue_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }

    /// Counts a call to the API server. `code` is the HTTP status, or `error`, `timeout`, `fenced`, `refused`, `canceled`.
    pub fn api_call(&self, verb: &'static str, resource: &str, code: &str, took: Duration) {
        let labels = ApiCall { verb, resource: resource.to_owned(), code: code.to_owned() };
        self.api_calls.get_or_create(&labels).inc();
        self.api_call_duration.get_or_create(&[("verb", verb)]).observe(took.as_secs_f64());
    }

    /// Sets whether this process holds the lease and works.
    pub fn leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// Whether this process holds the lease and works, as it was last set.
    pub fn is_leading(&self) -> bool {
        self.leading.get() == 1
    }

    /// Sets how many objects of `kind` have `ready` (`true`, `false`, `unknown`) in their Ready condition.
    pub fn objects(&self, kind: &'static str, ready: &'static str, count: usize) {
        self.objects.get_or_create(&[("kind", kind), ("ready", ready)]).set(level(count));
    }

    /// Sets how many objects of `kind` this version cannot parse.
    pub fn unparsable(&self, kind: &'static str, count: usize) {
        self.unparsable.get_or_create(&[("kind", kind)]).set(level(count));
    }

    /// Sets how many bytes the objects of `kind` take in their cache.
    pub fn cache_bytes(&self, kind: &'static str, bytes: usize) {
        self.cache.get_or_create(&[("kind", kind)]).set(level(bytes));
    }

    /// Counts a watch on `resource` that failed and is started again.
    pub fn watch_restarts(&self, resource: &str) {
        self.watch_restarts.get_or_create(&[("resource", resource.to_owned())]).inc();
    }

    /// Gives every metric of the engine a series. For an example of the exposition; the values mean nothing.
    pub fn set_examples(&self) {
        let took = Duration::from_millis(30);
        self.reconciled("Widget", ReconcileOutcome::Failed, Reason::Forbidden, took);
        self.queue_depth(3);
        self.queue_wait(took);
        self.api_call("get", "secrets", "200", took);
        self.leading(true);
        self.objects("Widget", "true", 4);
        self.unparsable("Widget", 1);
        self.cache_bytes("Widget", 700);
        self.watch_restarts("secrets");
    }

    /// Encodes all metrics as text. CPU, memory and open files of the process are read from the system during the call.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry.read())?;
        Ok(text)
    }
}

/// Where [`count`] and [`seconds`] register a metric.
#[derive(Debug)]
pub struct Registrar<'a> {
    registry: &'a mut Registry,
    families: &'a mut Vec<String>,
}

/// Registers a metric without a unit. The caller keeps the result, which shares its values with the registry.
pub fn count<M: Metric + Clone>(registrar: &mut Registrar<'_>, name: &str, help: &str, metric: M) -> M {
    registrar.families.push(format!("{}_{name}", crate::PREFIX));
    registrar.registry.register(name, help, metric.clone());
    metric
}

/// As [`count`], for a metric in seconds.
pub fn seconds<M: Metric + Clone>(registrar: &mut Registrar<'_>, name: &str, help: &str, metric: M) -> M {
    registrar.families.push(format!("{}_{name}_seconds", crate::PREFIX));
    registrar.registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

/// As [`count`], for a metric in bytes.
fn bytes<M: Metric + Clone>(registrar: &mut Registrar<'_>, name: &str, help: &str, metric: M) -> M {
    registrar.families.push(format!("{}_{name}_bytes", crate::PREFIX));
    registrar.registry.register_with_unit(name, help, Unit::Bytes, metric.clone());
    metric
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
