//! Provisioner daemons, as coderd sees them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::{call::Request, client::Client, decode, error::Error};

/// A daemon. One that reconnects under its name stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Daemon {
    /// Its uuid.
    pub id: String,
    /// Its name; of a pod of ours, the pod's.
    pub name: String,
    /// The key it came with.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub key_id: String,
    /// That key's name.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub key_name: String,
    /// Its version.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub version: String,
    /// Its tags, with `scope` and `owner`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub tags: BTreeMap<String, String>,
    /// When it first came.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// Its last sign of life, one a minute. Tells liveness better than the status does.
    #[serde(default, deserialize_with = "decode::time")]
    pub last_seen_at: Option<Timestamp>,
    /// What it does. None where coderd does not tell.
    #[serde(default)]
    pub status: Option<DaemonStatus>,
}

/// What a daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonStatus {
    /// Not seen for a while.
    Offline,
    /// Waiting for work.
    Idle,
    /// At work; or gone with a job that nobody has finished yet.
    Busy,
    /// A word that we do not know.
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

/// Which daemons to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Daemons {
    /// Also those not seen for 90 s, for up to seven days.
    pub offline: bool,
}

impl Client {
    /// The daemons of an organization, newest first, without a limit.
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
