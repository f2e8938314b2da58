//! One request budget for each coderd.
//!
//! At most [`IN_FLIGHT`] requests are under way to a server. A server that answers 429, or that cannot be
//! reached, is left alone by everybody who talks to it: calls fail at once, without touching the network, until
//! its time has come. Other servers are never delayed by it. Servers that nobody uses are forgotten.
//!
//! The decisions are in [`Pace`], which knows neither clock nor network.

mod pace;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{error::Outage, kept::Kept};
pub use pace::{Admitted, CallOutcome, Hold, Pace, Why};

/// How many requests may be under way to one server.
pub const IN_FLIGHT: usize = 4;

/// All servers that this process talks to, by scheme, host and port.
#[derive(Default)]
pub struct Servers {
    all: Mutex<Kept<String, Budget>>,
}

impl Servers {
    /// The server of an origin; the same for everybody who asks.
    pub fn get(&self, origin: &str) -> Arc<Budget> {
        let make = || Ok::<_, std::convert::Infallible>(Budget::default());
        let found = self.all.lock().get(origin.to_owned(), Instant::now().into_std(), make);
        found.unwrap_or_else(|never| match never {})
    }

    /// How many servers are known.
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The budget of one server.
pub struct Budget {
    slots: Arc<Semaphore>,
    pace: Mutex<Pace>,
    last_outage: Mutex<Option<Outage>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(IN_FLIGHT)),
            pace: Mutex::default(),
            last_outage: Mutex::default(),
        }
    }
}

impl Budget {
    /// Waits for a free slot. Fails at once while the server is left alone, also for those who waited.
    pub async fn admit(self: &Arc<Self>) -> Result<Permit, Hold> {
        self.pace.lock().check(now())?;
        let slot = self.slots.clone().acquire_owned().await.ok();
        let admitted = self.pace.lock().admit(now())?;
        Ok(Permit { budget: self.clone(), admitted: Some(admitted), _slot: slot })
    }

    /// What was last wrong with the server.
    pub fn last_outage(&self) -> Option<Outage> {
        self.last_outage.lock().clone()
    }

    /// For how long and why the server is left alone right now.
    pub fn held(&self) -> Option<Hold> {
        self.pace.lock().check(now()).err()
    }
}

/// The right to send one request. Dropped without a report, it tells nothing about the server.
pub struct Permit {
    budget: Arc<Budget>,
    admitted: Option<Admitted>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// Tells what was seen of the server, and what was wrong with it.
    pub fn report(mut self, outcome: CallOutcome, outage: Option<Outage>) {
        if outage.is_some() {
            *self.budget.last_outage.lock() = outage;
        }
        self.note(outcome);
    }

    /// How long the request has been under way.
    pub fn elapsed(&self) -> Duration {
        let started = self.admitted.map_or_else(now, |admitted| admitted.at);
        now().saturating_duration_since(started)
    }

    fn note(&mut self, outcome: CallOutcome) {
        if let Some(admitted) = self.admitted.take() {
            self.budget.pace.lock().record(admitted, now(), outcome);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.note(CallOutcome::Nothing);
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_for_a_slot_fail_when_the_server_asks_for_patience() {
        let servers = Servers::default();
        let server = servers.get("http://one");
        let mut permits = Vec::new();
        for _ in 0..IN_FLIGHT {
            permits.push(server.admit().await.unwrap());
        }
        let waiting = tokio::spawn({
            let server = server.clone();
            async move { server.admit().await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        permits.pop().unwrap().report(CallOutcome::RateLimited(MINUTE), None);
        assert_eq!(waiting.await.unwrap(), Err(Hold { why: Why::RateLimited, remaining: MINUTE }));

        assert!(servers.get("http://two").admit().await.is_ok(), "another server is not delayed");
        tokio::time::advance(MINUTE).await;
        assert!(server.admit().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_given_up_frees_its_slot_and_its_trial() {
        let server = Servers::default().get("http://one");
        server.admit().await.unwrap().report(CallOutcome::Unreachable, None);
        tokio::time::advance(MINUTE).await;
        let trial = server.admit().await.unwrap();
        assert!(server.admit().await.is_err(), "one at a time tries");
        drop(trial);
        assert!(server.admit().await.is_ok());
        assert_eq!(server.slots.available_permits(), IN_FLIGHT);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_servers_are_forgotten_with_their_history() {
        let servers = Servers::default();
        for n in 0..100 {
            servers.get(&format!("http://{n}"));
        }
        tokio::time::advance(crate::kept::UNUSED * 2).await;
        servers.get("http://last");
        assert_eq!(servers.len(), 1);
    }
}
