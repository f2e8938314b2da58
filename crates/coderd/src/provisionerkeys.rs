//! Provisioner keys, with which daemons join an organization. coderd shows the material once, lower-cases
//! names, takes up to 64 bytes of them, and has no update.

use std::collections::BTreeMap;

use jiff::Timestamp;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;

use crate::{
    call::{Request, Surface},
    client::Client,
    daemons::Daemon,
    decode,
    error::Error,
};

/// A key, without its material.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProvisionerKey {
    /// Its uuid.
    pub id: String,
    /// Its name, in lower case.
    pub name: String,
    /// The uuid of its organization.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub organization: String,
    /// The tags of the daemons that use it, as they were given.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When it was made.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
}

/// A key and the daemons that were seen with it in the last three minutes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct KeyDaemons {
    /// The key; reserved ones are among them.
    pub key: ProvisionerKey,
    /// Without status and jobs.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub daemons: Vec<Daemon>,
}

#[derive(Deserialize)]
struct Made {
    #[serde(deserialize_with = "decode::secret")]
    key: SecretString,
}

impl Client {
    /// Makes a key and gives its material. `Duplicate`: the name is taken; `Invalid`: too long or reserved.
    pub async fn create_provisioner_key(
        &self,
        organization: &str,
        name: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SecretString, Error> {
        let request = Request::post("create provisionerkey").at("organizations").part(organization);
        let request = request.at("provisionerkeys").json(&json!({ "name": name, "tags": tags }));
        let made: Made = self.fetch(request.on(Surface::HidesForbidden)).await?;
        Ok(made.key)
    }

    /// All keys of an organization, but for the reserved ones.
    pub async fn provisioner_keys(&self, organization: &str) -> Result<Vec<ProvisionerKey>, Error> {
        let request = Request::get("list provisionerkeys").at("organizations").part(organization);
        self.list(request.at("provisionerkeys")).await
    }

    /// All keys of an organization with the daemons that use them.
    pub async fn provisioner_key_daemons(&self, organization: &str) -> Result<Vec<KeyDaemons>, Error> {
        let request = Request::get("list provisionerkey daemons").at("organizations").part(organization);
        self.list(request.at("provisionerkeys/daemons")).await
    }

    /// What a key is, proven by its material. Needs no session token. `Unauthenticated`: coderd does not know it.
    pub async fn provisioner_key_details(&self, material: &SecretString) -> Result<ProvisionerKey, Error> {
        // The last part of the path is not read; the key itself would end up in access logs.
        let request = Request::get("get provisionerkey details").at("provisionerkeys/details");
        self.fetch(request.with_key(material)).await
    }

    /// Deletes a key by its name, and ends the sessions of its daemons.
    pub async fn delete_provisioner_key(&self, organization: &str, name: &str) -> Result<(), Error> {
        let request = Request::delete("delete provisionerkey").at("organizations").part(organization);
        self.perform(request.at("provisionerkeys").part(name)).await
    }
}
