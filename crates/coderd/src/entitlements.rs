//! What the installed licenses allow.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::{
    call::{Auth, Request},
    client::Client,
    decode,
    error::Error,
};

/// What a deployment may do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entitlements {
    /// Whether a valid license is installed.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub has_license: bool,
    /// Whether it is a trial.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub trial: bool,
    /// By name. An answer without them is not one.
    pub features: BTreeMap<String, Feature>,
    /// What coderd warns of, as of an expiry to come.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub warnings: Vec<String>,
    /// What is wrong with the licenses.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub errors: Vec<String>,
    /// When coderd computed it.
    #[serde(default, deserialize_with = "decode::time")]
    pub refreshed_at: Option<Timestamp>,
}

/// One feature.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Feature {
    /// What the licenses say.
    pub entitlement: Entitlement,
    /// Whether it works: what coderd itself goes by.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub enabled: bool,
    /// How much of it is allowed.
    #[serde(default)]
    pub limit: Option<i64>,
    /// How much of it is used.
    #[serde(default)]
    pub actual: Option<i64>,
}

/// What the licenses say about a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entitlement {
    /// Included.
    Entitled,
    /// Included until the grace period ends.
    GracePeriod,
    /// Not included.
    NotEntitled,
    /// A word that we do not know.
    Other(String),
}

impl Entitlement {
    /// coderd's word for it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Entitled => "entitled",
            Self::GracePeriod => "grace_period",
            Self::NotEntitled => "not_entitled",
            Self::Other(word) => word,
        }
    }
}

impl<'de> Deserialize<'de> for Entitlement {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word: String = decode::or_default(from)?;
        Ok(match word.as_str() {
            "entitled" => Self::Entitled,
            "grace_period" => Self::GracePeriod,
            "not_entitled" => Self::NotEntitled,
            _ => Self::Other(word),
        })
    }
}

impl Client {
    /// What the deployment may do. Anybody may ask. `NotSupported`: an AGPL build.
    pub async fn entitlements(&self) -> Result<Entitlements, Error> {
        self.fetch(Request::get("get entitlements").at("entitlements").by(Auth::Nobody)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_and_missing_fields_are_borne_and_missing_features_are_not() {
        let text = r#"{"features":{"new":{"entitlement":"someday"},"user_limit":{"entitlement":"entitled",
            "enabled":true,"limit":100,"actual":null,"usage_period":{}}},"warnings":null,"refreshed_at":"soon"}"#;
        let found: Entitlements = serde_json::from_str(text).unwrap();
        assert_eq!(found.features["new"].entitlement, Entitlement::Other("someday".to_owned()));
        assert_eq!(found.features["user_limit"].limit, Some(100));
        assert!(found.warnings.is_empty() && found.refreshed_at.is_none() && !found.has_license);
        assert!(serde_json::from_str::<Entitlements>(r#"{"features":null}"#).is_err());
        assert!(serde_json::from_str::<Entitlements>("{}").is_err());
    }
}
