//! What a license amounts to.

use std::collections::BTreeMap;

/// The tier of a license.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// No license, or a server that knows none.
    None,
    /// A trial.
    Trial,
    /// Enterprise.
    Enterprise,
    /// Premium.
    Premium,
    /// Not known.
    Unknown,
}

impl Tier {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Trial => "trial",
            Self::Enterprise => "enterprise",
            Self::Premium => "premium",
            Self::Unknown => "unknown",
        }
    }

    /// The tier that entitlements amount to. `features` are by name: `entitled`, `grace_period` or `not_entitled`.
    pub fn of(has_license: bool, trial: bool, features: &BTreeMap<String, String>) -> Self {
        let has = |name: &str| features.get(name).is_some_and(|state| is_granted(state));
        match (has_license, trial) {
            (false, _) => Self::None,
            (true, true) => Self::Trial,
            (true, false) if has("custom_roles") || has("multiple_organizations") => Self::Premium,
            (true, false) => Self::Enterprise,
        }
    }

    /// The tier that a license claims to be of.
    pub fn claimed(feature_set: &str, trial: bool) -> Self {
        match feature_set {
            _ if trial => Self::Trial,
            "premium" => Self::Premium,
            _ => Self::Enterprise,
        }
    }
}

/// Whether a feature is allowed.
pub fn is_granted(state: &str) -> bool {
    state == "entitled" || state == "grace_period"
}

/// What is said of a feature: one of the three words, or `unknown`.
pub fn state(features: &BTreeMap<String, String>, name: &str) -> String {
    let known = ["entitled", "grace_period", "not_entitled"];
    let state = features.get(name).map(String::as_str).filter(|state| known.contains(state));
    state.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
    }

    #[test]
    fn tiers_follow_the_table() {
        for (license, trial, list, tier) in [
            (false, true, &[("custom_roles", "entitled")][..], "none"),
            (true, true, &[("custom_roles", "entitled")][..], "trial"),
            (true, false, &[("custom_roles", "entitled")][..], "premium"),
            (true, false, &[("multiple_organizations", "grace_period")][..], "premium"),
            (true, false, &[("custom_roles", "not_entitled")][..], "enterprise"),
            (true, false, &[][..], "enterprise"),
        ] {
            assert_eq!(Tier::of(license, trial, &features(list)).as_str(), tier, "{list:?}");
        }
    }

    #[test]
    fn a_feature_is_one_of_three_words_or_unknown() {
        let all = features(&[("a", "grace_period"), ("b", "sort_of")]);
        assert_eq!(
            [state(&all, "a"), state(&all, "b"), state(&all, "c")],
            ["grace_period", "unknown", "unknown"]
        );
    }
}
