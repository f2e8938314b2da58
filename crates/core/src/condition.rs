//! Conditions: every reconcile computes all of them. `lastTransitionTime` changes only when a status flips.

use coder_k8s_api::{Reason, condition::condition_type, shortened};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

use crate::{
    intervals::MAX_CONDITION_BYTES,
    outcome::{ActResult, Blocker, EventNote},
};

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl ConditionStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(is: bool) -> Self {
        if is { Self::True } else { Self::False }
    }
}

/// The conditions of one reconcile.
#[derive(Debug)]
pub struct Conditions<'a> {
    before: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    all: Vec<Condition>,
    cleared: Vec<String>,
}

impl<'a> Conditions<'a> {
    /// No condition yet, for an object of `generation` that had the conditions `before`.
    pub fn new(before: &'a [Condition], generation: Option<i64>, now: Timestamp) -> Self {
        Self { before, generation, now, all: Vec::new(), cleared: Vec::new() }
    }

    /// Sets a condition. The last call for a type wins. A message may quote a server, so it is cut to a bounded length.
    pub fn set(
        &mut self,
        type_: &str,
        state: impl Into<ConditionStatus>,
        reason: Reason,
        message: impl Into<String>,
    ) {
        let status = state.into().as_str();
        let same = self.before.iter().find(|c| c.type_ == type_ && c.status == status);
        let since = same.map_or_else(|| Time(whole_seconds(self.now)), |c| c.last_transition_time.clone());
        self.all.retain(|set| set.type_ != type_);
        self.all.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_string(),
            message: shortened(message, MAX_CONDITION_BYTES),
            observed_generation: self.generation,
            last_transition_time: since,
        });
    }

    /// Sets the conditions that all kinds share: Ready, Reconciling, Stalled and Conflict.
    ///
    /// `ready` is the verdict if nothing failed.
    pub fn set_common(&mut self, done: &ActResult, ready: Verdict) {
        let conflict = done.foreign.iter().map(|foreign| match &foreign.refused {
            Some(why) => {
                format!("{} {} is handed over and was not touched: {why}", foreign.kind, foreign.name)
            }
            None => format!(
                "{} {} exists and belongs to somebody else: rename or delete it, or hand it over with the annotation {}",
                foreign.kind, foreign.name, foreign.hand_over
            ),
        });
        let conflict = conflict.collect::<Vec<_>>().join("; ");
        let cause = |blocker: &Blocker| (blocker.reason, blocker.message.clone());
        let foreign = (!done.foreign.is_empty()).then_some((Reason::ForeignObject, conflict));
        let failed = done.failures.first().map(cause);
        let refused = done.failures.iter().find(|failure| failure.reason == Reason::Invalid).map(cause);
        let verdict = (ready.reason, ready.message);
        let is_stalled = failed.is_none() && ready.progress == Progress::Stalled;
        let stalled = foreign.clone().or(refused).or_else(|| is_stalled.then(|| verdict.clone()));
        let is_working = ready.progress == Progress::Working;
        let working = failed.clone().or_else(|| is_working.then(|| verdict.clone()));
        // kstatus reports an object as failed only if it is Stalled and not Reconciling.
        let working = working.filter(|_| stalled.is_none());
        self.set_present(condition_type::RECONCILING, working, "nothing is left to do");
        match foreign.clone().or(failed) {
            Some((reason, message)) => self.set(condition_type::READY, false, reason, message),
            None => self.set(condition_type::READY, ready.ready, verdict.0, verdict.1),
        }
        self.set_present(condition_type::STALLED, stalled, "nothing waits for a person to act");
        self.set_present(condition_type::CONFLICT, foreign, "no object of others has the name of a child");
    }

    /// Sets a condition to True for a cause, or to False.
    fn set_present(&mut self, type_: &str, cause: Option<(Reason, String)>, otherwise: &str) {
        let is_present = cause.is_some();
        let (reason, message) = cause.unwrap_or_else(|| (Reason::Reconciled, otherwise.to_owned()));
        self.set(type_, is_present, reason, message);
    }

    /// The condition as this reconcile set it, else as it was before.
    pub fn said(&self, type_: &str) -> Option<&Condition> {
        self.all.iter().chain(self.before).find(|c| c.type_ == type_)
    }

    /// Removes a condition, unless this reconcile sets it.
    pub fn clear(&mut self, type_: &str) {
        self.cleared.push(type_.to_owned());
    }

    /// The list, in the order of the previous one. Keeps conditions that this reconcile neither set nor cleared.
    pub fn into_vec(mut self) -> Vec<Condition> {
        let mut list = Vec::with_capacity(self.before.len().max(self.all.len()));
        for old in self.before {
            match self.all.iter().position(|c| c.type_ == old.type_) {
                Some(place) => list.push(self.all.remove(place)),
                None if self.cleared.contains(&old.type_) => {}
                None => list.push(old.clone()),
            }
        }
        list.append(&mut self.all);
        list
    }
}

/// Whether an object is as its spec asks, if nothing failed.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The status of `Ready`.
    pub ready: bool,
    /// The source of `Reconciling` and `Stalled`.
    pub progress: Progress,
    /// The reason of all three.
    pub reason: Reason,
    /// The message of all three.
    pub message: String,
}

/// Whether anything is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left to do.
    Settled,
    /// The operator works on it or waits for something.
    Working,
    /// Nothing happens until a person changes something.
    Stalled,
}

/// A status without its times, for comparisons.
pub fn timeless(mut status: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                let times = ["Time", "LastChecked", "LastApplied", "since", "asOf", "lastSeen"];
                map.retain(|key, _| !times.iter().any(|end| key.ends_with(end)));
                map.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut status);
    status
}

/// Conditions whose transitions become events, besides `Ready`, with the reason for one that was removed.
const EVENT_CONDITIONS: [(&str, Reason); 12] = [
    (condition_type::AUTOSCALING, Reason::NotAutoscaling),
    (condition_type::DAEMONS_CONNECTED, Reason::NotDaemonsConnected),
    (condition_type::DOWNGRADE, Reason::NotDowngrade),
    (condition_type::ENTITLEMENTS_HEALTHY, Reason::NotEntitlementsHealthy),
    (condition_type::EXPOSED, Reason::NotExposed),
    (condition_type::JOBS_RUNNABLE, Reason::NotJobsRunnable),
    (condition_type::LICENSE_APPLIED, Reason::NotLicenseApplied),
    (condition_type::LICENSE_EXPIRING, Reason::NotLicenseExpiring),
    (condition_type::OPERATOR_ACCESS_READY, Reason::NotOperatorAccessReady),
    (condition_type::PAUSED, Reason::NotPaused),
    (condition_type::SCALE_IGNORED, Reason::NotScaleIgnored),
    (condition_type::WORKSPACE_ACCESS, Reason::NotWorkspaceAccess),
];

/// The events after a reconcile: what became of `Ready` ([`ready_event`]), and which of [`EVENT_CONDITIONS`] turned bad or
/// good. A cause that shows in two conditions is told once.
pub fn transitions(before: &[Condition], after: &[Condition]) -> Vec<EventNote> {
    let find = |all: &[Condition], type_: &str| all.iter().find(|c| c.type_ == type_).cloned();
    let mut events: Vec<EventNote> = Vec::new();
    if let Some(now) = find(after, condition_type::READY) {
        events.extend(ready_event(find(before, condition_type::READY).as_ref(), now));
    }
    for (type_, removed) in EVENT_CONDITIONS {
        let (then, now) = (find(before, type_), find(after, type_));
        let was_bad = then.as_ref().is_some_and(is_bad);
        match now {
            Some(now) if is_bad(&now) && !then.is_some_and(|then| is_same(&then, &now)) => {
                events.extend(event(true, now));
            }
            Some(now) if was_bad && !is_bad(&now) && now.status == "True" => {
                events.extend(event(false, now));
            }
            None if was_bad => {
                let message = format!("{type_} no longer holds");
                events.push(EventNote { warning: false, reason: removed, message });
            }
            _ => {}
        }
    }
    let mut told = Vec::new();
    for event in events {
        let is_told = told
            .iter()
            .any(|known: &EventNote| known.reason == event.reason && known.message == event.message);
        if !is_told {
            told.push(event);
        }
    }
    told
}

/// The event about `Ready`. Only a problem is a warning.
///
/// A step that changes something in coderd is told, and so is the end of an object's readiness, of a problem, and of waiting.
/// What comes in between, while the object is on its way, is on its status and no event: one rollout is two events.
fn ready_event(then: Option<&Condition>, now: Condition) -> Option<EventNote> {
    let reason = Reason::of(&now)?;
    if then.is_some_and(|then| is_same(then, &now)) {
        return None;
    }
    let was_ready = then.is_some_and(|then| then.status == "True");
    let was_problem = then.is_some_and(|then| meaning(then) == Meaning::Problem);
    let (is_told, warning) = match meaning(&now) {
        Meaning::Ready | Meaning::Step => (true, false),
        Meaning::OnItsWay => (was_ready || was_problem, false),
        Meaning::Problem => (true, true),
    };
    is_told.then_some(EventNote { warning, reason, message: now.message })
}

/// What `Ready` says to a person.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Ready,
    /// The operator changes something outside the cluster, or the object is being deleted.
    Step,
    /// The operator or the cluster works on it, or it waits for another object that is on its way.
    OnItsWay,
    /// Something failed, or a person must act.
    Problem,
}

fn meaning(ready: &Condition) -> Meaning {
    if ready.status == "True" {
        return Meaning::Ready;
    }
    match Reason::of(ready) {
        Some(
            Reason::Creating | Reason::Rotating | Reason::Registering | Reason::Updating | Reason::Deleting,
        ) => Meaning::Step,
        Some(
            Reason::Pending
            | Reason::Progressing
            | Reason::Recording
            | Reason::Outdated
            | Reason::AwaitingControlPlane
            | Reason::AwaitingEntitlements
            | Reason::AwaitingDeletion,
        ) => Meaning::OnItsWay,
        Some(_) | None => Meaning::Problem,
    }
}

fn is_same(one: &Condition, two: &Condition) -> bool {
    one.status == two.status && one.reason == two.reason
}

fn event(warning: bool, condition: Condition) -> Option<EventNote> {
    let reason = Reason::of(&condition)?;
    Some(EventNote { warning, reason, message: condition.message })
}

/// Reasons of [`EVENT_CONDITIONS`] that are no event: the step is in progress, the spec asks for it, or `Ready` tells it.
const EXPECTED_REASONS: [Reason; 10] = [
    Reason::Pending,
    Reason::Disabled,
    Reason::Progressing,
    Reason::Revoking,
    Reason::DatabaseUrlMissing,
    Reason::Connecting,
    Reason::NoPodsReady,
    Reason::AwaitingControlPlane,
    Reason::AwaitingDeletion,
    Reason::OperatorAccessNotReady,
];

/// Whether a condition other than `Ready` is a problem that a person should know of.
fn is_bad(condition: &Condition) -> bool {
    match &*condition.type_ {
        condition_type::DOWNGRADE
        | condition_type::LICENSE_EXPIRING
        | condition_type::PAUSED
        | condition_type::SCALE_IGNORED => condition.status == "True",
        _ => {
            condition.status == "False"
                && !Reason::of(condition).is_some_and(|reason| EXPECTED_REASONS.contains(&reason))
        }
    }
}

/// Conditions carry whole seconds; anything finer would differ after a round trip.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
