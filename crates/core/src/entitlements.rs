//! What a license amounts to: its tier, and the state of each feature.

use coder_k8s_api::EntitlementsStatus;

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
}
