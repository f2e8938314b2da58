//! A coderd that lives in the test's own process.
//!
//! [`CoderSim`] is a real HTTP server that answers as coderd does: the same status codes, texts, limits and
//! quirks, for every endpoint that the operator uses. It cannot verify licenses: it takes those that
//! [`CoderSim::license`] makes and refuses all others in coderd's words. Its state is changed from the test's side
//! as an administrator or an accident would change it; faults can be put into any call; every request is logged.
//! Real provisioner daemons and workspace proxies can connect to it: it speaks their websockets as far as those need
//! it that have nothing to do.
//! The [contract](crate::contract) keeps it honest.

mod admin;
mod auth;
#[cfg(test)]
mod client;
mod daemons;
mod database;
mod drpc;
mod entitlements;
mod faults;
mod keys;
mod licenses;
mod log;
mod message;
mod proxies;
mod proxy_wire;
mod routes;
mod rules;
mod serve;
mod server;
mod sessions;
mod state;
mod users;
mod wire;

use std::{io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;

pub use admin::{DaemonSeed, JobSeed, KeySeen, LicenseSeen, ProxySeen};
pub use faults::{FaultId, SimFault};
pub use licenses::LicenseBuilder;
pub use log::{Entry, Mark};
pub use sessions::{KeyChange, Session, SessionEnd, SessionSeen};

use faults::Rules;
use log::Log;
use server::{Running, Tls};
use state::State;

use crate::postgres;

/// Which server to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The enterprise build with a premium license.
    Licensed,
    /// The enterprise build without a license.
    Unlicensed,
    /// The AGPL build, which lacks many routes.
    Agpl,
}

/// How to start a simulator.
#[derive(Clone, Debug)]
pub struct Builder {
    mode: Mode,
    address: SocketAddr,
    tls: Option<(String, String)>,
}

impl Builder {
    /// Listens on this address; port 0 for a free one.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Speaks TLS with this certificate and key, both PEM.
    #[must_use]
    pub fn tls(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.tls = Some((certificate.into(), key.into()));
        self
    }

    /// Starts it.
    pub async fn start(self) -> io::Result<CoderSim> {
        let tls = self.tls.as_ref().map(|(certificate, key)| Tls::new(certificate, key)).transpose()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(self.mode)),
            rules: Mutex::default(),
            log: Mutex::default(),
            database: tokio::sync::Mutex::default(),
        });
        let running = Running::start(self.address, tls.clone(), shared.clone()).await?;
        let address = running.address;
        Ok(CoderSim { shared, address, tls, running: tokio::sync::Mutex::new(Some(running)) })
    }
}

/// What the connections share.
struct Shared {
    state: Mutex<State>,
    rules: Mutex<Rules>,
    log: Mutex<Log>,
    /// Where users and tokens are also found.
    database: tokio::sync::Mutex<Option<postgres::Client>>,
}

/// A simulated coderd. Stops when dropped.
pub struct CoderSim {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls: Option<Tls>,
    running: tokio::sync::Mutex<Option<Running>>,
}

impl CoderSim {
    /// A simulator on a free port of loopback.
    pub async fn start(mode: Mode) -> io::Result<Self> {
        Self::builder(mode).start().await
    }

    /// A simulator that is yet to be placed.
    pub fn builder(mode: Mode) -> Builder {
        Builder { mode, address: SocketAddr::from(([127, 0, 0, 1], 0)), tls: None }
    }

    /// A license that the simulator accepts.
    pub fn license() -> LicenseBuilder {
        LicenseBuilder::default()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Stops listening and breaks every connection. The state is kept.
    pub async fn stop(&self) {
        if let Some(running) = self.running.lock().await.take() {
            running.stop().await;
        }
    }

    /// Listens again, on the same address. Nothing happens if it does already.
    pub async fn restart(&self) -> io::Result<()> {
        let mut running = self.running.lock().await;
        if running.is_none() {
            *running = Some(Running::start(self.address, self.tls.clone(), self.shared.clone()).await?);
        }
        Ok(())
    }

    /// Makes a call go wrong: `times` times, or until cleared.
    ///
    /// The method may be `*`. In the path `*` stands for one part, and `**` at the end for any number.
    pub fn fault(&self, method: &str, path: &str, fault: SimFault, times: Option<u32>) -> FaultId {
        self.shared.rules.lock().add(method, path, fault, times)
    }

    /// Ends one fault.
    pub fn clear(&self, fault: FaultId) {
        self.shared.rules.lock().clear(fault);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        *self.shared.rules.lock() = Rules::default();
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Entry> {
        self.shared.log.lock().since(Mark::default())
    }

    /// This moment, for [`Self::since`].
    pub fn mark(&self) -> Mark {
        self.shared.log.lock().mark()
    }

    /// The requests since a moment.
    pub fn since(&self, mark: Mark) -> Vec<Entry> {
        self.shared.log.lock().since(mark)
    }

    /// How many requests had this method (or `*`) and a path that begins like this.
    pub fn count(&self, method: &str, path_prefix: &str) -> usize {
        self.requests().iter().filter(|entry| entry.is(method, path_prefix)).count()
    }
}
