//! Conditions: computed anew in every pass, with times that move only when a status flips.

use coder_k8s_api::condition::{kind, reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

use crate::outcome::{Done, Note};

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for State {
    fn from(is: bool) -> Self {
        if is { Self::True } else { Self::False }
    }
}

/// The conditions of one pass.
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

    /// Says one thing. Whatever this pass said of it before counts no more.
    pub fn set(&mut self, type_: &str, state: impl Into<State>, reason: &str, message: impl Into<String>) {
        let status = state.into().as_str();
        let same = self.before.iter().find(|c| c.type_ == type_ && c.status == status);
        let since = same.map_or_else(|| Time(whole_seconds(self.now)), |c| c.last_transition_time.clone());
        self.all.retain(|said| said.type_ != type_);
        self.all.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            observed_generation: self.generation,
            last_transition_time: since,
        });
    }

    /// Says what is common to all kinds: whether children conflict, whether work goes on, whether only a person helps.
    ///
    /// `ready` is the verdict if nothing failed.
    pub fn set_common(&mut self, done: &Done, ready: Verdict) {
        let conflict = done.foreign.iter().map(|foreign| {
            format!(
                "{} {} exists and belongs to somebody else; rename or delete it, or hand it over with the annotation {}",
                foreign.kind, foreign.name, foreign.hand_over
            )
        });
        let conflict = conflict.collect::<Vec<_>>().join("; ");
        let failure = done.failures.first();
        let refused = done.failures.iter().find(|failure| failure.reason == reason::INVALID);
        let stalled = match (done.foreign.is_empty(), refused, ready.progress) {
            (false, _, _) => Some((reason::FOREIGN_OBJECT, conflict.clone())),
            (true, Some(refused), _) => Some((refused.reason, refused.message.clone())),
            (true, None, Progress::Stalled) if failure.is_none() => {
                Some((ready.reason, ready.message.clone()))
            }
            (true, None, _) => None,
        };
        match (failure, ready.progress) {
            // What a person must see to is not worked on, so that tools call it failed.
            _ if stalled.is_some() => {
                self.set(kind::RECONCILING, false, reason::RECONCILED, "there is nothing left to do");
            }
            (Some(failure), _) => self.set(kind::RECONCILING, true, failure.reason, failure.message.clone()),
            (None, Progress::Working) => {
                self.set(kind::RECONCILING, true, ready.reason, ready.message.clone());
            }
            (None, _) => {
                self.set(kind::RECONCILING, false, reason::RECONCILED, "there is nothing left to do");
            }
        }
        match (done.foreign.is_empty(), failure) {
            (false, _) => self.set(kind::READY, false, reason::FOREIGN_OBJECT, conflict.clone()),
            (true, Some(failure)) => self.set(kind::READY, false, failure.reason, failure.message.clone()),
            (true, None) => self.set(kind::READY, ready.ready, ready.reason, ready.message),
        }
        match stalled {
            Some((reason, message)) => self.set(kind::STALLED, true, reason, message),
            None => self.set(kind::STALLED, false, reason::RECONCILED, "nothing waits for a person"),
        }
        if done.foreign.is_empty() {
            self.set(kind::CONFLICT, false, reason::RECONCILED, "no object of others is in the way");
        } else {
            self.set(kind::CONFLICT, true, reason::FOREIGN_OBJECT, conflict);
        }
    }

    /// What this pass, or else the one before, says about one thing.
    pub fn said(&self, type_: &str) -> Option<&Condition> {
        self.all.iter().chain(self.before).find(|c| c.type_ == type_)
    }

    /// Says nothing about one thing any more.
    pub fn clear(&mut self, type_: &str) {
        self.cleared.push(type_.to_owned());
    }

    /// The list. What this pass said nothing about stays as it was, and everything in its place.
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
    /// The answer.
    pub ready: bool,
    /// Whether anything is still to come.
    pub progress: Progress,
    /// The reason, one word.
    pub reason: &'static str,
    /// The sentence.
    pub message: String,
}

/// Whether anything is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is.
    Settled,
    /// It is being worked on, or waited for.
    Working,
    /// Only a person helps.
    Stalled,
}

/// `Ready` if a pod is ready, else `Pending`: the word that the existing operator uses.
pub fn phase(ready_replicas: Option<i32>) -> String {
    if ready_replicas.unwrap_or(0) > 0 { "Ready" } else { "Pending" }.to_owned()
}

/// A status without its times, for those to whom only what it says matters.
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

/// Conditions whose bad news, and whose end, is told. `Ready` is told always.
const TOLD: [&str; 10] = [
    kind::DAEMONS_CONNECTED,
    kind::DOWNGRADE,
    kind::ENTITLEMENTS_HEALTHY,
    kind::EXPOSED,
    kind::JOBS_RUNNABLE,
    kind::LICENSE_APPLIED,
    kind::LICENSE_EXPIRING,
    kind::OPERATOR_ACCESS_READY,
    kind::PAUSED,
    kind::WORKSPACE_ACCESS,
];

/// What to tell people after a pass: `Ready` has flipped or has another reason, or a part of it turned bad or well.
///
/// A new object that is on its way is no news.
pub fn transitions(before: &[Condition], after: &[Condition]) -> Vec<Note> {
    let find = |all: &[Condition], type_: &str| all.iter().find(|c| c.type_ == type_).cloned();
    let same = |a: &Condition, b: &Condition| a.status == b.status && a.reason == b.reason;
    let mut notes = Vec::new();
    if let Some(now) = find(after, kind::READY) {
        let then = find(before, kind::READY);
        let on_its_way = now.reason == reason::PROGRESSING || now.reason == reason::PENDING;
        let news = then.as_ref().map_or(!on_its_way, |then| !same(then, &now));
        let bad = now.status != "True" && !on_its_way && now.reason != reason::DELETING;
        if news {
            notes.push(Note { warning: bad, reason: now.reason, message: now.message });
        }
    }
    for type_ in TOLD {
        let (then, now) = (find(before, type_), find(after, type_));
        let was_bad = then.as_ref().is_some_and(is_bad);
        match now {
            Some(now) if is_bad(&now) && !then.is_some_and(|then| same(&then, &now)) => {
                notes.push(Note { warning: true, reason: now.reason, message: now.message });
            }
            Some(now) if was_bad && !is_bad(&now) && now.status == "True" => {
                notes.push(Note { warning: false, reason: now.reason, message: now.message });
            }
            None if was_bad => {
                let message = format!("{type_} no longer holds");
                notes.push(Note { warning: false, reason: format!("Not{type_}"), message });
            }
            _ => {}
        }
    }
    notes
}

/// Reasons that are no news: on its way, or as it was asked for.
const QUIET: [&str; 7] = [
    reason::PENDING,
    reason::DISABLED,
    reason::PROGRESSING,
    reason::REVOKING,
    reason::DATABASE_URL_MISSING,
    reason::CONNECTING,
    reason::NO_PODS_READY,
];

/// Whether a condition, other than `Ready`, is something a person should know of.
fn is_bad(condition: &Condition) -> bool {
    match &*condition.type_ {
        kind::DOWNGRADE | kind::LICENSE_EXPIRING | kind::PAUSED => condition.status == "True",
        _ => condition.status == "False" && !QUIET.contains(&&*condition.reason),
    }
}

/// Conditions carry whole seconds; anything finer would differ after a round trip.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
