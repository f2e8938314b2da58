//! A simulated coderd in the process of the test.
//!
//! [`CoderSim`] is a real HTTP server with the status codes, texts, limits and quirks of coderd, for every route that
//! the operator uses. It cannot verify licenses: it accepts those of [`CoderSim::license`] and refuses all others in
//! the words of coderd. Tests change its state as an administrator or an accident would, inject faults into any call,
//! and read a log of all requests. Real provisioner daemons and workspace proxies can connect: the simulator
//! implements as much of their websocket protocols as idle ones need. The [contract](crate::contract) checks it
//! against the real coderd.

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
mod monitor;
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

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

pub use admin::{DaemonSeed, JobSeed, KeySeen, LicenseSeen, ProxySeen};
pub use faults::{FaultId, SimFault};
pub use licenses::LicenseBuilder;
pub use log::{Entry, Mark};
pub use monitor::{REPORT_FILE, SimView, When, report};
pub use sessions::{KeyChange, Session, SessionEnd, SessionSeen};

use faults::Rules;
use log::Log;
use monitor::Monitor;
use server::{Running, Tls};
use state::State;

use crate::{ports::own_address, postgres};

/// Build and license of the simulated server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The enterprise build with a premium license.
    Licensed,
    /// The enterprise build without a license.
    Unlicensed,
    /// The AGPL build, which lacks many routes.
    Agpl,
}

/// Options of a simulator.
#[derive(Clone, Debug)]
pub struct Builder {
    mode: Mode,
    address: Option<SocketAddr>,
    tls: Option<(String, String)>,
}

impl Builder {
    /// Listens on this address instead of one of its own. Port 0 is a free port.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Serves HTTPS with this certificate and key, both PEM.
    #[must_use]
    pub fn tls(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.tls = Some((certificate.into(), key.into()));
        self
    }

    /// Starts the simulator.
    pub async fn start(self) -> io::Result<CoderSim> {
        let tls = self.tls.as_ref().map(|(certificate, key)| Tls::new(certificate, key)).transpose()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(self.mode)),
            rules: Mutex::default(),
            log: Mutex::default(),
            database: tokio::sync::Mutex::default(),
            monitor: Mutex::default(),
            listens: AtomicBool::new(true),
        });
        let address = match self.address {
            Some(address) => address,
            None => (own_address()?, 0).into(),
        };
        let running = Running::start(address, tls.clone(), shared.clone()).await?;
        let address = running.address;
        monitor::started(address, &shared);
        Ok(CoderSim { shared, address, tls, running: tokio::sync::Mutex::new(Some(running)) })
    }
}

/// State that all connections share.
struct Shared {
    state: Mutex<State>,
    rules: Mutex<Rules>,
    log: Mutex<Log>,
    /// A database with more users and tokens, see [`CoderSim::use_database`].
    database: tokio::sync::Mutex<Option<postgres::Client>>,
    monitor: Mutex<Monitor>,
    listens: AtomicBool,
}

impl Shared {
    fn listens(&self) -> bool {
        self.listens.load(Ordering::SeqCst)
    }
}

/// A simulated coderd. Dropping it stops it.
pub struct CoderSim {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls: Option<Tls>,
    running: tokio::sync::Mutex<Option<Running>>,
}

impl CoderSim {
    /// Starts a simulator on an address of loopback of its own.
    pub async fn start(mode: Mode) -> io::Result<Self> {
        Self::builder(mode).start().await
    }

    /// A simulator with other options.
    pub fn builder(mode: Mode) -> Builder {
        Builder { mode, address: None, tls: None }
    }

    /// Builds a license that the simulator accepts.
    pub fn license() -> LicenseBuilder {
        LicenseBuilder::default()
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Base URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Stops listening and breaks every connection. The state stays.
    pub async fn stop(&self) {
        self.shared.listens.store(false, Ordering::SeqCst);
        if let Some(running) = self.running.lock().await.take() {
            running.stop().await;
        }
    }

    /// Listens again on the same address. Does nothing if it already listens.
    pub async fn restart(&self) -> io::Result<()> {
        let mut running = self.running.lock().await;
        if running.is_none() {
            *running = Some(Running::start(self.address, self.tls.clone(), self.shared.clone()).await?);
        }
        self.shared.listens.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Makes matching calls fail, `times` times or until cleared.
    ///
    /// The method may be `*`. In the path, `*` matches one segment, and `**` at the end any number.
    pub fn fault(&self, method: &str, path: &str, fault: SimFault, times: Option<u32>) -> FaultId {
        self.shared.rules.lock().add(method, path, fault, times)
    }

    /// Removes one fault.
    pub fn clear(&self, fault: FaultId) {
        self.shared.rules.lock().clear(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        *self.shared.rules.lock() = Rules::default();
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Entry> {
        self.shared.log.lock().since(Mark::default())
    }

    /// The present position in the log, for [`Self::since`].
    pub fn mark(&self) -> Mark {
        self.shared.log.lock().mark()
    }

    /// Requests after a position.
    pub fn since(&self, mark: Mark) -> Vec<Entry> {
        self.shared.log.lock().since(mark)
    }

    /// Number of requests with this method (or `*`) and this prefix of the path.
    pub fn count(&self, method: &str, path_prefix: &str) -> usize {
        self.requests().iter().filter(|entry| entry.is(method, path_prefix)).count()
    }
}
