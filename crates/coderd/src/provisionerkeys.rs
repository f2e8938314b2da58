//! Provisioner keys, with which daemons join an organization.
//!
//! coderd shows the material of a key once, at its creation. It converts names to lower case, limits them to 64
//! bytes, and has no route to update a key: a change needs another key.

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
    /// UUID of the key.
    pub id: String,
    /// Name in lower case, unique in the organization.
    pub name: String,
    /// UUID of the organization.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub organization: String,
    /// Tags of the daemons that use the key, as given at its creation.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When the key was created.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
}

/// A key and the daemons with a heartbeat in the last three minutes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct KeyDaemons {
    /// The key. Reserved keys of coderd are included.
    pub key: ProvisionerKey,
    /// The daemons, without status and jobs.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub daemons: Vec<Daemon>,
}

#[derive(Deserialize)]
struct CreatedKey {
    #[serde(deserialize_with = "decode::secret")]
    key: SecretString,
}

impl Client {
    /// Creates a key and returns its material. `Duplicate`: the name is taken. `Invalid`: the name is too long or
    /// reserved.
    pub async fn create_provisioner_key(
        &self,
        organization: &str,
        name: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SecretString, Error> {
        let request = Request::post("create provisionerkey").at("organizations").part(organization);
        let request = request.at("provisionerkeys").json(&json!({ "name": name, "tags": tags }));
        let created: CreatedKey = self.fetch(request.on(Surface::HidesForbidden)).await?;
        Ok(created.key)
    }

    /// Lists the keys of an organization without the reserved ones. Keys that the credential may not read are left
    /// out silently.
    pub async fn provisioner_keys(&self, organization: &str) -> Result<Vec<ProvisionerKey>, Error> {
        let request = Request::get("list provisionerkeys").at("organizations").part(organization);
        self.list(request.at("provisionerkeys")).await
    }

    /// Lists the keys of an organization with the daemons that use them.
    pub async fn provisioner_key_daemons(&self, organization: &str) -> Result<Vec<KeyDaemons>, Error> {
        let request = Request::get("list provisionerkey daemons").at("organizations").part(organization);
        self.list(request.at("provisionerkeys/daemons")).await
    }

    /// Asks coderd which key the material belongs to. Needs no session token. `Unauthenticated`: coderd does not know
    /// the material.
    pub async fn provisioner_key_details(&self, material: &SecretString) -> Result<ProvisionerKey, Error> {
        // coderd ignores the last segment, where the key is expected, and reads the header. In the path the key would
        // end up in access logs.
        let request = Request::get("get provisionerkey details").at("provisionerkeys/details");
        self.fetch(request.with_key(material)).await
    }

    /// Deletes a key by its name and ends the sessions of its daemons.
    pub async fn delete_provisioner_key(&self, organization: &str, name: &str) -> Result<(), Error> {
        let request = Request::delete("delete provisionerkey").at("organizations").part(organization);
        self.perform(request.at("provisionerkeys").part(name)).await
    }
}
