//! Daemons that are connected: what keeps a key in use, and what its deletion cuts.
//!
//! There is no wire: a test plays the daemon. What coderd sees of it is the same: a row that is refreshed with every
//! heartbeat, that outlives the connection, and that goes with its key.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};

use super::{
    CoderSim, Shared,
    daemons::normal_tags,
    state::{Daemon, State, id},
};

/// How often a daemon that is connected is noted as seen.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(60);

/// A key that was made, or that went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// When, by the clock of this host.
    pub at: Timestamp,
    /// Its uuid.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether it was made.
    pub made: bool,
}

/// A daemon that is connected. It leaves when dropped.
pub struct Session {
    shared: Arc<Shared>,
    daemon: String,
    /// The uuid of the key it came with.
    pub key_id: String,
}

impl CoderSim {
    /// Connects a daemon of that name as coderd would: with a key that it knows, while the license covers it.
    pub fn connect(&self, material: &SecretString, name: &str) -> Option<Session> {
        let mut state = self.shared.state.lock();
        if !state.entitlements().is_enabled("external_provisioner_daemons") {
            return None;
        }
        let key = state.keys.iter().find(|key| key.material == material.expose_secret())?.clone();
        let (now, version) = (state.now(), state.version.clone());
        // One row for one name: a daemon that comes back takes up its own.
        state.daemons.retain(|other| (&other.organization, &*other.name) != (&key.organization, name));
        let daemon = Daemon {
            id: id(),
            organization: key.organization,
            key_id: key.id.clone(),
            name: name.to_owned(),
            version,
            tags: normal_tags(&key.tags),
            busy: false,
            connected: true,
            created_at: now,
            last_seen_at: now,
        };
        let session = Session { shared: self.shared.clone(), daemon: daemon.id.clone(), key_id: key.id };
        state.daemons.push(daemon);
        Some(session)
    }

    /// Every key that was made or went so far, reserved ones left out.
    pub fn key_changes(&self) -> Vec<KeyChange> {
        self.shared.state.lock().key_changes.clone()
    }
}

impl Session {
    /// Notes that it has a job, or has none any more.
    pub fn busy(&self, busy: bool) {
        self.with(|daemon| daemon.busy = busy);
    }

    /// Whether coderd has ended it, as it does when the key is deleted.
    pub fn is_cut(&self) -> bool {
        self.with(|_| ()).is_none()
    }

    fn with<T>(&self, change: impl FnOnce(&mut Daemon) -> T) -> Option<T> {
        let mut state = self.shared.state.lock();
        state.daemons.iter_mut().find(|daemon| daemon.id == self.daemon).map(change)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.with(|daemon| (daemon.connected, daemon.busy) = (false, false));
    }
}

impl State {
    /// Notes the heartbeats of all that are connected.
    pub(super) fn beat(&mut self) {
        let now = self.now();
        for daemon in self.daemons.iter_mut().filter(|daemon| daemon.connected) {
            while daemon.last_seen_at + HEARTBEAT <= now {
                daemon.last_seen_at += HEARTBEAT;
            }
        }
    }

    /// Notes that a key was made, or went.
    pub(super) fn key_changed(&mut self, id: &str, name: &str, made: bool) {
        let at = Timestamp::now();
        self.key_changes.push(KeyChange { at, id: id.to_owned(), name: name.to_owned(), made });
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::codersim::Mode;

    async fn sim() -> (CoderSim, SecretString) {
        let sim = CoderSim::start(Mode::Licensed).await.unwrap();
        let material = sim.add_key("pool", &BTreeMap::new());
        (sim, material)
    }

    fn seen(sim: &CoderSim) -> Timestamp {
        let mut state = sim.shared.state.lock();
        state.beat();
        state.daemons[0].last_seen_at
    }

    #[tokio::test]
    async fn deleting_the_key_cuts_its_sessions_and_no_others() {
        let (sim, material) = sim().await;
        let other = sim.add_key("other", &BTreeMap::new());
        let (one, two) = (sim.connect(&material, "one").unwrap(), sim.connect(&other, "two").unwrap());
        one.busy(true);
        sim.delete_key("pool");
        assert!(one.is_cut() && !two.is_cut());
        assert!(sim.connect(&material, "one").is_none(), "the key is gone");
        let changes: Vec<_> = sim.key_changes().into_iter().map(|c| (c.name, c.made)).collect();
        assert_eq!(changes, [("pool".into(), true), ("other".into(), true), ("pool".into(), false)]);
    }

    #[tokio::test]
    async fn a_session_beats_while_it_lasts_and_its_row_outlives_it() {
        let (sim, material) = sim().await;
        let session = sim.connect(&material, "one").unwrap();
        let came = seen(&sim);
        sim.advance(Duration::from_secs(61));
        assert_eq!(seen(&sim).duration_since(came), HEARTBEAT);
        drop(session);
        sim.advance(Duration::from_mins(10));
        assert_eq!(seen(&sim).duration_since(came), HEARTBEAT, "seen no more");
    }

    #[tokio::test]
    async fn a_daemon_that_comes_back_takes_up_its_row() {
        let (sim, material) = sim().await;
        let first = sim.connect(&material, "one").unwrap();
        let second = sim.connect(&material, "one").unwrap();
        assert!(first.is_cut() && !second.is_cut());
    }
}
