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
mod tests {
    use super::*;
    use crate::outcome::{Failure, Foreign, Retry};

    fn settled() -> Verdict {
        let message = "all is well".to_owned();
        Verdict { ready: true, progress: Progress::Settled, reason: "RolledOut", message }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pass(before: &[Condition], done: &Done, now: i64) -> Vec<Condition> {
        let mut conditions = Conditions::new(before, Some(3), at(now));
        conditions.set_common(done, settled());
        conditions.into_vec()
    }

    fn status(all: &[Condition], type_: &str) -> (String, String) {
        let found = all.iter().find(|c| c.type_ == type_).unwrap();
        (found.status.clone(), found.reason.clone())
    }

    fn failed() -> Done {
        let failure = Failure { reason: reason::FORBIDDEN, message: "no".into(), retry: Retry::Backoff };
        Done { failures: vec![failure], ..Done::default() }
    }

    fn in_the_way() -> Done {
        let foreign =
            Foreign { kind: "ServiceAccount".into(), name: "coder".into(), hand_over: "a=b".into() };
        Done { foreign: vec![foreign], ..Done::default() }
    }

    #[test]
    fn a_time_moves_only_when_a_status_flips() {
        let first = pass(&[], &Done::default(), 10);
        let second = pass(&first, &Done::default(), 20);
        assert_eq!(first, second);
        let third = pass(&second, &failed(), 30);
        let ready = third.iter().find(|c| c.type_ == kind::READY).unwrap();
        assert_eq!(ready.last_transition_time, Time(at(30)));
        let stalled = third.iter().find(|c| c.type_ == kind::STALLED).unwrap();
        assert_eq!(stalled.last_transition_time, Time(at(10)));
    }

    #[test]
    fn a_failure_is_worked_on_and_a_conflict_waits_for_a_person() {
        let failing = pass(&[], &failed(), 1);
        assert_eq!(status(&failing, kind::READY), ("False".into(), "Forbidden".into()));
        assert_eq!(status(&failing, kind::RECONCILING).0, "True");
        assert_eq!(status(&failing, kind::STALLED).0, "False");
        let conflict = pass(&[], &in_the_way(), 1);
        assert_eq!(status(&conflict, kind::READY), ("False".into(), "ForeignObject".into()));
        assert_eq!(status(&conflict, kind::RECONCILING).0, "False");
        assert_eq!(status(&conflict, kind::STALLED).0, "True");
        assert_eq!(status(&conflict, kind::CONFLICT).0, "True");
    }

    #[test]
    fn what_a_pass_says_last_counts() {
        let mut conditions = Conditions::new(&[], Some(1), at(5));
        conditions.set(kind::RECONCILING, false, reason::RECONCILED, "there is nothing left to do");
        conditions.set(kind::READY, true, "RolledOut", "it runs");
        conditions.set(kind::RECONCILING, true, "Redirected", "an edit is not known to be done");
        let all = conditions.into_vec();
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(status(&all, kind::RECONCILING), ("True".into(), "Redirected".into()));
    }

    #[test]
    fn what_a_pass_says_nothing_about_stays() {
        let mut others = Conditions::new(&[], Some(1), at(5));
        others.set(kind::LICENSE_APPLIED, State::Unknown, reason::PENDING, "no license is asked for");
        let others = others.into_vec();
        let after = pass(&others, &Done::default(), 9);
        assert_eq!(status(&after, kind::LICENSE_APPLIED), ("Unknown".into(), "Pending".into()));
        assert_eq!(pass(&after, &Done::default(), 10), after);
    }

    #[test]
    fn times_alone_say_nothing() {
        let status = |time: &str, hash: &str| {
            serde_json::json!({"url": "x", "entitlementsLastChecked": time, "licenseLastAppliedHash": hash,
                "conditions": [{"type": "Ready", "lastTransitionTime": time}]})
        };
        assert_eq!(timeless(status("1", "a")), timeless(status("2", "a")));
        assert_ne!(timeless(status("1", "a")), timeless(status("1", "b")));
    }

    #[test]
    fn only_a_transition_is_told() {
        let well = pass(&[], &Done::default(), 1);
        let bad = pass(&well, &in_the_way(), 2);
        assert_eq!(transitions(&[], &well).len(), 1);
        assert_eq!(transitions(&well, &well), []);
        let notes = transitions(&well, &bad);
        assert!(notes[0].warning && notes[0].reason == "ForeignObject");
        assert!(!transitions(&bad, &pass(&bad, &Done::default(), 3))[0].warning);
    }

    #[test]
    fn a_new_object_on_its_way_is_no_news() {
        let rolling = |before: &[Condition]| {
            let mut conditions = Conditions::new(before, Some(1), at(1));
            let message = "rolling out".to_owned();
            let verdict =
                Verdict { ready: false, progress: Progress::Working, reason: reason::PROGRESSING, message };
            conditions.set_common(&Done::default(), verdict);
            conditions.into_vec()
        };
        assert_eq!(transitions(&[], &rolling(&[])), []);
        let well = pass(&[], &Done::default(), 1);
        let notes = transitions(&well, &rolling(&well));
        assert!(notes.len() == 1 && !notes[0].warning);
    }

    #[test]
    fn bad_news_of_a_part_is_told_once_and_so_is_its_end() {
        let with = |state: State, reason: &str| {
            let mut conditions = Conditions::new(&[], Some(1), at(1));
            conditions.set(kind::WORKSPACE_ACCESS, state, reason, "m");
            conditions.into_vec()
        };
        let (fine, bad) = (with(State::True, reason::GRANTED), with(State::False, reason::CONSENT_MISSING));
        assert_eq!(transitions(&[], &fine), []);
        assert!(transitions(&fine, &bad)[0].warning);
        assert_eq!(transitions(&bad, &bad), []);
        assert!(!transitions(&bad, &fine)[0].warning);
        assert_eq!(transitions(&[], &with(State::False, reason::DISABLED)), []);
    }

    #[test]
    fn what_the_api_server_refuses_waits_for_a_person() {
        let failure = Failure { reason: reason::INVALID, message: "no".into(), retry: Retry::Backoff };
        let refused = pass(&[], &Done { failures: vec![failure], ..Done::default() }, 1);
        assert_eq!(status(&refused, kind::STALLED), ("True".into(), "Invalid".into()));
        assert_eq!(status(&refused, kind::RECONCILING).0, "False");
        assert_eq!(status(&refused, kind::READY), ("False".into(), "Invalid".into()));
    }

    #[test]
    fn what_was_cleared_is_gone() {
        let mut conditions = Conditions::new(&[], None, at(1));
        conditions.set(kind::PAUSED, true, "Annotated", "m");
        let before = conditions.into_vec();
        let mut conditions = Conditions::new(&before, None, at(2));
        conditions.clear(kind::PAUSED);
        assert_eq!(conditions.into_vec(), []);
    }
}
