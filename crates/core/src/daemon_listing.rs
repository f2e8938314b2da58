//! What coderd reports about an organization: its connected daemons and its pending jobs.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::provisioner::keys::Blocker;

/// Tags of a job or daemon, as coderd stores them: always with `scope` and `owner`.
pub type DaemonTags = BTreeMap<String, String>;

/// The result of the last polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonListing {
    /// The daemons of every owner that gave a sign of life in the last 90 seconds, by name.
    pub daemons: Vec<ListedDaemon>,
    /// The pending jobs. None: they could not be listed, though the daemons could.
    pub jobs: Option<Vec<PendingJob>>,
    /// Why the last poll failed, or its part about jobs. None: it succeeded.
    pub blocker: Option<Blocker>,
    /// Whether polls have failed for so long that the listing no longer counts.
    pub outdated: bool,
}

/// A daemon that is connected to coderd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedDaemon {
    /// Unique in the organization.
    pub name: String,
    /// UUID of the key that it connected with.
    pub key: String,
    /// Its version.
    pub version: String,
    /// Its tags.
    pub tags: DaemonTags,
    /// Whether it runs a job.
    pub busy: bool,
    /// Its last sign of life.
    pub last_seen: Option<Timestamp>,
}

/// A job that no daemon has taken yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingJob {
    /// The tags that a daemon needs.
    pub tags: DaemonTags,
    /// When it was created.
    pub since: Option<Timestamp>,
}

/// Key, version and activity of each daemon, by name. Times are left out: a change of a time alone enqueues no pool.
pub type PoolDaemons = BTreeMap<String, (String, String, bool)>;

impl DaemonListing {
    /// The daemons that connected with one of these keys.
    pub fn of_keys(&self, keys: &[String]) -> PoolDaemons {
        let ours = self.daemons.iter().filter(|daemon| keys.contains(&daemon.key));
        ours.map(|daemon| {
            let ListedDaemon { name, key, version, busy, tags: _, last_seen: _ } = daemon;
            (name.clone(), (key.clone(), version.clone(), *busy))
        })
        .collect()
    }
}
