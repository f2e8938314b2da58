//! What a look at the lease means, and what the lease should say next. Pure.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::api::ObjectMeta;

use super::Settings;
use crate::fence::Moment;

/// Assumed of a holder that does not say how long its lease lasts.
const USUAL_DURATION: Duration = Duration::from_secs(15);

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is none: create it.
    Create,
    /// It is free or has run out: write our name.
    Take,
    /// It is ours: go on.
    Renew,
    /// Somebody else has it.
    Wait,
}

/// Somebody else's hold on the lease, and since when we have seen no change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The resourceVersion; `None` when the lease vanished under its holder.
    version: Option<String>,
    lasts: Duration,
    at: Moment,
}

/// Who is named in the lease.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|name| !name.is_empty())
}

/// Brings what we know of somebody else up to date. `now` is after the answer came: their time to act is
/// counted from no later than ours to wait.
pub fn observe(before: Option<Observed>, lease: Option<&Lease>, me: &str, now: Moment) -> Option<Observed> {
    let Some(lease) = lease else {
        // Whoever held it does not know yet that it was deleted.
        return before
            .map(|o| if o.version.is_some() { Observed { version: None, at: now, ..o } } else { o });
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
    Some(Observed { version, lasts: seconds.map_or(USUAL_DURATION, Duration::from_secs), at: now })
}

/// What to do, given the lease and what [`observe`] made of it.
pub fn decide(lease: Option<&Lease>, observed: Option<&Observed>, me: &str, now: Moment) -> Decision {
    let still_theirs = observed.map(|o| now.since(o.at) < o.lasts);
    match (lease.map(holder), still_theirs) {
        (Some(Some(holder)), _) if holder == me => Decision::Renew,
        (None | Some(Some(_)), Some(true)) | (Some(Some(_)), None) => Decision::Wait,
        (None, _) => Decision::Create,
        (Some(_), _) => Decision::Take,
    }
}

/// The lease with our name. The times are for people to read.
pub(super) fn claimed(
    lease: Option<Lease>,
    decision: Decision,
    settings: &Settings,
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
        acquire_time: if decision == Decision::Renew { old.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if decision == Decision::Take {
            transitions.saturating_add(1)
        } else {
            transitions
        }),
        ..old
    });
    lease
}

/// The lease without a holder.
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

    /// Looks at each lease at its second; the last decision counts.
    fn looks(looks: &[(u32, Option<Lease>)]) -> Decision {
        let start = Moment::now();
        let mut observed = None;
        let mut decision = Decision::Wait;
        for (second, lease) in looks {
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
            ("no lease", vec![(0, None)], Decision::Create),
            ("free", vec![(0, Some(lease(None, "1", None)))], Decision::Take),
            ("released", vec![(0, Some(lease(Some(""), "1", Some(1))))], Decision::Take),
            ("no spec", vec![(0, Some(Lease { spec: None, ..lease(None, "1", None) }))], Decision::Take),
            ("ours", vec![(0, Some(lease(Some(ME), "1", Some(15))))], Decision::Renew),
            (
                "ours, seen long ago",
                vec![(0, other("1")), (90, Some(lease(Some(ME), "2", None)))],
                Decision::Renew,
            ),
            ("first sight of another", vec![(0, other("1"))], Decision::Wait),
            ("not yet run out", vec![(0, other("1")), (14, other("1"))], Decision::Wait),
            ("run out", vec![(0, other("1")), (15, other("1"))], Decision::Take),
            ("renewed meanwhile", vec![(0, other("1")), (10, other("2")), (20, other("2"))], Decision::Wait),
            ("one second of lease", vec![(0, Some(lease(Some("x"), "1", Some(1))))], Decision::Wait),
            ("deleted under its holder", vec![(0, other("1")), (1, None), (15, None)], Decision::Wait),
            ("deleted long enough ago", vec![(0, other("1")), (1, None), (16, None)], Decision::Create),
            (
                "deleted after a release",
                vec![(0, Some(lease(Some(""), "1", Some(1)))), (1, None)],
                Decision::Create,
            ),
        ];
        for (name, given, expected) in table {
            assert_eq!(looks(&given), expected, "{name}");
        }
    }

    #[test]
    fn a_holder_that_does_not_say_how_long_gets_the_usual_time() {
        for seconds in [None, Some(0), Some(-3)] {
            let other = || Some(lease(Some("other"), "1", seconds));
            assert_eq!(looks(&[(0, other()), (14, other())]), Decision::Wait, "{seconds:?}");
            assert_eq!(looks(&[(0, other()), (15, other())]), Decision::Take, "{seconds:?}");
        }
    }

    #[test]
    fn transitions_count_changes_of_holder() {
        let settings = Settings::new("ns", "op", ME);
        let now = Timestamp::now();
        let count = |lease: &Lease| lease.spec.as_ref().unwrap().lease_transitions.unwrap();
        let created = claimed(None, Decision::Create, &settings, now);
        assert_eq!((created.metadata.name.as_deref(), count(&created)), (Some("op"), 0));
        let renewed = claimed(Some(created), Decision::Renew, &settings, now);
        assert_eq!(count(&renewed), 0);
        let taken = claimed(Some(renewed), Decision::Take, &settings, now);
        assert_eq!(count(&taken), 1);
        let released = released(taken, now);
        assert_eq!((holder(&released), count(&released)), (None, 1));
        let taken = claimed(Some(released), Decision::Take, &settings, now);
        assert_eq!((holder(&taken), count(&taken)), (Some(ME), 2));
    }

    #[test]
    fn what_others_put_there_is_kept() {
        let mut old = lease(Some("other"), "7", Some(15));
        old.metadata.labels = Some([("a".into(), "b".into())].into());
        old.spec.as_mut().unwrap().strategy = Some("x".into());
        let taken = claimed(Some(old), Decision::Take, &Settings::new("ns", "op", ME), Timestamp::now());
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("7"), "compare-and-swap");
        assert!(taken.metadata.labels.is_some());
        assert_eq!(taken.spec.unwrap().strategy.as_deref(), Some("x"));
    }
}
