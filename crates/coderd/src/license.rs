//! Licenses: what a license says about itself, and the licenses that a deployment has.
//!
//! Claims are read without verifying the signature: coderd alone decides whether a license is good. They are enough to
//! tell licenses apart, to find one among the installed ones, and to know when it expires. coderd never returns the text
//! of a license, and neither a claim nor an error here contains it.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::{
    answer,
    client::Client,
    error::{CoderdError, ErrorKind, Result},
    intervals::{MAX_FEATURES, MAX_LICENSE_BYTES, MAX_WORD_BYTES},
    request::{Auth, Request, Surface},
};

/// The claims of a license that identify it. A claim that is missing or has another type is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Claims {
    /// The claim `jti`. Usually a UUID, which then becomes the UUID of the installed license.
    #[serde(default, rename = "jti", deserialize_with = "lenient")]
    pub id: String,
    /// System that manages the account, such as `salesforce`.
    #[serde(default, deserialize_with = "lenient")]
    pub account_type: String,
    /// Account that the license was issued to.
    #[serde(default, deserialize_with = "lenient")]
    pub account_id: String,
    /// `premium`, `enterprise`, or empty for licenses that list their features.
    #[serde(default, deserialize_with = "lenient")]
    pub feature_set: String,
    /// Whether the license is a trial.
    #[serde(default, deserialize_with = "lenient")]
    pub trial: bool,
    /// The claim `iat`.
    #[serde(default, rename = "iat", deserialize_with = "seconds")]
    pub issued_at: Option<Timestamp>,
    /// The claim `nbf`.
    #[serde(default, rename = "nbf", deserialize_with = "seconds")]
    pub not_before: Option<Timestamp>,
    /// When the license expires and its grace period begins.
    #[serde(default, deserialize_with = "seconds")]
    pub license_expires: Option<Timestamp>,
    /// The claim `exp`: when the grace period ends.
    #[serde(default, rename = "exp", deserialize_with = "seconds")]
    pub expires: Option<Timestamp>,
    /// Features and limits by name.
    #[serde(default, deserialize_with = "lenient")]
    pub features: BTreeMap<String, i64>,
    /// The only deployments that may use the license. Empty: any.
    #[serde(default, deserialize_with = "lenient")]
    pub deployment_ids: Vec<String>,
}

/// Why a text is not a license. Never quotes the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotALicense {
    /// Larger than any license.
    #[error("a license has at most {} KiB", MAX_LICENSE_BYTES / 1024)]
    Size,
    /// Not three parts separated by dots.
    #[error("a license has three parts with dots in between")]
    Parts,
    /// The second part is not base64.
    #[error("the middle part of the license is not base64")]
    Encoding,
    /// The second part is not a JSON object.
    #[error("the middle part of the license is not a JSON object")]
    Claims,
}

impl Claims {
    /// Reads the claims of a license without verifying its signature.
    pub fn read(license: &SecretString) -> Result<Self, NotALicense> {
        let license = license.expose_secret().trim();
        if license.len() > MAX_LICENSE_BYTES {
            return Err(NotALicense::Size);
        }
        let mut parts = license.split('.');
        let (Some(_header), Some(claims), Some(_signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotALicense::Parts);
        };
        let claims =
            URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).map_err(|_| NotALicense::Encoding)?;
        // serde accepts a list for a struct whose fields all have defaults, so the claims are read as a map first.
        let claims: serde_json::Map<_, _> =
            serde_json::from_slice(&claims).map_err(|_| NotALicense::Claims)?;
        serde_json::from_value(claims.into()).map_err(|_| NotALicense::Claims)
    }
}

/// Finds the installed license with these claims: by `jti`, or by all claims if there is no `jti`.
pub fn find<'a>(claims: &Claims, installed: &'a [License]) -> Option<&'a License> {
    if claims.id.is_empty() {
        return installed.iter().find(|license| license.claims == *claims);
    }
    let by_claim = installed.iter().find(|license| license.claims.id.eq_ignore_ascii_case(&claims.id));
    by_claim.or_else(|| installed.iter().find(|license| license.uuid.eq_ignore_ascii_case(&claims.id)))
}

/// An installed license.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct License {
    /// Number that identifies the license in requests.
    pub id: i32,
    /// The `jti` of the license if it is a UUID, else a random UUID.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub uuid: String,
    /// When the license was added.
    #[serde(default, deserialize_with = "answer::time")]
    pub uploaded_at: Option<Timestamp>,
    /// The claims of the license. coderd also lists licenses that are expired or that it cannot verify.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub claims: Claims,
}

/// What a deployment may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entitlements {
    /// Whether a valid license is installed.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub has_license: bool,
    /// Whether the license is a trial.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub trial: bool,
    /// Features by name. Required: an answer without features is not one of coderd.
    #[serde(deserialize_with = "features")]
    pub features: BTreeMap<String, Feature>,
    /// Warnings for administrators, such as an expiry soon. The first twenty.
    #[serde(default, deserialize_with = "answer::notes")]
    pub warnings: Vec<String>,
    /// Problems of the licenses. The first twenty.
    #[serde(default, deserialize_with = "answer::notes")]
    pub errors: Vec<String>,
    /// When coderd last computed the entitlements: at least every ten minutes, and after a license is added.
    #[serde(default, deserialize_with = "answer::time")]
    pub refreshed_at: Option<Timestamp>,
}

/// One feature.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Feature {
    /// What the licenses say.
    pub entitlement: Entitlement,
    /// Whether the feature works. coderd itself checks this, and not `entitlement`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub enabled: bool,
    /// Upper bound for features that are counted, such as `user_limit`.
    #[serde(default)]
    pub limit: Option<i64>,
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

impl<'de> Deserialize<'de> for Entitlement {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = answer::word_or_empty(from)?;
        Ok(match word.as_str() {
            "entitled" => Self::Entitled,
            "grace_period" => Self::GracePeriod,
            "not_entitled" => Self::NotEntitled,
            _ => Self::Other(word),
        })
    }
}

/// Result of [`Client::refresh_entitlements`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    /// coderd has computed the entitlements again.
    Now,
    /// coderd refused, because it computed them less than a minute ago.
    Lately,
}

impl Client {
    /// Reads the entitlements. Needs no credential. `NotSupported`: an AGPL build, which has no such route.
    pub async fn entitlements(&self) -> Result<Entitlements> {
        self.fetch(Request::get("get entitlements", &["entitlements"]).by(Auth::Nobody)).await
    }

    /// Lists all licenses. Without the permission to read them, coderd answers with an empty list instead of a
    /// refusal.
    pub async fn licenses(&self) -> Result<Vec<License>> {
        self.list(Request::get("list licenses", &["licenses"])).await
    }

    /// Adds a license. `Duplicate`: exactly this license is installed. `InvalidLicense`: coderd does not accept it.
    pub async fn add_license(&self, license: &SecretString) -> Result<License> {
        let body = json!({ "license": license.expose_secret().trim() });
        let request = Request::post("add license", &["licenses"], &body).hiding(license);
        self.fetch(request.on(Surface::AddsLicense)).await
    }

    /// Deletes a license by its number.
    pub async fn delete_license(&self, id: i32) -> Result<()> {
        self.perform(Request::delete("delete license", &["licenses", &id.to_string()])).await
    }

    /// Makes coderd compute the entitlements again. It does so by itself after a license is added.
    pub async fn refresh_entitlements(&self) -> Result<Refreshed> {
        let path = ["licenses", "refresh-entitlements"];
        match self.perform(Request::new(http::Method::POST, "refresh entitlements", &path)).await {
            Ok(()) => Ok(Refreshed::Now),
            // coderd answers 400, not 429, if it refreshed less than 60 s ago. Recent entitlements are as good as new
            // ones.
            Err(CoderdError { kind: ErrorKind::Invalid(_), .. }) => Ok(Refreshed::Lately),
            Err(error) => Err(error),
        }
    }
}

/// Features by name. They go to the status, so there are not many and their names are short.
fn features<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Feature>, D::Error> {
    let all = BTreeMap::<String, Feature>::deserialize(from)?;
    if all.len() > MAX_FEATURES || all.keys().any(|name| name.len() > MAX_WORD_BYTES) {
        return Err(serde::de::Error::custom(answer::EXCESSIVE));
    }
    Ok(all)
}

/// The value, or the default if it has another type.
fn lenient<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: serde::de::DeserializeOwned + Default,
{
    let value: serde_json::Value = answer::or_default(from)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// A time in Unix seconds, which coderd may write with a fraction.
fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let value: serde_json::Value = answer::or_default(from)?;
    #[allow(clippy::cast_possible_truncation)]
    let whole = value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64));
    Ok(whole.and_then(|seconds| Timestamp::from_second(seconds).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(claims: &serde_json::Value) -> SecretString {
        let [header, claims] =
            [r#"{"alg":"EdDSA"}"#.to_owned(), claims.to_string()].map(|text| URL_SAFE_NO_PAD.encode(text));
        format!("{header}.{claims}.c2lnbmF0dXJl\n").into()
    }

    fn installed(id: i32, uuid: &str, claims: &serde_json::Value) -> License {
        serde_json::from_value(json!({ "id": id, "uuid": uuid, "claims": claims })).unwrap()
    }

    const JTI: &str = "5d6ad30c-6d20-4d6c-8d0e-9c1b1a1b6f2a";

    #[test]
    fn claims_are_read_without_verifying_anything() {
        let claims = Claims::read(&jwt(&json!({
            "jti": JTI, "account_type": "salesforce", "account_id": "A1", "feature_set": "premium",
            "license_expires": 1_800_000_000, "exp": 1.8e9, "trial": true, "features": {"user_limit": 100},
            "version": 3,
        })))
        .unwrap();
        assert_eq!((claims.id.as_str(), claims.account_id.as_str()), (JTI, "A1"));
        assert_eq!(claims.license_expires, claims.expires);
        assert_eq!(claims.license_expires.unwrap().as_second(), 1_800_000_000);
        assert!(claims.trial && claims.features["user_limit"] == 100);
    }

    #[test]
    fn odd_claims_are_empty_and_no_claims_are_an_error() {
        let odd =
            json!({ "jti": 7, "trial": "yes", "exp": "tomorrow", "features": [], "deployment_ids": null });
        assert_eq!(Claims::read(&jwt(&odd)).unwrap(), Claims::default());
        for (text, expected) in [
            ("", NotALicense::Parts),
            ("a.b", NotALicense::Parts),
            ("a.b.c.d", NotALicense::Parts),
            ("a.%%.c", NotALicense::Encoding),
            ("a.W10.c", NotALicense::Claims),
            ("a.Zm9v.c", NotALicense::Claims),
        ] {
            assert_eq!(Claims::read(&text.into()), Err(expected), "{text}");
        }
        assert_eq!(Claims::read(&"x".repeat(MAX_LICENSE_BYTES + 1).into()), Err(NotALicense::Size));
    }

    #[test]
    fn a_license_is_found_by_its_id_or_by_all_its_claims() {
        let (named, nameless) =
            (json!({ "jti": JTI, "account_id": "A" }), json!({ "account_id": "B", "exp": 1 }));
        let list = [
            installed(1, "0", &json!({ "account_id": "B", "exp": 2 })),
            installed(2, "1", &nameless),
            installed(3, &JTI.to_uppercase(), &json!(null)),
        ];
        let found = |claims: &serde_json::Value| {
            find(&Claims::read(&jwt(claims)).unwrap(), &list).map(|license| license.id)
        };
        assert_eq!(found(&named), Some(3));
        assert_eq!(found(&nameless), Some(2));
        assert_eq!(found(&json!({ "account_id": "B" })), None);
        assert_eq!(found(&json!({ "jti": "other", "account_id": "B", "exp": 1 })), None);
    }

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
        let features = |count: usize| {
            let all = (0..count).map(|index| (index.to_string(), json!({"entitlement": "entitled"})));
            let all: serde_json::Map<_, _> = all.collect();
            serde_json::from_value::<Entitlements>(json!({ "features": all }))
        };
        assert!(features(MAX_FEATURES).is_ok() && features(MAX_FEATURES + 1).is_err());
    }
}
