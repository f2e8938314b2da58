//! Licenses: built by tests, installed and listed as in coderd.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{
    message::{Asked, Reply},
    state::{License, State, id},
};

/// Marks a license of the simulator. No real coderd accepts such a license.
const KEY_ID: &str = "codersim";
const DAY: i64 = 24 * 60 * 60;
const FIVE_YEARS: i64 = 5 * 365 * DAY;
const REFRESH_PAUSE: SignedDuration = SignedDuration::from_secs(60);

/// A license to build. By default: premium, for 100 users, for 90 days with a grace period of 30 more.
#[derive(Clone, Debug)]
pub struct LicenseBuilder {
    claims: BTreeMap<String, Value>,
}

impl Default for LicenseBuilder {
    fn default() -> Self {
        let now = Timestamp::now().as_second();
        let claims = json!({
            "jti": id(), "iss": KEY_ID, "iat": now - 60, "nbf": now - 60, "exp": now + 120 * DAY,
            "license_expires": now + 90 * DAY, "account_type": "salesforce", "account_id": id(), "version": 3,
            "trial": false, "feature_set": "premium", "features": { "user_limit": 100 },
        });
        Self { claims: serde_json::from_value(claims).unwrap_or_default() }
    }
}

impl LicenseBuilder {
    /// Sets a claim. Null removes it.
    #[must_use]
    pub fn claim(mut self, name: &str, value: impl Into<Value>) -> Self {
        match value.into() {
            Value::Null => self.claims.remove(name),
            value => self.claims.insert(name.to_owned(), value),
        };
        self
    }

    /// Sets the claim `jti`.
    #[must_use]
    pub fn id(self, id: &str) -> Self {
        self.claim("jti", id)
    }

    /// `premium`, `enterprise`, or empty for neither.
    #[must_use]
    pub fn feature_set(self, name: &str) -> Self {
        self.claim("feature_set", name)
    }

    /// Makes it a trial.
    #[must_use]
    pub fn trial(self) -> Self {
        self.claim("trial", true)
    }

    /// Expires after this time from now, with a grace period of one day.
    #[must_use]
    pub fn expires_in(self, term: Duration) -> Self {
        let end = Timestamp::now().as_second() + i64::try_from(term.as_secs()).unwrap_or(DAY);
        self.claim("license_expires", end).claim("exp", end + DAY)
    }

    /// In its grace period: expired yesterday, and the grace period ends tomorrow.
    #[must_use]
    pub fn in_grace(self) -> Self {
        let now = Timestamp::now().as_second();
        self.claim("license_expires", now - DAY).claim("exp", now + DAY)
    }

    /// Expired, and so is its grace period.
    #[must_use]
    pub fn expired(self) -> Self {
        let now = Timestamp::now().as_second();
        self.claim("license_expires", now - 2 * DAY).claim("exp", now - DAY)
    }

    /// The license as text.
    pub fn build(&self) -> SecretString {
        self.text().into()
    }

    pub(super) fn text(&self) -> String {
        let header = json!({ "alg": "EdDSA", "typ": "JWT", "kid": KEY_ID });
        let claims = json!(self.claims);
        let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        format!("{signed}.{}", mark(&signed))
    }
}

/// Takes the place of a signature.
fn mark(signed: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(format!("{KEY_ID} {signed}")))
}

#[derive(Deserialize)]
struct LicenseBody {
    #[serde(default)]
    license: String,
}

impl State {
    pub(super) fn licenses(&mut self, asked: &Asked, rest: &[&str]) -> Result<Reply, Reply> {
        let owner = self.authenticate(asked)?.is_owner();
        match (asked.method.as_str(), rest) {
            ("GET", []) if !owner => Ok(Reply::json(200, json!([]))),
            ("GET", []) => Ok(Reply::json(200, self.licenses.iter().map(show).collect())),
            ("POST", [] | ["refresh-entitlements"]) | ("DELETE", [_]) if !owner => Err(Reply::forbidden()),
            ("POST", []) => self.post_license(asked),
            ("POST", ["refresh-entitlements"]) => self.post_refresh(),
            ("DELETE", [id]) => self.delete_license(id),
            (_, [] | [_]) => Err(Reply::empty(405)),
            _ => Err(Reply::no_route()),
        }
    }

    fn post_license(&mut self, asked: &Asked) -> Result<Reply, Reply> {
        let body: LicenseBody = asked.json()?;
        if body.license.is_empty() {
            let detail = "Validation failed for tag \"required\" with value: \"\"";
            return Err(Reply::error(400, "Validation failed.").validation("license", detail));
        }
        let invalid = |detail: &str| Reply::error(400, "Invalid license").detail(detail);
        let claims = self.read(&body.license);
        let claims = claims.ok_or_else(|| invalid("license has multiple issues; contact support"))?;
        self.check(&claims).map_err(invalid)?;
        let deployments = claims.get("deployment_ids").and_then(Value::as_array);
        if deployments.is_some_and(|ids| !ids.contains(&json!(self.deployment_id))) {
            return Err(Reply::error(400, "License cannot be used on this deployment!"));
        }
        if self.licenses.iter().any(|license| license.jwt == body.license) {
            let detail = r#"pq: duplicate key value violates unique constraint "licenses_jwt_key""#;
            return Err(Reply::error(500, "Failed to install license").detail(detail));
        }
        self.install(&body.license);
        self.licenses.last().map(|license| Reply::json(201, show(license))).ok_or_else(Reply::no_route)
    }

    /// The claims of a license that verifies.
    fn read(&self, jwt: &str) -> Option<Value> {
        let (signed, signature) = jwt.rsplit_once('.')?;
        if signature != mark(signed) {
            return None;
        }
        let claims = URL_SAFE_NO_PAD.decode(signed.split('.').nth(1)?).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let now = self.now().as_second();
        let at = |name| claims.get(name).and_then(Value::as_i64);
        let over = at("exp").is_some_and(|exp| exp <= now) || at("iat").is_some_and(|iat| iat > now);
        (!over).then_some(claims)
    }

    fn check(&self, claims: &Value) -> Result<(), &'static str> {
        let at = |name| claims.get(name).and_then(Value::as_i64);
        let text = |name| claims.get(name).and_then(Value::as_str).unwrap_or_default();
        if at("version") != Some(3) {
            return Err("license must be version 3");
        }
        for (name, problem) in [
            ("iat", "license missing issued at"),
            ("nbf", "license missing not before"),
            ("exp", "license missing expiration"),
        ] {
            at(name).ok_or(problem)?;
        }
        let expires = at("license_expires").ok_or("license has invalid or missing license_expires claim")?;
        if expires - self.now().as_second() > FIVE_YEARS {
            return Err("license has invalid license_expires claim");
        }
        if text("account_type").is_empty() {
            return Err("license must contain valid account type");
        }
        if text("account_id").is_empty() {
            return Err("license must contain valid account id");
        }
        Ok(())
    }

    /// Stores a license without checks.
    pub(super) fn install(&mut self, jwt: &str) -> i32 {
        let claims = jwt.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
        let claims: Value =
            claims.and_then(|claims| serde_json::from_slice(&claims).ok()).unwrap_or_default();
        let jti = claims.get("jti").and_then(Value::as_str).and_then(|jti| Uuid::parse_str(jti).ok());
        let number = self.next_license;
        self.next_license += 1;
        self.refreshed_at = self.now();
        self.licenses.push(License {
            id: number,
            uuid: jti.unwrap_or_else(Uuid::new_v4).to_string(),
            jwt: jwt.to_owned(),
            claims,
            uploaded_at: self.now(),
        });
        number
    }

    fn post_refresh(&mut self) -> Result<Reply, Reply> {
        let left = REFRESH_PAUSE - self.now().duration_since(self.refreshed_at);
        if left.is_positive() {
            let seconds = left.as_secs() + 1;
            let message = format!(
                "Entitlements already recently refreshed, please wait {seconds} seconds to force a new refresh"
            );
            return Err(Reply::error(400, &message).header("Retry-After", &seconds.to_string()));
        }
        self.refreshed_at = self.now();
        Ok(Reply::error(200, "Entitlements updated"))
    }

    fn delete_license(&mut self, text: &str) -> Result<Reply, Reply> {
        let number: i32 = text.parse().map_err(|_| Reply::error(404, "License ID must be an integer"))?;
        let before = self.licenses.len();
        self.licenses.retain(|license| license.id != number);
        if self.licenses.len() == before {
            return Err(Reply::error(404, "Unknown license ID"));
        }
        self.refreshed_at = self.now();
        Ok(Reply::empty(200))
    }
}

fn show(license: &License) -> Value {
    json!({
        "id": license.id, "uuid": license.uuid, "uploaded_at": license.uploaded_at.to_string(),
        "claims": license.claims,
    })
}
