//! The client against a simulated coderd, and the simulator against the contract.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "everything here is a test, its helper functions too"
)]

mod budget;
mod contract;
mod hooks;
mod secrets;
mod simulator;
mod transport;

use std::{sync::Arc, time::Duration};

use coder_k8s_coderd::{Client, Connector, Endpoint, Settings};
use coder_k8s_testbed::{CoderSim, codersim::Mode};

async fn sim(mode: Mode) -> CoderSim {
    let sim = CoderSim::start(mode).await.unwrap();
    // These tests send what no operator would, and in any order.
    sim.expect_foreign_credentials();
    sim
}

/// A client with an owner's token and connections of its own.
fn owner(sim: &CoderSim) -> Client {
    let target = Endpoint::new(sim.url());
    Connector::new(Settings::on_loopback()).client(&target, Some(&sim.owner_token())).unwrap()
}

fn nobody(sim: &CoderSim) -> Client {
    Connector::new(Settings::on_loopback()).client(&Endpoint::new(sim.url()), None).unwrap()
}

fn hasty() -> Settings {
    Settings { deadline: Duration::from_millis(300), ..Settings::on_loopback() }
}

/// Notes what it is told.
#[derive(Default)]
struct Notes(parking_lot::Mutex<Vec<(&'static str, String)>>);

impl coder_k8s_coderd::Observer for Notes {
    fn called(&self, call: &'static str, outcome: &str, _: Duration) {
        self.0.lock().push((call, outcome.to_owned()));
    }
}

impl Notes {
    fn settings() -> (Arc<Self>, Settings) {
        let notes = Arc::new(Self::default());
        (notes.clone(), Settings { observer: Some(notes), ..Settings::on_loopback() })
    }

    fn take(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *self.0.lock())
    }
}
