//! Decides what a process does about a Lease that it has just read, and builds the Lease that it writes. Pure: time
//! and identity are arguments.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::api::ObjectMeta;

use super::LeaseSettings;
use crate::{fence::Moment, intervals::ASSUMED_LEASE_DURATION};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseDecision {
    /// There is no Lease: create it.
    Create,
    /// The Lease has no holder, or its holder let it expire: take it over.
    Take,
    /// This process holds the Lease: renew it.
    Renew,
    /// Another process holds the Lease: wait until it is released or expires.
    Wait,
}

/// Another process that holds the Lease, and since when its Lease has not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedHolder {
    /// The resourceVersion; `None` if the Lease was deleted while it was held.
    version: Option<String>,
    lease_duration: Duration,
    unchanged_since: Moment,
}

/// The holder that the Lease names.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|name| !name.is_empty())
}

/// Updates the other holder after a read of the Lease. `now` must be taken *after* the response: the holder counts its
/// time from before its own request, and so always stops before this process stops waiting.
pub(super) fn observe(
    before: Option<ObservedHolder>,
    lease: Option<&Lease>,
    me: &str,
    now: Moment,
) -> Option<ObservedHolder> {
    let Some(lease) = lease else {
        // The holder does not know yet that its Lease was deleted, and goes on until its next renewal.
        return before.map(|holder| match holder.version {
            Some(_) => ObservedHolder { version: None, unchanged_since: now, ..holder },
            None => holder,
        });
    };
    if holder(lease).is_none_or(|holder| holder == me) {
        return None;
    }
    let version = lease.metadata.resource_version.clone();
    if before.as_ref().is_some_and(|o| o.version.is_some() && o.version == version) {
        return before;
    }
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    let lease_duration = seconds.map_or(ASSUMED_LEASE_DURATION, Duration::from_secs);
    Some(ObservedHolder { version, lease_duration, unchanged_since: now })
}

/// Decides what to do about the Lease, given what [`observe`] returned for it.
pub(super) fn decide(
    lease: Option<&Lease>,
    observed: Option<&ObservedHolder>,
    me: &str,
    now: Moment,
) -> LeaseDecision {
    let unexpired = observed.map(|other| now.since(other.unchanged_since) < other.lease_duration);
    match (lease.map(holder), unexpired) {
        (Some(Some(holder)), _) if holder == me => LeaseDecision::Renew,
        (None | Some(Some(_)), Some(true)) | (Some(Some(_)), None) => LeaseDecision::Wait,
        (None, _) => LeaseDecision::Create,
        (Some(_), _) => LeaseDecision::Take,
    }
}

/// The Lease with this process as its holder. The times in it are informational: no process decides by them.
pub(super) fn claimed(
    lease: Option<Lease>,
    decision: LeaseDecision,
    settings: &LeaseSettings,
    now: Timestamp,
) -> Lease {
    let mut lease = lease.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() },
        spec: None,
    });
    let old = lease.spec.take().unwrap_or_default();
    let transitions = old.lease_transitions.unwrap_or(0);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(settings.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: if decision == LeaseDecision::Renew { old.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if decision == LeaseDecision::Take {
            transitions.saturating_add(1)
        } else {
            transitions
        }),
        ..old
    });
    lease
}

/// The Lease without a holder. It lasts one second, so that clients that go by its duration take it at once.
pub(super) fn released(mut lease: Lease, now: Timestamp) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(now));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: &str = "me";
    const SECOND: Duration = Duration::from_secs(1);

    fn lease(holder: Option<&str>, version: &str, seconds: Option<i32>) -> Lease {
        Lease {
            metadata: ObjectMeta { resource_version: Some(version.into()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: holder.map(Into::into),
                lease_duration_seconds: seconds,
                ..LeaseSpec::default()
            }),
        }
    }

    /// Reads each Lease at its second, and returns the last decision.
    fn read_all(reads: &[(u32, Option<Lease>)]) -> LeaseDecision {
        let start = Moment::now();
        let mut observed = None;
        let mut decision = LeaseDecision::Wait;
        for (second, lease) in reads {
            let now = start.plus(*second * SECOND);
            observed = observe(observed, lease.as_ref(), ME, now);
            decision = decide(lease.as_ref(), observed.as_ref(), ME, now);
        }
        decision
    }

    #[test]
    fn decisions() {
        let other = |version| Some(lease(Some("other"), version, Some(15)));
        let table = [
            ("no lease", vec![(0, None)], LeaseDecision::Create),
            ("free", vec![(0, Some(lease(None, "1", None)))], LeaseDecision::Take),
            ("released", vec![(0, Some(lease(Some(""), "1", Some(1))))], LeaseDecision::Take),
            ("no spec", vec![(0, Some(Lease { spec: None, ..lease(None, "1", None) }))], LeaseDecision::Take),
            ("ours", vec![(0, Some(lease(Some(ME), "1", Some(15))))], LeaseDecision::Renew),
            (
                "ours, another before",
                vec![(0, other("1")), (90, Some(lease(Some(ME), "2", None)))],
                LeaseDecision::Renew,
            ),
            ("first read of another", vec![(0, other("1"))], LeaseDecision::Wait),
            ("not yet expired", vec![(0, other("1")), (14, other("1"))], LeaseDecision::Wait),
            ("expired", vec![(0, other("1")), (15, other("1"))], LeaseDecision::Take),
            (
                "renewed meanwhile",
                vec![(0, other("1")), (10, other("2")), (20, other("2"))],
                LeaseDecision::Wait,
            ),
            ("one second of lease", vec![(0, Some(lease(Some("x"), "1", Some(1))))], LeaseDecision::Wait),
            ("deleted while it is held", vec![(0, other("1")), (1, None), (15, None)], LeaseDecision::Wait),
            ("deleted long enough ago", vec![(0, other("1")), (1, None), (16, None)], LeaseDecision::Create),
            (
                "deleted after a release",
                vec![(0, Some(lease(Some(""), "1", Some(1)))), (1, None)],
                LeaseDecision::Create,
            ),
        ];
        for (name, given, expected) in table {
            assert_eq!(read_all(&given), expected, "{name}");
        }
    }

    #[test]
    fn a_holder_without_a_duration_gets_the_assumed_one() {
        for seconds in [None, Some(0), Some(-3)] {
            let other = || Some(lease(Some("other"), "1", seconds));
            assert_eq!(read_all(&[(0, other()), (14, other())]), LeaseDecision::Wait, "{seconds:?}");
            assert_eq!(read_all(&[(0, other()), (15, other())]), LeaseDecision::Take, "{seconds:?}");
        }
    }

    #[test]
    fn transitions_count_changes_of_holder() {
        let settings = LeaseSettings::new("ns", "op", ME);
        let now = Timestamp::now();
        let count = |lease: &Lease| lease.spec.as_ref().unwrap().lease_transitions.unwrap();
        let created = claimed(None, LeaseDecision::Create, &settings, now);
        assert_eq!((created.metadata.name.as_deref(), count(&created)), (Some("op"), 0));
        let renewed = claimed(Some(created), LeaseDecision::Renew, &settings, now);
        assert_eq!(count(&renewed), 0);
        let taken = claimed(Some(renewed), LeaseDecision::Take, &settings, now);
        assert_eq!(count(&taken), 1);
        let released = released(taken, now);
        assert_eq!((holder(&released), count(&released)), (None, 1));
        let taken = claimed(Some(released), LeaseDecision::Take, &settings, now);
        assert_eq!((holder(&taken), count(&taken)), (Some(ME), 2));
    }

    #[test]
    fn fields_of_others_are_kept() {
        let mut old = lease(Some("other"), "7", Some(15));
        old.metadata.labels = Some([("a".into(), "b".into())].into());
        old.spec.as_mut().unwrap().strategy = Some("x".into());
        let taken =
            claimed(Some(old), LeaseDecision::Take, &LeaseSettings::new("ns", "op", ME), Timestamp::now());
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("7"), "compare-and-swap");
        assert!(taken.metadata.labels.is_some());
        assert_eq!(taken.spec.unwrap().strategy.as_deref(), Some("x"));
    }
}
