//! The daemons of a pool on its status: written when anything but a time has changed.

use coder_k8s_api::{DaemonStatus, DaemonsStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Health;
use crate::{daemon_listing::Daemon, version};

/// The most daemons that are listed.
const LISTED: usize = 20;

impl Health {
    /// The status, given what it was. coderd notes a sign of life a minute for each daemon, which alone is no news.
    pub fn report(&self, before: Option<&DaemonsStatus>, now: Timestamp) -> Option<DaemonsStatus> {
        let Some(daemons) = &self.daemons else { return before.cloned() };
        let next = self.status(daemons, now);
        match before {
            None => Some(next).filter(|next| next.connected > 0),
            Some(before) if timeless(before) == timeless(&next) => Some(before.clone()),
            Some(_) => Some(next),
        }
    }

    fn status(&self, daemons: &[Daemon], now: Timestamp) -> DaemonsStatus {
        let count = |is: &dyn Fn(&Daemon) -> bool| {
            i32::try_from(daemons.iter().filter(|daemon| is(daemon)).count()).unwrap_or(i32::MAX)
        };
        let mut sorted: Vec<_> = daemons.iter().collect();
        sorted.sort_by_key(|daemon| &daemon.name);
        DaemonsStatus {
            connected: count(&|_| true),
            busy: count(&|daemon| daemon.busy),
            idle: count(&|daemon| !daemon.busy),
            outdated: count(&|daemon| {
                self.server.as_deref().is_some_and(|server| is_other(&daemon.version, server))
            }),
            as_of: Some(whole_seconds(now)),
            list: sorted.into_iter().take(LISTED).map(shown).collect(),
        }
    }
}

fn shown(daemon: &Daemon) -> DaemonStatus {
    DaemonStatus {
        name: daemon.name.clone(),
        version: Some(daemon.version.clone()).filter(|version| !version.is_empty()),
        status: Some(if daemon.busy { "Busy" } else { "Idle" }.to_owned()),
        last_seen: daemon.last_seen.map(whole_seconds),
    }
}

/// Whether a daemon is of another release than coderd. Patches and builds of one release go together; versions that
/// cannot be read are compared as they are.
fn is_other(daemon: &str, server: &str) -> bool {
    match (version::parse(daemon), version::parse(server)) {
        (Some(daemon), Some(server)) => daemon.release() != server.release(),
        _ => !daemon.is_empty() && daemon != server,
    }
}

fn timeless(status: &DaemonsStatus) -> DaemonsStatus {
    let mut status = DaemonsStatus { as_of: None, ..status.clone() };
    status.list.iter_mut().for_each(|daemon| daemon.last_seen = None);
    status
}

fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
