//! Provisioner jobs: the work that daemons do.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::{call::Request, client::Client, decode, error::Error};

/// A provisioner job.
///
/// The queue position and the available workers that coderd reports are left out: the position counts the whole
/// deployment, and the workers include dead ones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Job {
    /// UUID of the job.
    pub id: String,
    /// Progress of the job.
    pub status: JobStatus,
    /// Tags that a daemon must have, including `scope` and `owner`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When the job was queued.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// Type of the job, such as `workspace_build`.
    #[serde(default, rename = "type", deserialize_with = "decode::or_default")]
    pub what: String,
    /// UUID of the daemon that runs the job. Empty while it is pending.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub worker_id: String,
}

/// Progress of a job. `Unknown` is also a status that this release does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum JobStatus {
    Pending,
    Running,
    Succeeded,
    Canceling,
    Canceled,
    Failed,
    Unknown,
}

impl JobStatus {
    /// The word as coderd writes it, in answers and in queries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Canceling => "canceling",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl<'de> Deserialize<'de> for JobStatus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = String::deserialize(from)?;
        let all =
            [Self::Pending, Self::Running, Self::Succeeded, Self::Canceling, Self::Canceled, Self::Failed];
        Ok(all.into_iter().find(|status| status.as_str() == word).unwrap_or(Self::Unknown))
    }
}

/// Filter of [`Client::provisioner_jobs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// Only jobs with one of these statuses. Empty: all.
    pub status: Vec<JobStatus>,
}

impl Client {
    /// Lists the jobs of an organization, newest first. There is no limit, because a limit would hide the jobs that
    /// wait longest.
    pub async fn provisioner_jobs(&self, organization: &str, which: &Jobs) -> Result<Vec<Job>, Error> {
        let Jobs { status } = which;
        let request = Request::get("list provisionerjobs").at("organizations").part(organization);
        let mut request = request.at("provisionerjobs").query("limit", "0");
        if !status.is_empty() {
            let words: Vec<_> = status.iter().map(|status| status.as_str()).collect();
            request = request.query("status", words.join(","));
        }
        self.list(request).await
    }
}
