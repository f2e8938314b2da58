//! One request budget a server.

use std::time::Duration;

use coder_k8s_coderd::{
    Connector, Endpoint, ErrorKind, Outage, RetryAdvice, Settings, intervals::MAX_REQUESTS_IN_FLIGHT,
};
use coder_k8s_testbed::{
    codersim::{Mode, SimFault},
    eventually,
};

use super::{hasty, sim};

#[tokio::test]
async fn a_server_that_asks_for_patience_is_left_alone_by_everybody() {
    let (busy, other) = (sim(Mode::Licensed).await, sim(Mode::Licensed).await);
    let connector = Connector::new(Settings::on_loopback());
    let one = connector.client(&Endpoint::new(busy.url()), Some(&busy.owner_token())).unwrap();
    busy.fault("GET", "/api/v2/licenses", SimFault::rate_limited(Duration::from_mins(1)), Some(1));
    let error = one.licenses().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::RateLimited { retry_after: Duration::from_mins(1) });

    let mark = busy.mark();
    let two = connector.client(&Endpoint::new(format!("{}/path", busy.url())), None).unwrap();
    let error = two.build_info().await.unwrap_err();
    let RetryAdvice::After(left) = error.retry() else { panic!("{error}") };
    assert!(left > Duration::from_secs(50) && error.reason().as_str() == "RateLimited");
    assert!(busy.since(mark).is_empty(), "it does not hear of it");
    one.at_once().licenses().await.expect("what would cost more later is asked");

    connector.client(&Endpoint::new(other.url()), None).unwrap().build_info().await.unwrap();
}

#[tokio::test]
async fn a_server_out_of_reach_fails_calls_at_once_and_is_found_when_it_is_back() {
    let sim = sim(Mode::Licensed).await;
    let connector = Connector::new(Settings::on_loopback());
    let client = connector.client(&Endpoint::new(sim.url()), None).unwrap();
    client.build_info().await.unwrap();
    sim.stop().await;
    let failed = client.build_info().await.unwrap_err();
    assert_eq!(failed.reason().as_str(), "Unreachable");
    let held = client.build_info().await.unwrap_err();
    assert!(matches!(held.kind, ErrorKind::Transient(Outage::HeldOff { .. })), "{held:?}");
    assert_eq!(
        (held.reason().as_str(), held.to_string()),
        (failed.reason().as_str(), failed.to_string()),
        "it reads the same"
    );
    assert!(!held.may_have_happened() && matches!(held.retry(), RetryAdvice::After(_)));

    sim.restart().await.unwrap();
    eventually(Duration::from_secs(5), || client.build_info()).await.unwrap();
    client.build_info().await.unwrap();
}

#[tokio::test]
async fn a_slow_server_takes_no_more_than_its_share() {
    let (slow, quick) = (sim(Mode::Licensed).await, sim(Mode::Licensed).await);
    slow.fault("*", "/**", SimFault::Latency(Duration::from_secs(30)), None);
    let connector = Connector::new(hasty());
    let client = connector.client(&Endpoint::new(slow.url()), None).unwrap();
    let started = std::time::Instant::now();
    let calls = (0..20).map(|_| client.build_info());
    let results = futures::future::join_all(calls).await;
    assert!(started.elapsed() < Duration::from_secs(5), "the twenty do not wait one after the other");
    assert!(results.iter().all(Result::is_err));
    connector.client(&Endpoint::new(quick.url()), None).unwrap().build_info().await.unwrap();
    assert_eq!(slow.requests().len(), MAX_REQUESTS_IN_FLIGHT, "its share reached it, and no more");
    assert_eq!(connector.server_count(), 2);
}

#[tokio::test]
async fn calls_beyond_the_share_wait_for_their_turn() {
    let sim = sim(Mode::Licensed).await;
    let latency = Duration::from_millis(100);
    sim.fault("*", "/**", SimFault::Latency(latency), None);
    let client = super::nobody(&sim);
    let started = std::time::Instant::now();
    let results =
        futures::future::join_all((0..3 * MAX_REQUESTS_IN_FLIGHT).map(|_| client.build_info())).await;
    assert!(results.iter().all(Result::is_ok));
    assert!(started.elapsed() >= latency * 3, "in three turns");
}

#[tokio::test]
async fn a_failing_handler_does_not_hold_back_the_others() {
    let sim = sim(Mode::Licensed).await;
    let client = super::owner(&sim);
    sim.fault("GET", "/api/v2/licenses", SimFault::status(500, "Internal", ""), None);
    for _ in 0..3 {
        assert_eq!(client.licenses().await.unwrap_err().reason().as_str(), "ServerError");
        client.build_info().await.unwrap();
    }
    sim.fault("*", "/**", SimFault::html(503), Some(1));
    assert_eq!(client.build_info().await.unwrap_err().reason().as_str(), "ServerError");
    let held = client.build_info().await.unwrap_err();
    assert!(
        matches!(held.kind, ErrorKind::Transient(Outage::HeldOff { .. })),
        "503 is about the whole server"
    );
}
