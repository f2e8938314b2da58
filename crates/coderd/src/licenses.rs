//! The licenses that a deployment holds. coderd never gives one back: they are known by their claims.

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    call::{Request, Surface},
    client::Client,
    decode,
    error::{Error, ErrorKind},
    license::Claims,
};

/// A license that is installed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct License {
    /// By which it is deleted.
    pub id: i32,
    /// The `jti` of the license if that is a uuid, else random.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub uuid: String,
    /// When it was added.
    #[serde(default, deserialize_with = "decode::time")]
    pub uploaded_at: Option<Timestamp>,
    /// What it says; coderd lists expired and unverifiable ones as well.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub claims: Claims,
}

/// What came of a refresh of entitlements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refreshed {
    /// They were computed anew.
    Now,
    /// They are less than a minute old, which is as good.
    Lately,
}

impl Client {
    /// All licenses. Without the right to see them coderd gives an empty list.
    pub async fn licenses(&self) -> Result<Vec<License>, Error> {
        self.list(Request::get("list licenses").at("licenses")).await
    }

    /// Adds a license. `Duplicate`: this very one is installed; `InvalidLicense`: it is not accepted.
    pub async fn add_license(&self, license: &SecretString) -> Result<License, Error> {
        let body = json!({ "license": license.expose_secret().trim() });
        let request = Request::post("add license").at("licenses").json(&body).hiding(license);
        self.fetch(request.on(Surface::AddsLicense)).await
    }

    /// Deletes a license by its number.
    pub async fn delete_license(&self, id: i32) -> Result<(), Error> {
        self.perform(Request::delete("delete license").at("licenses").part(&id.to_string())).await
    }

    /// Has the server compute its entitlements anew. It does so by itself after a license was added.
    pub async fn refresh_entitlements(&self) -> Result<Refreshed, Error> {
        let request = Request::post("refresh entitlements").at("licenses/refresh-entitlements");
        match self.perform(request).await {
            Ok(()) => Ok(Refreshed::Now),
            // 400, with a Retry-After that is no rate limit.
            Err(Error { kind: ErrorKind::Invalid { .. }, .. }) => Ok(Refreshed::Lately),
            Err(error) => Err(error),
        }
    }
}
