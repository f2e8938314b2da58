//! Provisioner daemons, as coderd lists them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::{call::Request, client::Client, decode, error::Error};

/// A daemon. A daemon that reconnects with the same name keeps its id.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Daemon {
    /// UUID of the daemon.
    pub id: String,
    /// Unique in the organization. The pods of a pool use the name of the pod.
    pub name: String,
    /// UUID of the provisioner key that the daemon connected with.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub key_id: String,
    /// Name of that key. Built-in daemons have a reserved name here.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub key_name: String,
    /// Version of the daemon, with a leading `v`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub version: String,
    /// Tags, including `scope` and `owner`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When the daemon first connected.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// Last heartbeat; coderd records one a minute. More reliable than `status`.
    #[serde(default, deserialize_with = "decode::time")]
    pub last_seen_at: Option<Timestamp>,
    /// `None` where coderd does not report it, as in the list of keys with their daemons.
    #[serde(default)]
    pub status: Option<DaemonStatus>,
}

/// What a daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonStatus {
    /// No heartbeat for 90 seconds.
    Offline,
    /// Connected, without a job.
    Idle,
    /// Running a job. A daemon that died with an unfinished job stays busy.
    Busy,
    /// A status that this release does not know.
    Other,
}

impl<'de> Deserialize<'de> for DaemonStatus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(from)?.as_str() {
            "offline" => Self::Offline,
            "idle" => Self::Idle,
            "busy" => Self::Busy,
            _ => Self::Other,
        })
    }
}

/// Filter of [`Client::provisioner_daemons`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Daemons {
    /// Whether to include daemons without a heartbeat for 90 seconds, for up to seven days.
    pub offline: bool,
}

impl Client {
    /// Lists the daemons of an organization, newest first, without a limit.
    pub async fn provisioner_daemons(
        &self,
        organization: &str,
        which: Daemons,
    ) -> Result<Vec<Daemon>, Error> {
        let Daemons { offline } = which;
        let request = Request::get("list provisionerdaemons").at("organizations").part(organization);
        let mut request = request.at("provisionerdaemons").query("limit", "0");
        if offline {
            request = request.query("offline", "true");
        }
        self.list(request).await
    }
}
