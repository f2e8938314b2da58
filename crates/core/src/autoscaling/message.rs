//! The sentence for people about a decision.

use jiff::Timestamp;

use super::{Capacity, ScaleReason, ScaledPool};
use crate::condition::whole_seconds;

/// The sentence about a decision that rests on an answer of coderd.
pub(super) fn of(
    reason: ScaleReason,
    capacity: &Capacity,
    pool: &ScaledPool<'_>,
    pending: u32,
    desired: u32,
    target: u32,
) -> String {
    let Capacity { protected, idle, starting, failing, replicas, min, max, .. } = *capacity;
    let wait = match pending {
        0 => format!("{} needed", plural(target, "daemon is", "daemons are")),
        _ => format!("{} for the pool", plural(pending, "job waits", "jobs wait")),
    };
    let change = format!("{} instead of {replicas}", daemons(desired));
    let after = pool.policy.scale_down_after;
    match reason {
        ScaleReason::QueueUnknown => {
            format!(
                "the jobs have too many different tags to be compared, so that no daemon of {replicas} leaves"
            )
        }
        ScaleReason::StartsFail if pool.pods.refused => format!(
            "{wait}, and the API server refuses more than {} pods: see the events of the ReplicaSet, and raise the quota",
            replicas.saturating_sub(failing)
        ),
        ScaleReason::StartsFail => format!(
            "{wait}, and {} not start, so that the pool does not grow: see the events and logs of its pods",
            plural(failing, "pod does", "pods do")
        ),
        ScaleReason::AtMaximum => format!(
            "{wait}, and the pool may have {}: raise spec.autoscaling.maxReplicas, or wait for builds to end",
            daemons(max)
        ),
        ScaleReason::ScalingUp if desired > replicas && pending > 0 => format!("{change}: {wait}"),
        ScaleReason::ScalingUp if desired > replicas && min >= desired => {
            format!("{change}: the minimum is {min}")
        }
        ScaleReason::ScalingUp if desired > replicas => format!("{change}: {} spare", capacity.spare),
        ScaleReason::ScalingUp => {
            format!("{wait}, and {}", plural(starting, "daemon starts", "daemons start"))
        }
        ScaleReason::ScalingDown if replicas > max => format!("{change}: the maximum is {max}"),
        ScaleReason::ScalingDown => format!("{change}: the others were idle for {after:#} or did not start"),
        ScaleReason::WaitingForIdle => {
            let surplus = desired.saturating_sub(capacity.wanted(pending).max(min));
            format!(
                "{} than needed, which may leave when idle for {after:#}",
                plural(surplus, "daemon more", "daemons more")
            )
        }
        ScaleReason::Steady => format!("{protected} busy and {idle} idle: as many daemons as needed"),
    }
}

/// The sentence about a decision without an answer of coderd. `end` is when the replicas stop being kept as they are.
pub(super) fn unknown(since: Timestamp, why: Option<&str>, desired: u32, end: Option<Timestamp>) -> String {
    let since = whole_seconds(since);
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    match end.map(whole_seconds) {
        Some(end) => format!(
            "coderd has not listed the jobs since {since}{why}: the pool keeps {} until {end}, and longer what may run a build",
            daemons(desired)
        ),
        None => format!(
            "coderd has not listed the jobs since {since}{why}: the pool keeps {}, its minimum and what may run a build",
            daemons(desired)
        ),
    }
}

fn daemons(number: u32) -> String {
    plural(number, "daemon", "daemons")
}

fn plural(number: u32, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
