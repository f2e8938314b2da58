//! The metrics of the operator's own domain: calls to coderd, and the series of single objects.
//!
//! They live in the registry of the engine and appear in the same exposition, beside the metrics of queue, watches
//! and API calls. Calls to coderd are counted when they end. The series of objects are replaced as a whole at each scrape,
//! by what the caches hold: an object that is gone leaves none. Their labels are names of objects and words of ours, except
//! for organizations and tags of jobs. Their number is bounded ([`MAX_OBJECT_SERIES`], [`MAX_JOB_SERIES`]), and what the
//! bound leaves out is counted.

mod fair_share;
#[cfg(test)]
mod shipped;

use std::{fmt, sync::Arc, time::Duration};

use coder_k8s_engine::metrics::{Count, Durations, Level, Metrics, call_durations, count, level, seconds};
use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family};

use self::fair_share::fair_share;

/// The most series about single objects: their conditions, licenses and daemons. A control plane has up to four, a pool up
/// to eight, a proxy up to two.
pub const MAX_OBJECT_SERIES: usize = 3_000;
/// The most series about pending jobs. Each queue has two.
pub const MAX_JOB_SERIES: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CoderdCall {
    call: &'static str,
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControlPlane {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pool {
    namespace: String,
    name: String,
    control_plane: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectCondition {
    kind: &'static str,
    namespace: String,
    name: String,
    r#type: &'static str,
    status: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobTags {
    namespace: String,
    name: String,
    organization: String,
    tags: String,
}

/// What the metrics say about one object of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectSeries {
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) conditions: Vec<ConditionSeries>,
    /// When its license ends, in seconds since 1970.
    pub(crate) license_expires: Option<i64>,
    pub(crate) daemons: Option<DaemonSeries>,
    /// The jobs that wait for a scaled pool.
    pub(crate) queue: Option<QueueSeries>,
    /// Whether an alert may be due. If there are too many series, these objects come first within their namespace.
    pub(crate) is_urgent: bool,
}

impl ObjectSeries {
    fn count(&self) -> usize {
        let daemons = if self.daemons.is_some() { 3 } else { 0 };
        let queue = if self.queue.is_some() { 2 } else { 0 };
        self.conditions.len() + usize::from(self.license_expires.is_some()) + daemons + queue
    }
}

/// A condition, in words of ours alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConditionSeries {
    pub(crate) type_: &'static str,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
}

/// The daemons of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DaemonSeries {
    /// The name of the pool's control plane.
    pub(crate) control_plane: String,
    pub(crate) desired: i64,
    pub(crate) connected: i64,
    pub(crate) busy: i64,
}

/// The jobs that wait for a scaled pool, and for no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueSeries {
    pub(crate) pending: i64,
    /// Seconds for which the first of them has waited.
    pub(crate) waiting: i64,
}

/// The pending jobs of one control plane that need the same tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobQueue {
    /// Namespace of the control plane.
    pub(crate) namespace: String,
    /// Name of the control plane.
    pub(crate) name: String,
    pub(crate) organization: String,
    /// Bounded by the caller: of many sets of tags, those past the limit share one value.
    pub(crate) tags: String,
    pub(crate) pending: usize,
    /// Seconds for which the oldest of these jobs has waited.
    pub(crate) waiting: i64,
}

/// The operator's metrics. Their values are shared with the registry of the engine.
#[derive(Debug)]
pub(crate) struct CoderMetrics {
    coderd_calls: Family<CoderdCall, Count>,
    coderd_call_duration: Durations<[(&'static str, &'static str); 1]>,
    conditions: Family<ObjectCondition, Level>,
    license_expires: Family<ControlPlane, Level>,
    daemons_desired: Family<Pool, Level>,
    daemons_connected: Family<Pool, Level>,
    daemons_busy: Family<Pool, Level>,
    pool_jobs_pending: Family<Pool, Level>,
    pool_jobs_longest_wait: Family<Pool, Level>,
    jobs_pending: Family<JobTags, Level>,
    jobs_longest_wait: Family<JobTags, Level>,
    series_omitted: Family<[(&'static str, &'static str); 1], Level>,
}

impl CoderMetrics {
    /// Registers the operator's metrics, all empty, in the registry of `metrics`. Call it once for each registry.
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        Arc::new(metrics.register(|own| Self {
            coderd_calls: count(
                own,
                "coderd_calls",
                "Calls to coderd and steps in its database (sql-...), by what they do and ok or the reason of their failure",
                Family::default(),
            ),
            coderd_call_duration: seconds(
                own,
                "coderd_call_duration",
                "Time a call to coderd took",
                Family::new_with_constructor(call_durations),
            ),
            conditions: count(
                own,
                "condition",
                "1 for the present status and reason of a condition of an object; only on the leader",
                Family::default(),
            ),
            license_expires: seconds(
                own,
                "license_expires_timestamp",
                "When the license of a control plane ends, since 1970; only on the leader",
                Family::default(),
            ),
            daemons_desired: count(
                own,
                "daemons_desired",
                "Provisioner daemons that a pool asks for; only on the leader",
                Family::default(),
            ),
            daemons_connected: count(
                own,
                "daemons_connected",
                "Provisioner daemons of a pool that are connected to coderd; only on the leader",
                Family::default(),
            ),
            daemons_busy: count(
                own,
                "daemons_busy",
                "Provisioner daemons of a pool that run a job; only on the leader",
                Family::default(),
            ),
            pool_jobs_pending: count(
                own,
                "pool_jobs_pending",
                "Provisioner jobs that wait for a pool with autoscaling; each counts for one pool; only on the leader",
                Family::default(),
            ),
            pool_jobs_longest_wait: seconds(
                own,
                "pool_jobs_longest_wait",
                "Time that the first job for a pool with autoscaling has waited; only on the leader",
                Family::default(),
            ),
            jobs_pending: count(
                own,
                "jobs_pending",
                "Provisioner jobs that wait for a daemon, by the tags that they need; only on the leader",
                Family::default(),
            ),
            jobs_longest_wait: seconds(
                own,
                "jobs_longest_wait",
                "Time that the first of these jobs has waited; only on the leader",
                Family::default(),
            ),
            series_omitted: count(
                own,
                "series_omitted",
                "Series about single objects or jobs that are left out, because there would be too many",
                Family::default(),
            ),
        }))
    }

    /// Counts a call to coderd. `outcome` is `ok` or the reason of the failure.
    pub(crate) fn coderd_call(&self, call: &'static str, outcome: &str, took: Duration) {
        self.coderd_calls.get_or_create(&CoderdCall { call, outcome: outcome.to_owned() }).inc();
        self.coderd_call_duration.get_or_create(&[("call", call)]).observe(took.as_secs_f64());
    }

    /// Replaces the series of all objects.
    pub(crate) fn objects(&self, all: Vec<ObjectSeries>) {
        self.conditions.clear();
        self.license_expires.clear();
        for family in [
            &self.daemons_desired,
            &self.daemons_connected,
            &self.daemons_busy,
            &self.pool_jobs_pending,
            &self.pool_jobs_longest_wait,
        ] {
            family.clear();
        }
        let order = |object: &ObjectSeries| (!object.is_urgent, object.kind, object.name.clone());
        let (shown, omitted) =
            fair_share(all, MAX_OBJECT_SERIES, |object| &object.namespace, order, ObjectSeries::count);
        for object in shown {
            self.object(object);
        }
        self.series_omitted.get_or_create(&[("about", "objects")]).set(level(omitted));
    }

    fn object(&self, object: ObjectSeries) {
        let ObjectSeries { kind, namespace, name, conditions, license_expires, daemons, queue, is_urgent: _ } =
            object;
        for ConditionSeries { type_, status, reason } in conditions {
            let (namespace, name) = (namespace.clone(), name.clone());
            let labels = ObjectCondition { kind, namespace, name, r#type: type_, status, reason };
            self.conditions.get_or_create(&labels).set(1);
        }
        if let Some(DaemonSeries { control_plane, desired, connected, busy }) = daemons {
            let labels = Pool { namespace: namespace.clone(), name: name.clone(), control_plane };
            self.daemons_desired.get_or_create(&labels).set(desired);
            self.daemons_connected.get_or_create(&labels).set(connected);
            self.daemons_busy.get_or_create(&labels).set(busy);
            if let Some(QueueSeries { pending, waiting }) = queue {
                self.pool_jobs_pending.get_or_create(&labels).set(pending);
                self.pool_jobs_longest_wait.get_or_create(&labels).set(waiting);
            }
        }
        if let Some(at) = license_expires {
            self.license_expires.get_or_create(&ControlPlane { namespace, name }).set(at);
        }
    }

    /// Replaces the pending jobs of all control planes.
    pub(crate) fn job_queues(&self, all: Vec<JobQueue>) {
        self.jobs_pending.clear();
        self.jobs_longest_wait.clear();
        // The jobs that wait longest come first.
        let order = |queue: &JobQueue| {
            (-queue.waiting, queue.name.clone(), queue.organization.clone(), queue.tags.clone())
        };
        let (shown, omitted) = fair_share(all, MAX_JOB_SERIES, |queue| &queue.namespace, order, |_| 2);
        for JobQueue { namespace, name, organization, tags, pending, waiting } in shown {
            let labels = JobTags { namespace, name, organization, tags };
            self.jobs_pending.get_or_create(&labels).set(level(pending));
            self.jobs_longest_wait.get_or_create(&labels).set(waiting);
        }
        self.series_omitted.get_or_create(&[("about", "jobs")]).set(level(omitted));
    }

    fn set_examples(&self) {
        self.coderd_call("list_licenses", "ok", Duration::from_millis(30));
        self.objects(vec![ObjectSeries {
            kind: "CoderProvisioner",
            namespace: "ns".to_owned(),
            name: "pool".to_owned(),
            conditions: vec![ConditionSeries { type_: "Ready", status: "True", reason: "Reconciled" }],
            license_expires: Some(1_800_000_000),
            daemons: Some(DaemonSeries {
                control_plane: "coder".to_owned(),
                desired: 3,
                connected: 2,
                busy: 1,
            }),
            queue: Some(QueueSeries { pending: 2, waiting: 3 }),
            is_urgent: false,
        }]);
        self.job_queues(vec![JobQueue {
            namespace: "ns".to_owned(),
            name: "coder".to_owned(),
            organization: "default".to_owned(),
            tags: "none".to_owned(),
            pending: 1,
            waiting: 1,
        }]);
    }
}

/// An exposition in which every metric of the operator has a series, for the reference page. The values mean nothing.
pub fn example() -> Result<String, fmt::Error> {
    let metrics = Metrics::new();
    let own = CoderMetrics::new(&metrics);
    metrics.set_examples();
    own.set_examples();
    metrics.encode()
}

#[cfg(test)]
mod tests {
    use coder_k8s_testbed::metrics_lint::lint;

    use super::*;

    fn queue(name: &str) -> JobQueue {
        JobQueue {
            namespace: "ns".into(),
            name: name.into(),
            organization: "default".into(),
            tags: "region=\"eu\"".into(),
            pending: 2,
            waiting: 75,
        }
    }

    fn plane(namespace: &str, name: &str) -> ObjectSeries {
        let ready = ConditionSeries { type_: "Ready", status: "False", reason: "Progressing" };
        ObjectSeries {
            kind: "CoderControlPlane",
            namespace: namespace.into(),
            name: name.into(),
            conditions: vec![ready],
            license_expires: Some(1_800_000_000),
            daemons: None,
            queue: None,
            is_urgent: true,
        }
    }

    fn pool(name: &str) -> ObjectSeries {
        let daemons = DaemonSeries { control_plane: "coder".into(), desired: 3, connected: 2, busy: 1 };
        ObjectSeries {
            kind: "CoderProvisioner",
            conditions: Vec::new(),
            license_expires: None,
            daemons: Some(daemons),
            queue: Some(QueueSeries { pending: 4, waiting: 20 }),
            ..plane("ns", name)
        }
    }

    #[test]
    fn each_method_sets_its_series_in_the_registry_of_the_engine() {
        let metrics = Metrics::new();
        let own = CoderMetrics::new(&metrics);
        assert_eq!(lint(&metrics.encode().unwrap()), Vec::<String>::new(), "before anything is counted");
        own.coderd_call("list_licenses", "ok", Duration::from_millis(30));
        own.coderd_call("list_licenses", "Unreachable", Duration::from_secs(20));
        own.objects(vec![plane("ns", "coder"), pool("pool")]);
        own.job_queues(vec![queue("coder")]);
        let text = metrics.encode().unwrap();
        assert_eq!(lint(&text), Vec::<String>::new(), "{text}");
        for line in [
            r#"coder_k8s_coderd_calls_total{call="list_licenses",outcome="ok"} 1"#,
            r#"coder_k8s_coderd_calls_total{call="list_licenses",outcome="Unreachable"} 1"#,
            r#"coder_k8s_coderd_call_duration_seconds_count{call="list_licenses"} 2"#,
            r#"coder_k8s_condition{kind="CoderControlPlane",namespace="ns",name="coder",type="Ready",status="False",reason="Progressing"} 1"#,
            r#"coder_k8s_license_expires_timestamp_seconds{namespace="ns",name="coder"} 1800000000"#,
            r#"coder_k8s_daemons_desired{namespace="ns",name="pool",control_plane="coder"} 3"#,
            r#"coder_k8s_daemons_connected{namespace="ns",name="pool",control_plane="coder"} 2"#,
            r#"coder_k8s_daemons_busy{namespace="ns",name="pool",control_plane="coder"} 1"#,
            r#"coder_k8s_pool_jobs_pending{namespace="ns",name="pool",control_plane="coder"} 4"#,
            r#"coder_k8s_pool_jobs_longest_wait_seconds{namespace="ns",name="pool",control_plane="coder"} 20"#,
            r#"coder_k8s_jobs_pending{namespace="ns",name="coder",organization="default",tags="region=\"eu\""} 2"#,
            r#"coder_k8s_jobs_longest_wait_seconds{namespace="ns",name="coder",organization="default",tags="region=\"eu\""} 75"#,
            r#"coder_k8s_series_omitted{about="objects"} 0"#,
            r#"coder_k8s_series_omitted{about="jobs"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
    }

    #[test]
    fn an_object_that_is_gone_leaves_no_series() {
        let metrics = Metrics::new();
        let own = CoderMetrics::new(&metrics);
        own.objects(vec![plane("ns", "old"), plane("ns", "new"), pool("old"), pool("new")]);
        own.job_queues(vec![queue("old"), queue("new")]);
        own.objects(vec![plane("ns", "new"), pool("new")]);
        own.job_queues(vec![queue("new")]);
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"name="new""#) && !text.contains(r#"name="old""#), "{text}");
    }

    #[test]
    fn the_series_of_objects_and_jobs_are_bounded_and_the_rest_is_counted() {
        let metrics = Metrics::new();
        let own = CoderMetrics::new(&metrics);
        let few = metrics.encode().unwrap().lines().count();
        let flood = (0..10_000).map(|n| plane("flood", &format!("coder-{n}")));
        own.objects(flood.chain([plane("bystander", "coder")]).collect());
        own.job_queues((0..10_000).map(|n| queue(&format!("coder-{n}"))).collect());
        let text = metrics.encode().unwrap();
        let many = text.lines().count();
        // Lines that describe the families are not series.
        assert!(many - few <= MAX_OBJECT_SERIES + MAX_JOB_SERIES + 2 + 16, "{} lines", many - few);
        assert!(text.contains(r#"namespace="bystander""#), "one namespace does not hide another");
        for line in [
            r#"coder_k8s_series_omitted{about="objects"} 17002"#,
            r#"coder_k8s_series_omitted{about="jobs"} 19500"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing");
        }
    }

    #[test]
    fn every_family_has_an_example() {
        let metrics = Metrics::new();
        let _own = CoderMetrics::new(&metrics);
        let text = example().unwrap();
        for family in metrics.families() {
            assert!(text.contains(&format!("# TYPE {family} ")), "{family} has no series in example()");
        }
    }
}
