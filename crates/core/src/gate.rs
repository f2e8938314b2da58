//! Whether the license allows external provisioners or workspace proxies, and what follows from the answer.
//!
//! The control plane asks for all of its pools and proxies; one asks by itself only when there is no such answer. A closed
//! gate stops the making of keys and registrations and the first Deployment, never the scaling, updating or reporting of
//! what runs.

use std::time::Duration;

use coder_k8s_api::OnEntitlementLost;
use jiff::{SignedDuration, Timestamp};

use crate::{condition::State, entitlements::is_granted};

/// How long an answer of the control plane counts.
const FRESH: SignedDuration = SignedDuration::from_secs(120);
/// How soon a question that failed is asked again.
const RETRY: Duration = Duration::from_secs(30);

/// A feature of a license.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// External provisioners.
    Provisioners,
    /// Workspace proxies.
    Proxies,
}

impl Feature {
    /// What coderd calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Provisioners => "external_provisioner_daemons",
            Self::Proxies => "workspace_proxy",
        }
    }

    /// What people call it.
    fn called(self) -> &'static str {
        match self {
            Self::Provisioners => "external provisioners",
            Self::Proxies => "workspace proxies",
        }
    }
}

/// What the control plane's status says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// What it says of the feature.
    pub entitlement: Option<String>,
    /// `entitlementsLastChecked`.
    pub checked: Option<Timestamp>,
    /// Whether the control plane keeps it up to date, so that nobody need ask by itself.
    pub kept: bool,
}

/// What coderd says when it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The entitlement of the feature; none: the feature is not among them.
    Entitlement(Option<String>),
    /// A server without licenses.
    NotSupported,
    /// The credential is not accepted, or may not ask.
    Forbidden,
    /// No answer.
    Failed(String),
}

/// The gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// How it stands.
    pub verdict: Verdict,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// When to look again, if nothing else happens.
    pub again: Option<Duration>,
}

/// How the gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The license covers it.
    Open,
    /// The license does not cover it.
    Closed,
    /// Nobody knows: nothing new is begun, nothing is taken back.
    Unknown,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Coderd is to be asked, and the gate decided with the answer.
    Ask,
    /// The gate.
    Know(Gate),
}

impl Gate {
    /// Whether a key may be made and a first Deployment written.
    pub fn may_begin(&self) -> bool {
        self.verdict == Verdict::Open
    }

    /// How many pods are to run. Only a definite no scales down, and only when asked for.
    pub fn replicas(&self, asked: i32, policy: OnEntitlementLost) -> i32 {
        match (self.verdict, policy) {
            (Verdict::Closed, OnEntitlementLost::ScaleDown) => 0,
            _ => asked,
        }
    }

    /// The status of the condition that tells it.
    pub fn state(&self) -> State {
        match self.verdict {
            Verdict::Open => State::True,
            // The existing operator says False to both, and so do scripts that wait for it.
            Verdict::Closed | Verdict::Unknown => State::False,
        }
    }

    /// Nobody knows.
    pub fn unknown(message: impl Into<String>) -> Self {
        let (verdict, reason) = (Verdict::Unknown, "EntitlementsQueryFailed");
        Self { verdict, reason, message: message.into(), again: Some(RETRY) }
    }

    /// The license covers it.
    pub fn open(feature: Feature) -> Self {
        let message = format!("the license covers {}", feature.called());
        Self { verdict: Verdict::Open, reason: "Entitled", message, again: None }
    }

    fn closed(feature: Feature, again: Duration) -> Self {
        let message = format!("the license does not cover {}: install a Premium license", feature.called());
        let verdict = Verdict::Closed;
        Self { verdict, reason: "NotEntitled", message, again: Some(again) }
    }
}

/// Decides from what the control plane says, and from coderd's own answer if it was asked.
pub fn decide(feature: Feature, published: &Published, asked: Option<&Answer>, now: Timestamp) -> Next {
    let left = published.checked.map(|checked| FRESH - now.duration_since(checked).max(SignedDuration::ZERO));
    let fresh = left.filter(SignedDuration::is_positive);
    let left = fresh.and_then(|left| Duration::try_from(left).ok()).unwrap_or(RETRY);
    match published.entitlement.as_deref() {
        Some(state) if is_granted(state) && fresh.is_some() => return Next::Know(Gate::open(feature)),
        Some("not_entitled") if fresh.is_some() => return Next::Know(Gate::closed(feature, left)),
        _ => {}
    }
    match asked {
        Some(answer) => Next::Know(answered(feature, answer)),
        // The control plane asks within seconds, and its answer wakes all.
        None if published.kept => Next::Know(kept(feature, published)),
        None => Next::Ask,
    }
}

/// An answer that is no longer fresh, of a control plane that asks again by itself.
fn kept(feature: Feature, published: &Published) -> Gate {
    match published.entitlement.as_deref() {
        Some(state) if is_granted(state) => Gate { again: Some(RETRY), ..Gate::open(feature) },
        Some("not_entitled") => Gate::closed(feature, RETRY),
        _ => Gate {
            verdict: Verdict::Unknown,
            reason: "EntitlementsQueryFailed",
            message: "the control plane does not know yet what its license covers".to_owned(),
            again: Some(RETRY),
        },
    }
}

fn answered(feature: Feature, answer: &Answer) -> Gate {
    let unknown =
        |reason, message: String| Gate { verdict: Verdict::Unknown, reason, message, again: Some(RETRY) };
    match answer {
        Answer::Entitlement(Some(state)) if is_granted(state) => Gate::open(feature),
        Answer::Entitlement(_) => Gate::closed(feature, FRESH.unsigned_abs()),
        Answer::NotSupported => Gate {
            verdict: Verdict::Closed,
            reason: "NotSupported",
            message: format!(
                "this coderd has no licensed features: {} need the enterprise build",
                feature.called()
            ),
            again: Some(FRESH.unsigned_abs()),
        },
        Answer::Forbidden => {
            unknown("Forbidden", "coderd does not let the operator ask what the license covers".to_owned())
        }
        Answer::Failed(why) => unknown("EntitlementsQueryFailed", format!("cannot ask coderd: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn published(entitlement: &str, checked: i64) -> Published {
        Published { entitlement: Some(entitlement.into()), checked: Some(at(checked)), kept: false }
    }

    fn know(published: &Published, asked: Option<&Answer>) -> Gate {
        match decide(Feature::Provisioners, published, asked, at(1000)) {
            Next::Know(gate) => gate,
            Next::Ask => panic!("asks"),
        }
    }

    #[test]
    fn a_fresh_answer_of_the_control_plane_is_enough() {
        for (word, verdict) in
            [("entitled", Verdict::Open), ("grace_period", Verdict::Open), ("not_entitled", Verdict::Closed)]
        {
            assert_eq!(know(&published(word, 990), None).verdict, verdict);
            assert_eq!(know(&published(word, 5000), None).verdict, verdict, "of a clock that is ahead");
        }
        assert_eq!(know(&published("not_entitled", 990), None).again, Some(Duration::from_secs(110)));
        assert_eq!(know(&published("not_entitled", 5000), None).again, Some(Duration::from_mins(2)));
        assert_eq!(know(&published("entitled", 990), None).again, None);
    }

    #[test]
    fn coderd_is_asked_when_the_answer_is_old_or_none() {
        for old in [
            published("entitled", 700),
            published("not_entitled", 700),
            published("unknown", 990),
            Published::default(),
        ] {
            assert_eq!(decide(Feature::Proxies, &old, None, at(1000)), Next::Ask, "{old:?}");
        }
        let yes = Answer::Entitlement(Some("entitled".into()));
        assert!(know(&published("not_entitled", 700), Some(&yes)).may_begin());
        let no = Answer::Entitlement(Some("not_entitled".into()));
        assert_eq!(know(&published("entitled", 700), Some(&no)).reason, "NotEntitled");
        assert_eq!(know(&Published::default(), Some(&Answer::Entitlement(None))).reason, "NotEntitled");
    }

    #[test]
    fn a_control_plane_that_asks_by_itself_is_waited_for() {
        let kept = |entitlement: &str, checked| Published { kept: true, ..published(entitlement, checked) };
        assert!(know(&kept("entitled", 700), None).may_begin(), "known good lasts");
        assert_eq!(know(&kept("not_entitled", 700), None).verdict, Verdict::Closed);
        assert_eq!(know(&kept("unknown", 990), None).verdict, Verdict::Unknown);
    }

    #[test]
    fn failures_have_their_reasons_and_are_no_definite_no() {
        for (answer, reason, verdict) in [
            (Answer::NotSupported, "NotSupported", Verdict::Closed),
            (Answer::Forbidden, "Forbidden", Verdict::Unknown),
            (Answer::Failed("503".into()), "EntitlementsQueryFailed", Verdict::Unknown),
        ] {
            let gate = know(&Published::default(), Some(&answer));
            assert_eq!((gate.reason, gate.verdict), (reason, verdict));
            assert!(!gate.may_begin() && gate.again.is_some() && gate.state() == State::False);
        }
    }

    #[test]
    fn only_a_definite_no_scales_down_and_only_when_asked_for() {
        let gate = |answer: Answer| know(&Published::default(), Some(&answer));
        let no = gate(Answer::Entitlement(None));
        assert_eq!(no.replicas(3, OnEntitlementLost::Keep), 3);
        assert_eq!(no.replicas(3, OnEntitlementLost::ScaleDown), 0);
        let unknown = gate(Answer::Failed("x".into()));
        assert_eq!(unknown.replicas(3, OnEntitlementLost::ScaleDown), 3);
    }
}
