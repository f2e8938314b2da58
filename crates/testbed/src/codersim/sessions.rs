//! Daemons that are connected: what keeps a key in use, and what its deletion cuts.
//!
//! A daemon connects over the wire, as a real one does, or is played by a test without any. What coderd sees of both
//! is the same: a row that is refreshed with every heartbeat, that outlives the connection, and that goes with its
//! key. Daemons of one name share a row.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    CoderSim, Shared,
    daemons::normal_tags,
    state::{Daemon, State, id},
};

/// Interval of the heartbeats of a connected daemon.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(60);

/// Creation or deletion of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Time by the clock of this host.
    pub at: Timestamp,
    /// UUID of the key.
    pub id: String,
    /// Name of the key.
    pub name: String,
    /// True for a creation, false for a deletion.
    pub made: bool,
}

/// A past or present session of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSeen {
    /// Name of the daemon.
    pub name: String,
    /// UUID of the key of the daemon.
    pub key_id: String,
    /// Start by the clock of this host.
    pub began: Timestamp,
    /// End by the clock of this host, and its cause. `None` while connected.
    pub ended: Option<(Timestamp, SessionEnd)>,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The daemon disconnected, or its connection broke.
    Left,
    /// coderd ended the session.
    Cut,
}

/// A connected daemon. Dropping it disconnects.
pub struct Session {
    shared: Arc<Shared>,
    admitted: Admitted,
    /// UUID of the key of the daemon.
    pub key_id: String,
}

/// The connection as its daemon sees it.
#[derive(Clone)]
pub(super) struct Admitted {
    line: String,
    key_id: String,
    cut: CancellationToken,
    busy: watch::Receiver<bool>,
}

/// The connection as coderd sees it.
pub(super) struct Line {
    id: String,
    /// UUID of the row of the daemon.
    daemon: String,
    seen: SessionSeen,
    busy: watch::Sender<bool>,
    /// Whether the session ends after the present job, because its key was deleted.
    last_job: bool,
    /// Notifies the connection of its end when dropped.
    cut: Option<DropGuard>,
}

/// What a connecting daemon and its credential say.
pub(super) struct Newcomer {
    pub(super) organization: String,
    pub(super) key_id: String,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) api_version: String,
}

impl CoderSim {
    /// Connects a daemon, without a websocket. `None` if coderd would refuse it: unknown key, or no license.
    pub fn connect(&self, material: &SecretString, name: &str) -> Option<Session> {
        let mut state = self.shared.state.lock();
        if !state.entitlements().is_enabled("external_provisioner_daemons") {
            return None;
        }
        let key = state.keys.iter().find(|key| key.material == material.expose_secret())?.clone();
        let newcomer = Newcomer {
            organization: key.organization,
            key_id: key.id,
            tags: key.tags,
            name: name.to_owned(),
            version: state.version.clone(),
            api_version: state.provisioner_api_text(),
        };
        let admitted = state.admit(newcomer);
        Some(Session::new(self.shared.clone(), admitted))
    }

    /// All sessions so far, by their start.
    pub fn sessions(&self) -> Vec<SessionSeen> {
        self.shared.state.lock().lines.iter().map(|line| line.seen.clone()).collect()
    }

    /// Gives the connected daemon of this name a job, or ends its job. Returns whether there is such a daemon.
    ///
    /// A real daemon is not told. When it asks to leave, it has to wait until the job ends, so that it stays as long
    /// as one that works.
    pub fn set_busy(&self, name: &str, busy: bool) -> bool {
        let mut state = self.shared.state.lock();
        let found = state.lines.iter().find(|line| line.is_open() && line.seen.name == name);
        let Some(line) = found.map(|line| line.id.clone()) else { return false };
        state.work(&line, busy);
        true
    }

    /// All creations and deletions of keys so far, without reserved keys.
    pub fn key_changes(&self) -> Vec<KeyChange> {
        self.shared.state.lock().key_changes.clone()
    }
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, admitted: Admitted) -> Self {
        let key_id = admitted.key_id.clone();
        Self { shared, admitted, key_id }
    }

    /// Sets whether the daemon has a job.
    pub fn busy(&self, busy: bool) {
        self.shared.state.lock().work(&self.admitted.line, busy);
    }

    /// Whether coderd has ended the session, as it does when the key is deleted and no job runs.
    pub fn is_cut(&self) -> bool {
        self.admitted.cut.is_cancelled()
    }

    /// Waits until coderd ends the session.
    pub(super) async fn cut(&self) {
        self.admitted.cut.cancelled().await;
    }

    /// Waits until the daemon has no job.
    pub(super) async fn idle(&self) {
        let _ = self.admitted.busy.clone().wait_for(|busy| !busy).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.state.lock().end(&self.admitted.line, SessionEnd::Left);
    }
}

impl Line {
    fn is_open(&self) -> bool {
        self.seen.ended.is_none()
    }
}

impl State {
    /// Admits a daemon: creates its row, or reuses the row of the same name.
    pub(super) fn admit(&mut self, newcomer: Newcomer) -> Admitted {
        let Newcomer { organization, key_id, tags, name, version, api_version } = newcomer;
        let (now, tags) = (self.now(), normal_tags(&tags));
        let known = self.daemons.iter_mut().find(|row| row.organization == organization && row.name == name);
        let daemon = if let Some(row) = known {
            (row.version, row.api_version, row.tags) = (version, api_version, tags);
            (row.last_seen_at, row.busy) = (now, false);
            row.key_id.clone_from(&key_id);
            row.id.clone()
        } else {
            let row = Daemon {
                id: id(),
                organization,
                key_id: key_id.clone(),
                name: name.clone(),
                version,
                api_version,
                tags,
                busy: false,
                created_at: now,
                last_seen_at: now,
            };
            self.daemons.push_mut(row).id.clone()
        };
        let (line, cut, (busy, is_busy)) = (id(), CancellationToken::new(), watch::channel(false));
        let seen = SessionSeen { name, key_id: key_id.clone(), began: Timestamp::now(), ended: None };
        let guard = Some(cut.clone().drop_guard());
        self.lines.push(Line { id: line.clone(), daemon, seen, busy, last_job: false, cut: guard });
        Admitted { line, key_id, cut, busy: is_busy }
    }

    /// Sets whether a daemon has a job.
    fn work(&mut self, line: &str, busy: bool) {
        let Some(line) = self.lines.iter_mut().find(|open| open.id == line && open.is_open()) else { return };
        line.busy.send_replace(busy);
        if let Some(row) = self.daemons.iter_mut().find(|row| row.id == line.daemon) {
            row.busy = busy;
        }
        if line.last_job && !busy {
            let line = line.id.clone();
            self.end(&line, SessionEnd::Cut);
        }
    }

    /// Ends a connection. Does nothing the second time.
    fn end(&mut self, line: &str, how: SessionEnd) {
        let Some(line) = self.lines.iter_mut().find(|open| open.id == line && open.is_open()) else { return };
        line.seen.ended = Some((Timestamp::now(), how));
        match how {
            SessionEnd::Cut => line.cut = None,
            // The daemon itself disconnected, so it is not notified.
            SessionEnd::Left => drop(line.cut.take().map(DropGuard::disarm)),
        }
        let daemon = line.daemon.clone();
        if let Some(row) = self.daemons.iter_mut().find(|row| row.id == daemon) {
            row.busy = false;
        }
    }

    /// Ends the connections of a deleted key. A daemon with a job may finish it.
    pub(super) fn cut_sessions_of(&mut self, key_id: &str) {
        let mut idle = Vec::new();
        for line in self.lines.iter_mut().filter(|line| line.is_open() && line.seen.key_id == key_id) {
            line.last_job = true;
            if !*line.busy.borrow() {
                idle.push(line.id.clone());
            }
        }
        for line in idle {
            self.end(&line, SessionEnd::Cut);
        }
    }

    /// Records a heartbeat of every connected daemon.
    pub(super) fn beat(&mut self) {
        let now = self.now();
        for line in self.lines.iter().filter(|line| line.is_open()) {
            let Some(row) = self.daemons.iter_mut().find(|row| row.id == line.daemon) else { continue };
            while row.last_seen_at + HEARTBEAT <= now {
                row.last_seen_at += HEARTBEAT;
            }
        }
    }

    /// Records the creation or deletion of a key.
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
        let row = sim.shared.state.lock().daemons[0].id.clone();
        let second = sim.connect(&material, "one").unwrap();
        let rows: Vec<_> = sim.shared.state.lock().daemons.iter().map(|daemon| daemon.id.clone()).collect();
        assert_eq!(rows, [row], "both have the same");
        assert!(!first.is_cut() && !second.is_cut(), "and nobody is sent away");
    }

    #[tokio::test]
    async fn a_job_is_finished_before_its_session_is_cut() {
        let (sim, material) = sim().await;
        let session = sim.connect(&material, "one").unwrap();
        assert!(sim.set_busy("one", true) && !sim.set_busy("another", true));
        sim.delete_key("pool");
        assert!(!session.is_cut());
        assert!(sim.set_busy("one", false));
        assert!(session.is_cut());
    }

    #[tokio::test]
    async fn it_is_known_how_each_session_ended() {
        let (sim, material) = sim().await;
        let [left, cut, lasting] = ["left", "cut", "lasting"];
        drop(sim.connect(&material, left));
        let session = sim.connect(&material, cut).unwrap();
        sim.delete_key("pool");
        drop(session);
        let other = sim.add_key("other", &BTreeMap::new());
        let _session = sim.connect(&other, lasting).unwrap();
        let ends: Vec<_> =
            sim.sessions().into_iter().map(|seen| (seen.name, seen.ended.map(|(_, how)| how))).collect();
        let expected = [(left, Some(SessionEnd::Left)), (cut, Some(SessionEnd::Cut)), (lasting, None)];
        assert_eq!(ends, expected.map(|(name, how)| (name.to_owned(), how)));
    }
}
