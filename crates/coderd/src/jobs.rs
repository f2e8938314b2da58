//! Provisioner jobs: what daemons have to do.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::{call::Request, client::Client, decode, error::Error};

/// A job.
///
/// coderd's queue positions count the whole deployment and its list of available workers holds dead ones, so
/// neither is here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Job {
    /// Its uuid.
    pub id: String,
    /// How far it is.
    pub status: JobStatus,
    /// The tags that a daemon needs, with `scope` and `owner`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub tags: BTreeMap<String, String>,
    /// Since when it waits.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// What it is for.
    #[serde(default, rename = "type", deserialize_with = "decode::or_default")]
    pub what: String,
    /// The daemon that has it.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub worker_id: String,
}

/// How far a job is.
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
    /// The word that coderd uses.
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

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// Only those; empty: all.
    pub status: Vec<JobStatus>,
}

impl Client {
    /// The jobs of an organization, newest first, without a limit: one would hide those that wait the longest.
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
