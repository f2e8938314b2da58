//! The gauges that are computed from the caches: objects by readiness, and the series of single objects.
//!
//! Runs for each scrape and calls nobody. Every instance counts its objects. Only the leader exports series of single
//! objects: a standby does not poll daemons and jobs, and two instances would report each object twice.

use coder_k8s_api::{
    CoderControlPlane, CoderKind, CoderProvisioner, Reason,
    condition::condition_type::{
        AUTOSCALING, DAEMONS_CONNECTED, HEALTHY, JOBS_RUNNABLE, OPERATOR_ACCESS_READY, READY,
    },
};
use coder_k8s_core::{object, provisioner::names, workload::Rollout};
use coder_k8s_engine::cache::Cache;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::{CoderResource, Context};
use crate::metrics::{CoderMetrics, ConditionSeries, DaemonSeries, ObjectSeries};

/// The conditions that have a series, by kind. `Ready` always has one, the others only while the status has them.
pub(crate) const fn exported_conditions(kind: CoderKind) -> &'static [&'static str] {
    match kind {
        CoderKind::ControlPlane => &[READY, OPERATOR_ACCESS_READY, JOBS_RUNNABLE],
        CoderKind::Provisioner => &[READY, DAEMONS_CONNECTED, AUTOSCALING],
        CoderKind::WorkspaceProxy => &[READY, HEALTHY],
    }
}

/// The reason in the label if the status has one that this release does not know.
const OTHER_REASON: &str = "Other";

/// A license that ends within this time makes its control plane urgent: an alert is due 30 days before the end.
const URGENT_LICENSE_SECONDS: i64 = 31 * 24 * 3600;

/// Updates all gauges.
pub(super) fn update(ctx: &Context, coder_metrics: &CoderMetrics) {
    for kind in CoderKind::ALL.iter().copied() {
        match kind {
            CoderKind::ControlPlane => count_by_readiness(ctx, &ctx.caches.control_planes),
            CoderKind::Provisioner => count_by_readiness(ctx, &ctx.caches.provisioners),
            CoderKind::WorkspaceProxy => count_by_readiness(ctx, &ctx.caches.workspace_proxies),
        }
    }
    ctx.caches.each_size(|kind, bytes| ctx.metrics.cache_bytes(kind, bytes));
    // A leader that lost its lease ends soon: until then it exports nothing, because its successor does.
    if ctx.metrics.is_leading() && ctx.fence.is_open() {
        coder_metrics.objects(all_objects(ctx));
        coder_metrics.job_queues(ctx.daemon_poller.queues(ctx.now()));
    } else {
        coder_metrics.objects(Vec::new());
        coder_metrics.job_queues(Vec::new());
    }
}

fn count_by_readiness<K: CoderResource>(ctx: &Context, cache: &Cache<K>) {
    let [mut ready, mut unready, mut unknown] = [0; 3];
    cache.each(|object| match condition(object, READY).map(|condition| &*condition.status) {
        Some("True") => ready += 1,
        Some("False") => unready += 1,
        _ => unknown += 1,
    });
    for (state, count) in [("true", ready), ("false", unready), ("unknown", unknown)] {
        ctx.metrics.objects(cache.kind(), state, count);
    }
}

fn condition<'a, K: CoderResource>(object: &'a K, type_: &str) -> Option<&'a Condition> {
    object.status().map_or(&[][..], K::conditions).iter().find(|condition| condition.type_ == type_)
}

fn all_objects(ctx: &Context) -> Vec<ObjectSeries> {
    let (mut all, now) = (Vec::new(), ctx.now());
    for kind in CoderKind::ALL {
        match kind {
            CoderKind::ControlPlane => ctx.caches.control_planes.each(|plane| all.push(of_plane(plane, now))),
            CoderKind::Provisioner => ctx.caches.provisioners.each(|pool| {
                let name = names::deployment(&pool.name_any());
                let deployment = ctx.caches.deployments.get(&pool.namespace().unwrap_or_default(), &name);
                let desired = deployment.map(|deployment| Rollout::of(Some(&deployment)).desired);
                let queue = ctx.daemon_poller.queue_of(pool, now);
                all.push(ObjectSeries { queue, ..of_pool(pool, desired) });
            }),
            CoderKind::WorkspaceProxy => ctx.caches.workspace_proxies.each(|proxy| all.push(of_any(proxy))),
        }
    }
    all
}

/// The series that every kind has.
fn of_any<K: CoderResource>(object: &K) -> ObjectSeries {
    let exported = exported_conditions(K::KIND).iter();
    let conditions: Vec<_> = exported.filter_map(|type_| condition_series(object, type_)).collect();
    ObjectSeries {
        kind: K::KIND.as_str(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        is_urgent: conditions.iter().any(|condition| condition.status != "True"),
        conditions,
        license_expires: None,
        daemons: None,
        queue: None,
    }
}

fn of_plane(plane: &CoderControlPlane, now: Timestamp) -> ObjectSeries {
    let series = of_any(plane);
    let license = plane.status.as_ref().and_then(|status| status.license.as_ref());
    let expires = license.and_then(|license| license.expires.as_ref()).map(|at| at.0.as_second());
    let ends_soon = expires.is_some_and(|at| at.saturating_sub(now.as_second()) < URGENT_LICENSE_SECONDS);
    ObjectSeries { license_expires: expires, is_urgent: series.is_urgent || ends_soon, ..series }
}

/// `desired` is what the Deployment asks for. None: it does not exist yet.
fn of_pool(pool: &CoderProvisioner, desired: Option<i32>) -> ObjectSeries {
    let series = of_any(pool);
    // The daemons of a deleted pool leave, and nobody misses them.
    if object::is_deleting(pool) {
        return series;
    }
    let daemons = pool.status.as_ref().and_then(|status| status.daemons.as_ref());
    let scaling = pool.spec.autoscaling.as_ref();
    let asked = scaling.map_or(pool.spec.replicas, |scaling| scaling.min_replicas.unwrap_or(0));
    let daemons = DaemonSeries {
        control_plane: pool.spec.control_plane_ref.name.as_str().to_owned(),
        desired: desired.unwrap_or(asked).into(),
        connected: daemons.map_or(0, |daemons| daemons.connected).into(),
        busy: daemons.map_or(0, |daemons| daemons.busy).into(),
    };
    ObjectSeries {
        is_urgent: series.is_urgent || daemons.connected < daemons.desired,
        daemons: Some(daemons),
        ..series
    }
}

/// An object that was not reconciled yet has no conditions: its `Ready` is unknown.
fn condition_series<K: CoderResource>(object: &K, type_: &'static str) -> Option<ConditionSeries> {
    let Some(condition) = condition(object, type_) else {
        let pending = ConditionSeries { type_, status: "Unknown", reason: Reason::Pending.as_str() };
        return (type_ == READY).then_some(pending);
    };
    let status = match &*condition.status {
        "True" => "True",
        "False" => "False",
        _ => "Unknown",
    };
    let reason = Reason::of(condition).map_or(OTHER_REASON, Reason::as_str);
    Some(ConditionSeries { type_, status, reason })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "tests write them in place")]
    fn object<K: serde::de::DeserializeOwned>(kind: &str, spec: Value, status: Value) -> K {
        serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1", "kind": kind,
            "metadata": {"namespace": "ns", "name": "it"}, "spec": spec, "status": status}))
        .unwrap()
    }

    fn plane(status: Value) -> CoderControlPlane {
        object("CoderControlPlane", json!({}), status)
    }

    fn pool(status: Value) -> CoderProvisioner {
        object("CoderProvisioner", json!({"controlPlaneRef": {"name": "coder"}, "replicas": 3}), status)
    }

    fn conditions(list: &[(&str, &str, &str)]) -> Value {
        let all = list.iter().map(|(type_, status, reason)| {
            json!({"type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        json!({"conditions": all.collect::<Vec<_>>()})
    }

    fn shown(series: &ObjectSeries) -> Vec<(&str, &str, &str)> {
        series.conditions.iter().map(|c| (c.type_, c.status, c.reason)).collect()
    }

    #[test]
    fn only_the_conditions_of_alerts_have_series_and_only_words_of_ours_are_labels() {
        let plane = plane(conditions(&[
            ("Ready", "False", "SomethingThatNobodyKnows"),
            ("Reconciling", "True", "Progressing"),
            ("OperatorAccessReady", "Maybe", "DatabaseUnreachable"),
        ]));
        let series = of_any(&plane);
        assert_eq!(
            shown(&series),
            [("Ready", "False", "Other"), ("OperatorAccessReady", "Unknown", "DatabaseUnreachable")]
        );
        assert!(series.is_urgent);
    }

    #[test]
    fn an_object_that_was_never_reconciled_is_not_ready() {
        let series = of_any(&plane(Value::Null));
        assert_eq!(shown(&series), [("Ready", "Unknown", "Pending")]);
    }

    #[test]
    fn a_license_that_ends_soon_is_urgent() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (expires, is_urgent) in [("2026-01-29T00:00:00Z", true), ("2026-03-01T00:00:00Z", false)] {
            let mut status = conditions(&[("Ready", "True", "Reconciled")]);
            status["license"] = json!({"expires": expires});
            let series = of_plane(&plane(status), now);
            let at: Timestamp = expires.parse().unwrap();
            assert_eq!((series.license_expires, series.is_urgent), (Some(at.as_second()), is_urgent));
        }
    }

    #[test]
    fn the_daemons_of_a_pool_are_counted_against_its_deployment() {
        let mut status = conditions(&[("Ready", "True", "Reconciled")]);
        status["daemons"] = json!({"connected": 2, "busy": 1, "idle": 1, "outdated": 0});
        for (desired, expected, is_urgent) in [(Some(2), 2, false), (Some(0), 0, false), (None, 3, true)] {
            let series = of_pool(&pool(status.clone()), desired);
            let daemons = series.daemons.unwrap();
            assert_eq!((daemons.desired, daemons.connected, daemons.busy), (expected, 2, 1));
            assert_eq!((&*daemons.control_plane, series.is_urgent), ("coder", is_urgent));
        }
    }

    #[test]
    fn nobody_misses_the_daemons_of_a_deleted_pool() {
        let mut pool = pool(Value::Null);
        pool.metadata.deletion_timestamp = Some(
            "2026-01-01T00:00:00Z"
                .parse::<Timestamp>()
                .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time)
                .unwrap(),
        );
        assert_eq!(of_pool(&pool, Some(3)).daemons, None);
    }
}
