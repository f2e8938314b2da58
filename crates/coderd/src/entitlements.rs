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

/// What a deployment may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entitlements {
    /// Whether a valid license is installed.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub has_license: bool,
    /// Whether the license is a trial.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub trial: bool,
    /// Features by name. Required: an answer without features is not one of coderd.
    pub features: BTreeMap<String, Feature>,
    /// Warnings for administrators, such as an expiry soon.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub warnings: Vec<String>,
    /// Problems of the licenses.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub errors: Vec<String>,
    /// When coderd last computed the entitlements: at least every ten minutes, and after a license is added.
    #[serde(default, deserialize_with = "decode::time")]
    pub refreshed_at: Option<Timestamp>,
}

/// One feature.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Feature {
    /// What the licenses say.
    pub entitlement: Entitlement,
    /// Whether the feature works. coderd itself checks this, and not `entitlement`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub enabled: bool,
    /// Upper bound for features that are counted, such as `user_limit`.
    #[serde(default)]
    pub limit: Option<i64>,
    /// Current use for features that are counted.
    #[serde(default)]
    pub actual: Option<i64>,
}

/// What the licenses say about a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entitlement {
    /// The license includes the feature.
    Entitled,
    /// The license has expired, and its grace period has not.
    GracePeriod,
    /// The license does not include the feature.
    NotEntitled,
    /// A word that this release does not know.
    Other(String),
}

impl Entitlement {
    /// The word as coderd writes it.
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
    /// Reads the entitlements. Needs no credential. `NotSupported`: an AGPL build, which has no such route.
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
