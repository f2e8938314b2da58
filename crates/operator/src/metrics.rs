//! The metrics of the operator's own domain: calls to coderd, licenses and provisioner jobs.
//!
//! They live in the registry of the engine and appear in the same exposition, beside the metrics of queue, watches
//! and API calls. Calls to coderd are counted when they end; licenses and jobs are replaced as a whole at each scrape.
//! Only the latter two name objects in their labels, and only control planes.

use std::{sync::Arc, time::Duration};

use coder_k8s_engine::metrics::{Count, Durations, Level, Metrics, call_durations, count, level, seconds};
use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family};

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
struct JobTags {
    namespace: String,
    name: String,
    organization: String,
    tags: String,
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
    license_expires: Family<ControlPlane, Level>,
    jobs_pending: Family<JobTags, Level>,
    jobs_longest_wait: Family<JobTags, Level>,
}

impl CoderMetrics {
    /// Registers the operator's metrics, all empty, in the registry of `metrics`. Call it once for each registry.
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        Arc::new(metrics.register(|own| Self {
            coderd_calls: count(
                own,
                "coderd_calls",
                "Calls to coderd, by what they do and ok or the reason of their failure",
                Family::default(),
            ),
            coderd_call_duration: seconds(
                own,
                "coderd_call_duration",
                "Time a call to coderd took",
                Family::new_with_constructor(call_durations),
            ),
            license_expires: seconds(
                own,
                "license_expires_timestamp",
                "When the license of a control plane ends, since 1970",
                Family::default(),
            ),
            jobs_pending: count(
                own,
                "jobs_pending",
                "Provisioner jobs that wait for a daemon, by the tags that they need",
                Family::default(),
            ),
            jobs_longest_wait: seconds(
                own,
                "jobs_longest_wait",
                "Time that the first of these jobs has waited",
                Family::default(),
            ),
        }))
    }

    /// Counts a call to coderd. `outcome` is `ok` or the reason of the failure.
    pub(crate) fn coderd_call(&self, call: &'static str, outcome: &str, took: Duration) {
        self.coderd_calls.get_or_create(&CoderdCall { call, outcome: outcome.to_owned() }).inc();
        self.coderd_call_duration.get_or_create(&[("call", call)]).observe(took.as_secs_f64());
    }

    /// Replaces the expiry times of all licenses: namespace and name of the control plane, and seconds since 1970.
    pub(crate) fn licenses_expire(&self, all: impl IntoIterator<Item = (String, String, i64)>) {
        self.license_expires.clear();
        for (namespace, name, at) in all {
            self.license_expires.get_or_create(&ControlPlane { namespace, name }).set(at);
        }
    }

    /// Replaces the pending jobs of all control planes.
    pub(crate) fn job_queues(&self, all: impl IntoIterator<Item = JobQueue>) {
        self.jobs_pending.clear();
        self.jobs_longest_wait.clear();
        for JobQueue { namespace, name, organization, tags, pending, waiting } in all {
            let labels = JobTags { namespace, name, organization, tags };
            self.jobs_pending.get_or_create(&labels).set(level(pending));
            self.jobs_longest_wait.get_or_create(&labels).set(waiting);
        }
    }
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

    #[test]
    fn each_method_sets_its_series_in_the_registry_of_the_engine() {
        let metrics = Metrics::new();
        let own = CoderMetrics::new(&metrics);
        assert_eq!(lint(&metrics.encode().unwrap()), Vec::<String>::new(), "before anything is counted");
        own.coderd_call("list_licenses", "ok", Duration::from_millis(30));
        own.coderd_call("list_licenses", "Unreachable", Duration::from_secs(20));
        own.licenses_expire([("ns".into(), "coder".into(), 1_800_000_000)]);
        own.job_queues([queue("coder")]);
        let text = metrics.encode().unwrap();
        assert_eq!(lint(&text), Vec::<String>::new(), "{text}");
        for line in [
            r#"coder_k8s_coderd_calls_total{call="list_licenses",outcome="ok"} 1"#,
            r#"coder_k8s_coderd_calls_total{call="list_licenses",outcome="Unreachable"} 1"#,
            r#"coder_k8s_coderd_call_duration_seconds_count{call="list_licenses"} 2"#,
            r#"coder_k8s_license_expires_timestamp_seconds{namespace="ns",name="coder"} 1800000000"#,
            r#"coder_k8s_jobs_pending{namespace="ns",name="coder",organization="default",tags="region=\"eu\""} 2"#,
            r#"coder_k8s_jobs_longest_wait_seconds{namespace="ns",name="coder",organization="default",tags="region=\"eu\""} 75"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
    }

    #[test]
    fn a_control_plane_that_is_gone_leaves_no_series() {
        let metrics = Metrics::new();
        let own = CoderMetrics::new(&metrics);
        own.licenses_expire([("ns".into(), "old".into(), 1), ("ns".into(), "new".into(), 2)]);
        own.job_queues([queue("old"), queue("new")]);
        own.licenses_expire([("ns".into(), "new".into(), 2)]);
        own.job_queues([queue("new")]);
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"name="new""#) && !text.contains(r#"name="old""#), "{text}");
    }
}
