//! What a license amounts to: its tier, the state of each feature, and whether it allows external provisioners or workspace
//! proxies.
//!
//! The control plane asks for all of its pools and proxies; one asks by itself only when there is no such answer. A closed
//! gate stops the making of keys and registrations and the first Deployment, never the scaling, updating or reporting of
//! what runs.

use std::time::Duration;

use coder_k8s_api::{EntitlementsStatus, OnEntitlementLost, Reason};
use jiff::{SignedDuration, Timestamp};

use crate::{
    condition::ConditionStatus,
    intervals::{ENTITLEMENT_FRESH, MAX_CLOCK_SKEW, REQUEUE_ENTITLEMENT},
};

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

/// The entitlement on the control plane's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// State of the feature. `Unknown` if the status does not name it.
    pub entitlement: FeatureState,
    /// Whether the server has no licensed features at all. Its time does not move.
    pub is_unsupported: bool,
    /// `entitlementsLastChecked`.
    pub checked: Option<Timestamp>,
    /// Whether the control plane refreshes it: it may ask, and its last query did not fail. Dependents then need no query of
    /// their own.
    pub is_refreshed: bool,
}

/// The answer of coderd itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntitlementAnswer {
    /// The state of the feature. `Unknown`: coderd does not list it.
    Entitlement(FeatureState),
    /// A server without licenses.
    NotSupported,
    /// The credential is not accepted, or may not ask.
    Forbidden,
    /// No answer.
    Failed(String),
}

/// The gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LicenseGate {
    /// How it stands.
    pub state: GateState,
    /// Of the condition.
    pub reason: Reason,
    /// Of the condition.
    pub message: String,
    /// When to look again, if nothing else happens.
    pub again: Option<Duration>,
}

/// How the gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// The license covers it.
    Open,
    /// The license does not cover it.
    Closed,
    /// Nobody knows: nothing new is begun, nothing is taken back.
    Unknown,
}

impl LicenseGate {
    /// Whether a key may be made and a first Deployment written.
    pub fn may_begin(&self) -> bool {
        self.state == GateState::Open
    }

    /// How many pods are to run. Only a definite no scales down, and only when asked for.
    pub fn replicas(&self, asked: i32, policy: OnEntitlementLost) -> i32 {
        match (self.state, policy) {
            (GateState::Closed, OnEntitlementLost::ScaleDown) => 0,
            _ => asked,
        }
    }

    /// The status of the condition that tells it.
    pub fn condition_status(&self) -> ConditionStatus {
        match self.state {
            GateState::Open => ConditionStatus::True,
            // The Go operator sets False for both, and scripts wait for that.
            GateState::Closed | GateState::Unknown => ConditionStatus::False,
        }
    }

    fn new(state: GateState, reason: Reason, message: impl Into<String>, again: Option<Duration>) -> Self {
        Self { state, reason, message: message.into(), again }
    }

    /// Nobody knows, because coderd could not be asked.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(GateState::Unknown, Reason::EntitlementsQueryFailed, message, Some(REQUEUE_ENTITLEMENT))
    }

    /// Nobody knows yet: the question was not asked so far. Nothing failed.
    pub fn awaited(message: impl Into<String>) -> Self {
        Self { reason: Reason::AwaitingEntitlements, ..Self::unknown(message) }
    }

    /// The license covers it.
    pub fn open(feature: Feature) -> Self {
        let message = format!("the license covers {}", feature.called());
        Self::new(GateState::Open, Reason::Entitled, message, None)
    }

    fn closed(feature: Feature, again: Duration) -> Self {
        let message = format!("the license does not cover {}: install a Premium license", feature.called());
        Self::new(GateState::Closed, Reason::NotEntitled, message, Some(again))
    }

    /// A license would not help.
    fn unsupported(feature: Feature, again: Duration) -> Self {
        let message = format!(
            "this coderd has no licensed features: {} need the enterprise build: use its image, ghcr.io/coder/coder",
            feature.called()
        );
        Self::new(GateState::Closed, Reason::NotSupported, message, Some(again))
    }
}

/// Decides from the control plane's status. None: coderd is to be asked, and the gate follows from its answer.
pub fn decide(feature: Feature, published: &Published, now: Timestamp) -> Option<LicenseGate> {
    let left = published.checked.and_then(|checked| fresh_for(checked, now));
    // What is no longer fresh counts if the control plane asks again by itself: it asks within seconds, and its answer
    // enqueues every dependent.
    if left.is_none() && !published.is_refreshed {
        return None;
    }
    let again = left.unwrap_or(REQUEUE_ENTITLEMENT);
    if published.is_unsupported {
        return Some(LicenseGate::unsupported(feature, again));
    }
    match published.entitlement {
        state if state.is_granted() => {
            // While the control plane does not ask, nothing enqueues its dependents when the answer is no longer fresh.
            let again = (left.is_none() || !published.is_refreshed).then_some(again);
            Some(LicenseGate { again, ..LicenseGate::open(feature) })
        }
        FeatureState::NotEntitled => Some(LicenseGate::closed(feature, again)),
        _ if published.is_refreshed => {
            Some(LicenseGate::awaited("waiting for the control plane to ask coderd what its license covers"))
        }
        _ => None,
    }
}

/// How long an answer of this time still counts. None: it is too old, or further ahead than clocks may differ.
fn fresh_for(checked: Timestamp, now: Timestamp) -> Option<Duration> {
    let age = now.duration_since(checked);
    if age < -MAX_CLOCK_SKEW {
        return None;
    }
    let left = ENTITLEMENT_FRESH - age.max(SignedDuration::ZERO);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// The gate that follows from the answer of coderd itself.
pub fn answered(feature: Feature, answer: &EntitlementAnswer) -> LicenseGate {
    let fresh = ENTITLEMENT_FRESH.unsigned_abs();
    match answer {
        EntitlementAnswer::Entitlement(state) if state.is_granted() => LicenseGate::open(feature),
        EntitlementAnswer::Entitlement(_) => LicenseGate::closed(feature, fresh),
        EntitlementAnswer::NotSupported => LicenseGate::unsupported(feature, fresh),
        EntitlementAnswer::Forbidden => LicenseGate {
            reason: Reason::Forbidden,
            ..LicenseGate::unknown(
                "coderd does not let the operator ask what the license covers: use the token of an owner",
            )
        },
        EntitlementAnswer::Failed(why) => {
            LicenseGate::unknown(format!("cannot ask coderd what the license covers: {why}"))
        }
    }
}

/// The state of a licensed feature, as coderd reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeatureState {
    /// The license covers it.
    Entitled,
    /// The license has ended, and coderd still allows the feature for a while.
    GracePeriod,
    /// The license does not cover it.
    NotEntitled,
    /// Not reported, or in a word that this release does not know.
    #[default]
    Unknown,
}

impl FeatureState {
    /// The word on status, which is coderd's own.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Entitled => "entitled",
            Self::GracePeriod => "grace_period",
            Self::NotEntitled => "not_entitled",
            Self::Unknown => "unknown",
        }
    }

    /// Reads the word on status.
    pub fn parse(text: &str) -> Self {
        [Self::Entitled, Self::GracePeriod, Self::NotEntitled]
            .into_iter()
            .find(|state| state.as_str() == text)
            .unwrap_or(Self::Unknown)
    }

    /// Whether the feature may be used.
    pub fn is_granted(self) -> bool {
        matches!(self, Self::Entitled | Self::GracePeriod)
    }
}

/// The tier of a license.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// No license, or a server without licensed features.
    None,
    /// A trial license.
    Trial,
    /// An Enterprise license.
    Enterprise,
    /// A Premium license.
    Premium,
    /// Not known.
    Unknown,
}

impl Tier {
    /// The word on status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Trial => "trial",
            Self::Enterprise => "enterprise",
            Self::Premium => "premium",
            Self::Unknown => "unknown",
        }
    }

    /// The tier that entitlements amount to. coderd does not report one: two features exist in Premium alone.
    pub fn of(entitlements: &EntitlementsStatus) -> Self {
        let EntitlementsStatus { has_license, trial, features, .. } = entitlements;
        let has =
            |name: &str| features.get(name).is_some_and(|state| FeatureState::parse(state).is_granted());
        match (*has_license, *trial) {
            (false, _) => Self::None,
            (true, true) => Self::Trial,
            (true, false) if has("custom_roles") || has("multiple_organizations") => Self::Premium,
            (true, false) => Self::Enterprise,
        }
    }

    /// The tier that the claims of a license name.
    pub fn claimed(feature_set: &str, trial: bool) -> Self {
        match feature_set {
            _ if trial => Self::Trial,
            "premium" => Self::Premium,
            _ => Self::Enterprise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_follow_the_table() {
        use FeatureState::{Entitled, GracePeriod, NotEntitled};
        for (license, trial, list, tier) in [
            (false, true, &[("custom_roles", Entitled)][..], "none"),
            (true, true, &[("custom_roles", Entitled)][..], "trial"),
            (true, false, &[("custom_roles", Entitled)][..], "premium"),
            (true, false, &[("multiple_organizations", GracePeriod)][..], "premium"),
            (true, false, &[("custom_roles", NotEntitled)][..], "enterprise"),
            (true, false, &[][..], "enterprise"),
        ] {
            let word = |state: &FeatureState| state.as_str().to_owned();
            let features = list.iter().map(|(name, state)| ((*name).to_owned(), word(state))).collect();
            let all = EntitlementsStatus { has_license: license, trial, features, ..Default::default() };
            assert_eq!(Tier::of(&all).as_str(), tier, "{list:?}");
        }
    }

    #[test]
    fn a_state_is_read_back_from_its_word_and_anything_else_is_unknown() {
        for word in ["entitled", "grace_period", "not_entitled", "unknown"] {
            assert_eq!(FeatureState::parse(word).as_str(), word);
        }
        assert_eq!(FeatureState::parse("sort_of"), FeatureState::Unknown);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn published(entitlement: &str, checked: i64) -> Published {
        let entitlement = FeatureState::parse(entitlement);
        Published { entitlement, checked: Some(at(checked)), ..Published::default() }
    }

    fn know(published: &Published, asked: Option<&EntitlementAnswer>) -> LicenseGate {
        let known = decide(Feature::Provisioners, published, at(1000));
        let asked = asked.map(|answer| answered(Feature::Provisioners, answer));
        known.or(asked).unwrap_or_else(|| panic!("asks"))
    }

    #[test]
    fn a_fresh_answer_of_the_control_plane_is_enough() {
        for (word, state) in [
            ("entitled", GateState::Open),
            ("grace_period", GateState::Open),
            ("not_entitled", GateState::Closed),
        ] {
            assert_eq!(know(&published(word, 990), None).state, state);
            assert_eq!(know(&published(word, 1200), None).state, state, "of a clock that is ahead");
        }
        assert_eq!(know(&published("not_entitled", 990), None).again, Some(Duration::from_secs(110)));
        assert_eq!(know(&published("not_entitled", 1200), None).again, Some(Duration::from_mins(2)));
        assert_eq!(know(&published("entitled", 990), None).again, Some(Duration::from_secs(110)));
        assert_eq!(know(&Published { is_refreshed: true, ..published("entitled", 990) }, None).again, None);
    }

    #[test]
    fn a_time_in_the_future_is_fresh_only_as_far_as_clocks_differ() {
        for (checked, is_fresh) in [(1000, true), (1300, true), (1301, false), (9_000_000, false)] {
            for word in ["entitled", "not_entitled"] {
                let known = decide(Feature::Provisioners, &published(word, checked), at(1000));
                assert_eq!(known.is_some(), is_fresh, "{word} at {checked}");
            }
        }
    }

    #[test]
    fn a_server_without_licenses_is_told_apart_by_what_the_control_plane_publishes() {
        for (checked, is_refreshed, is_known) in
            [(990, true, true), (990, false, true), (0, true, true), (0, false, false)]
        {
            let agpl = Published { is_unsupported: true, is_refreshed, ..published("not_entitled", checked) };
            let gate = decide(Feature::Provisioners, &agpl, at(1000));
            assert_eq!(gate.is_some(), is_known, "{agpl:?}");
            let Some(gate) = gate else { continue };
            assert_eq!((gate.state, gate.reason), (GateState::Closed, Reason::NotSupported));
            assert!(gate.message.contains("ghcr.io/coder/coder") && !gate.message.contains("install"));
        }
    }

    #[test]
    fn coderd_is_asked_when_the_answer_is_old_or_none() {
        for old in [
            published("entitled", 700),
            published("not_entitled", 700),
            published("unknown", 990),
            published("entitled", 5000),
            Published::default(),
        ] {
            assert_eq!(decide(Feature::Proxies, &old, at(1000)), None, "{old:?}");
        }
        let yes = EntitlementAnswer::Entitlement(FeatureState::Entitled);
        assert!(know(&published("not_entitled", 700), Some(&yes)).may_begin());
        let no = EntitlementAnswer::Entitlement(FeatureState::NotEntitled);
        assert_eq!(know(&published("entitled", 700), Some(&no)).reason, Reason::NotEntitled);
        assert_eq!(
            know(&Published::default(), Some(&EntitlementAnswer::Entitlement(FeatureState::Unknown))).reason,
            Reason::NotEntitled
        );
    }

    #[test]
    fn a_control_plane_that_asks_by_itself_is_waited_for() {
        let is_refreshed =
            |entitlement: &str, checked| Published { is_refreshed: true, ..published(entitlement, checked) };
        assert!(know(&is_refreshed("entitled", 700), None).may_begin(), "known good lasts");
        assert_eq!(know(&is_refreshed("not_entitled", 700), None).state, GateState::Closed);
        let waits = know(&is_refreshed("unknown", 990), None);
        assert_eq!((waits.state, waits.reason), (GateState::Unknown, Reason::AwaitingEntitlements));
    }

    #[test]
    fn failures_have_their_reasons_and_are_no_definite_no() {
        for (answer, reason, state) in [
            (EntitlementAnswer::NotSupported, Reason::NotSupported, GateState::Closed),
            (EntitlementAnswer::Forbidden, Reason::Forbidden, GateState::Unknown),
            (EntitlementAnswer::Failed("503".into()), Reason::EntitlementsQueryFailed, GateState::Unknown),
        ] {
            let gate = know(&Published::default(), Some(&answer));
            assert_eq!((gate.reason, gate.state), (reason, state));
            assert!(
                !gate.may_begin()
                    && gate.again.is_some()
                    && gate.condition_status() == ConditionStatus::False
            );
        }
    }

    #[test]
    fn only_a_definite_no_scales_down_and_only_when_asked_for() {
        let gate = |answer: EntitlementAnswer| know(&Published::default(), Some(&answer));
        let no = gate(EntitlementAnswer::Entitlement(FeatureState::Unknown));
        assert_eq!(no.replicas(3, OnEntitlementLost::Keep), 3);
        assert_eq!(no.replicas(3, OnEntitlementLost::ScaleDown), 0);
        let unknown = gate(EntitlementAnswer::Failed("x".into()));
        assert_eq!(unknown.replicas(3, OnEntitlementLost::ScaleDown), 3);
    }
}
