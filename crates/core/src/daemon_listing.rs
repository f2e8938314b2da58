//! What coderd says of an organization: the daemons that are alive there, and the jobs that wait for one.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::provisioner::keys::Blocker;

/// Tags of a job or a daemon. coderd stores every set with `scope` and `owner`.
pub type Tags = BTreeMap<String, String>;

/// What coderd said when it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonListing {
    /// The daemons that gave a sign of life in the last 90 seconds, whosever they are, by name.
    pub daemons: Vec<Daemon>,
    /// The jobs that wait; none: they could not be listed, though the daemons could.
    pub jobs: Option<Vec<Job>>,
    /// Why the jobs, or nothing at all any more, can be listed.
    pub blocker: Option<Blocker>,
    /// Whether that has lasted so long that what is here no longer counts.
    pub outdated: bool,
}

/// A daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Its name, which only one daemon of an organization has.
    pub name: String,
    /// UUID of the key that it came with.
    pub key: String,
    /// Its version.
    pub version: String,
    /// Its tags.
    pub tags: Tags,
    /// Whether it runs a job.
    pub busy: bool,
    /// Its last sign of life.
    pub last_seen: Option<Timestamp>,
}

/// A job that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The tags that a daemon needs.
    pub tags: Tags,
    /// Since when it waits.
    pub since: Option<Timestamp>,
}

/// Key, version and activity of each daemon, by name. Times are left out: a change of a time alone enqueues no pool.
pub type Part = BTreeMap<String, (String, String, bool)>;

impl DaemonListing {
    /// What it says of the daemons that came with these keys.
    pub fn part(&self, keys: &[String]) -> Part {
        let ours = self.daemons.iter().filter(|daemon| keys.contains(&daemon.key));
        let said = ours.map(|daemon| {
            let Daemon { name, key, version, busy, tags: _, last_seen: _ } = daemon;
            (name.clone(), (key.clone(), version.clone(), *busy))
        });
        said.collect()
    }
}
