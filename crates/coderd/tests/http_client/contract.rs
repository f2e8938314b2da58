//! The contract, held by the simulator in each of its modes.

use coder_k8s_coderd::Endpoint;
use coder_k8s_testbed::{
    CoderSim,
    codersim::Mode,
    contract::{self, Build, Needs, Report, Subject},
};

async fn holds(mode: Mode, build: Build) -> Report {
    let sim = super::sim(mode).await;
    let target = Endpoint::new(sim.url());
    let owner = contract::set_up(&target).await.unwrap();
    let spare_license = Some(CoderSim::license().build());
    let subject = Subject { target, owner, build, spare_license };
    let report = contract::run(&subject).await;
    println!("{build:?}\n{report}");
    assert!(report.failed.is_empty(), "{report}");
    let all = contract::checks().len();
    assert_eq!(report.passed.len() + report.not_applicable.len(), all, "every check is accounted for");
    assert_eq!(sim.count("*", "/"), sim.requests().iter().filter(|entry| !entry.cookie).count());
    report
}

#[tokio::test]
async fn a_licensed_simulator_holds_the_contract() {
    let report = holds(Mode::Licensed, Build::Licensed).await;
    let other = [Needs::Unlicensed, Needs::Agpl];
    assert!(report.not_applicable.iter().all(|(_, needs)| other.contains(needs)));
}

#[tokio::test]
async fn an_unlicensed_simulator_holds_the_contract() {
    let report = holds(Mode::Unlicensed, Build::Unlicensed).await;
    let other = [Needs::Licensed, Needs::Agpl];
    assert!(report.not_applicable.iter().all(|(_, needs)| other.contains(needs)));
}

#[tokio::test]
async fn an_agpl_simulator_holds_the_contract() {
    let report = holds(Mode::Agpl, Build::Agpl).await;
    assert!(report.not_applicable.iter().all(|(_, needs)| !matches!(needs, Needs::Any | Needs::Agpl)));
}

#[tokio::test]
async fn a_server_that_breaks_the_contract_is_found_out() {
    let sim = super::sim(Mode::Unlicensed).await;
    let owner = sim.owner_token();
    let target = Endpoint::new(sim.url());
    let subject = Subject { target, owner, build: Build::Licensed, spare_license: None };
    let report = contract::run(&subject).await;
    assert!(report.failed.len() > 10, "{report}");
}

#[test]
fn the_checks_have_names_of_their_own() {
    let mut names: Vec<_> = contract::checks().iter().map(|check| check.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), contract::checks().len());
}
