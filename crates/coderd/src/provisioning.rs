//! Provisioner keys, the daemons that connect with them, and the jobs that daemons run. All belong to an organization.
//!
//! coderd shows the material of a key once, at its creation. It converts names to lower case, limits them to 64
//! bytes, and has no route to update a key: a change needs another key.

use std::collections::BTreeMap;

use jiff::Timestamp;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;

use crate::{
    answer,
    client::Client,
    error::Result,
    request::{Auth, Request, Surface},
};

/// A key, without its material.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListedProvisionerKey {
    /// UUID of the key.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Name in lower case, unique in the organization.
    #[serde(deserialize_with = "answer::word")]
    pub name: String,
    /// UUID of the organization.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub organization: String,
    /// Tags of the daemons that use the key, as given at its creation.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When the key was created.
    #[serde(default, deserialize_with = "answer::time")]
    pub created_at: Option<Timestamp>,
}

/// A key and the daemons with a heartbeat in the last three minutes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct KeyDaemons {
    /// The key. Reserved keys of coderd are included.
    pub key: ListedProvisionerKey,
    /// The daemons, without status and jobs.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub daemons: Vec<Daemon>,
}

/// A daemon. A daemon that reconnects with the same name keeps its id.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Daemon {
    /// UUID of the daemon.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Unique in the organization. The pods of a pool use the name of the pod.
    #[serde(deserialize_with = "answer::word")]
    pub name: String,
    /// UUID of the provisioner key that the daemon connected with.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub key_id: String,
    /// Name of that key. Built-in daemons have a reserved name here.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub key_name: String,
    /// Version of the daemon, with a leading `v`.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub version: String,
    /// Tags, including `scope` and `owner`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub tags: BTreeMap<String, String>,
    /// Last heartbeat; coderd records one a minute. More reliable than `status`.
    #[serde(default, deserialize_with = "answer::time")]
    pub last_seen_at: Option<Timestamp>,
    /// `None` where coderd does not report it, as in the list of keys with their daemons.
    #[serde(default)]
    pub status: Option<ListedDaemonStatus>,
}

/// What a daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListedDaemonStatus {
    /// No heartbeat for 90 seconds.
    Offline,
    /// Connected, without a job.
    Idle,
    /// Running a job. A daemon that died with an unfinished job stays busy.
    Busy,
    /// A status that this release does not know.
    #[serde(other)]
    Other,
}

/// Which daemons [`Client::provisioner_daemons`] lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonFilter {
    /// Whether to include daemons without a heartbeat for 90 seconds, for up to seven days.
    pub offline: bool,
}

/// A provisioner job.
///
/// The queue position and the available workers that coderd reports are left out: the position counts the whole
/// deployment, and the workers include dead ones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Job {
    /// UUID of the job.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Progress of the job.
    pub status: JobStatus,
    /// Tags that a daemon must have, including `scope` and `owner`.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When the job was queued.
    #[serde(default, deserialize_with = "answer::time")]
    pub created_at: Option<Timestamp>,
}

/// Progress of a job, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStatus {
    /// Waits for a daemon.
    Pending,
    /// Runs, has ended, or has a status that this release does not know.
    #[serde(other)]
    Other,
}

/// Which jobs [`Client::provisioner_jobs`] lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Whether to leave out jobs that a daemon has taken.
    pub pending_only: bool,
}

#[derive(Deserialize)]
struct CreatedKey {
    #[serde(deserialize_with = "answer::secret")]
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
    ) -> Result<SecretString> {
        let path = ["organizations", organization, "provisionerkeys"];
        let request = Request::post("create provisionerkey", &path, &json!({ "name": name, "tags": tags }));
        let created: CreatedKey = self.fetch(request.on(Surface::HidesForbidden)).await?;
        Ok(created.key)
    }

    /// Lists the keys of an organization without the reserved ones. Keys that the credential may not read are left
    /// out silently.
    pub async fn provisioner_keys(&self, organization: &str) -> Result<Vec<ListedProvisionerKey>> {
        let path = ["organizations", organization, "provisionerkeys"];
        self.list(Request::get("list provisionerkeys", &path)).await
    }

    /// Lists the keys of an organization with the daemons that use them.
    pub async fn provisioner_key_daemons(&self, organization: &str) -> Result<Vec<KeyDaemons>> {
        let path = ["organizations", organization, "provisionerkeys", "daemons"];
        self.list(Request::get("list provisionerkey daemons", &path)).await
    }

    /// Asks coderd which key the material belongs to. Needs no session token. `Unauthenticated`: coderd does not know
    /// the material.
    pub async fn provisioner_key_details(&self, material: &SecretString) -> Result<ListedProvisionerKey> {
        // coderd ignores the last segment, where the key is expected, and reads the header. In the path the key would
        // end up in access logs.
        let request = Request::get("get provisionerkey details", &["provisionerkeys", "details"]);
        self.fetch(request.by(Auth::ProvisionerKey(material.clone()))).await
    }

    /// Deletes a key by its name and ends the sessions of its daemons.
    pub async fn delete_provisioner_key(&self, organization: &str, name: &str) -> Result<()> {
        let path = ["organizations", organization, "provisionerkeys", name];
        self.perform(Request::delete("delete provisionerkey", &path)).await
    }

    /// Lists the daemons of an organization, newest first, without a limit.
    pub async fn provisioner_daemons(&self, organization: &str, which: DaemonFilter) -> Result<Vec<Daemon>> {
        let path = ["organizations", organization, "provisionerdaemons"];
        let request = Request::get("list provisionerdaemons", &path).query("limit", "0");
        let request = if which.offline { request.query("offline", "true") } else { request };
        self.list(request).await
    }

    /// Lists the jobs of an organization, newest first. There is no limit, because a limit would hide the jobs that
    /// wait longest.
    pub async fn provisioner_jobs(&self, organization: &str, which: JobFilter) -> Result<Vec<Job>> {
        let path = ["organizations", organization, "provisionerjobs"];
        let request = Request::get("list provisionerjobs", &path).query("limit", "0");
        let request = if which.pending_only { request.query("status", "pending") } else { request };
        self.list(request).await
    }
}
