//! Who is connected.

use std::time::Duration;

use coder_k8s_api::DaemonsStatus;
use coder_k8s_testbed::{
    codersim::{Entry, SimFault},
    eventually,
};
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    daemons::DaemonScene,
    pool::{condition, is, status},
};

use crate::DAEMONS;

fn counts(daemons: &DaemonsStatus) -> [i32; 4] {
    [daemons.connected, daemons.busy, daemons.idle, daemons.outdated]
}

/// Waits until the status counts so many connected, busy, idle and outdated daemons.
async fn counted(crew: &DaemonScene, expected: [i32; 4]) -> DaemonsStatus {
    let pool = crew.pool.until(|pool| status(pool).daemons.as_ref().map(counts) == Some(expected)).await;
    status(&pool).daemons.unwrap()
}

#[tokio::test]
async fn none_some_all_and_busy_daemons_are_told_as_coderd_lists_them() {
    let mut crew = DaemonScene::new(&DAEMONS, "health", json!({"replicas": 3})).await;
    let object = crew.pool.until_condition("DaemonsConnected", "False", "Connecting").await;
    assert_eq!(status(&object).daemons, None, "nobody was there yet");
    let message = crew.until_condition("False", "NoneConnected").await;
    assert!(message.contains("see their logs"), "{message}");
    assert!(is(&crew.pool.now().await, "Ready", "True", None), "it gates nothing");

    let names = crew.until_pods(3).await;
    crew.connect(&names[0]).await;
    let message = crew.until_condition("False", "SomeConnected").await;
    assert!(
        message.contains(&names[1]) && message.contains(&names[2]) && !message.contains(&names[0]),
        "{message}"
    );
    counted(&crew, [1, 0, 1, 0]).await;

    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    crew.busy(&names[1], true);
    let daemons = counted(&crew, [3, 1, 2, 0]).await;
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(
        daemons.list.iter().map(|daemon| &daemon.name).collect::<Vec<_>>(),
        sorted.iter().collect::<Vec<_>>()
    );
    let busy = daemons.list.iter().find(|daemon| daemon.name == names[1]).unwrap();
    assert_eq!((busy.status.as_deref(), busy.version.as_deref()), (Some("Busy"), Some("v2.36.1")));
    assert!(busy.last_seen.is_some() && daemons.as_of.is_some());
    crew.until_condition("True", "Connected").await;

    crew.pool.sim.set_version("v2.37.0");
    crew.pool.scene.spec("coder", json!({"progressDeadlineSeconds": 700})).await;
    counted(&crew, [3, 1, 2, 3]).await;
}

#[tokio::test]
async fn signs_of_life_alone_are_never_written() {
    let mut crew = DaemonScene::new(&DAEMONS, "health", json!({"replicas": 2})).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    let first = counted(&crew, [2, 0, 2, 0]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, mark) = (crew.writes(), crew.pool.sim.mark());
    for _ in 0..4 {
        crew.pool.sim.advance(Duration::from_mins(1));
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    let asked = crew.pool.sim.since(mark);
    let asked = asked.iter().filter(|entry| entry.path.ends_with("/provisionerdaemons")).count();
    assert!(asked >= 3, "{asked} calls");
    assert_eq!(crew.writes(), before, "{:?}", crew.pool.now().await.status);
    assert_eq!(status(&crew.pool.now().await).daemons.unwrap(), first);
}

#[tokio::test]
async fn one_call_serves_all_pools_of_an_organization() {
    let mut crew = DaemonScene::new(&DAEMONS, "health", json!({})).await;
    for n in 0..4 {
        crew.pool.make_named(&format!("other-{n}"), json!({})).await;
    }
    for n in 0..4 {
        crew.pool.until_ready_named(&format!("other-{n}")).await;
    }
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    for n in 0..4 {
        crew.pool
            .until_condition_of(&format!("other-{n}"), "DaemonsConnected", "False", Some("NoneConnected"))
            .await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (mark, watched) = (crew.pool.sim.mark(), Duration::from_secs(8));
    tokio::time::sleep(watched).await;
    let calls = crew.pool.sim.since(mark);
    let of = |path: &str| calls.iter().filter(|entry: &&Entry| entry.path.ends_with(path)).count();
    // Every second, a tenth more or less.
    let most = usize::try_from(watched.as_secs()).unwrap() * 10 / 9 + 2;
    let (daemons, jobs) = (of("/provisionerdaemons"), of("/provisionerjobs"));
    println!("{watched:?}, five pools: {daemons} lists of daemons, {jobs} of jobs");
    assert!((2..=most).contains(&daemons) && (2..=most).contains(&jobs), "{daemons} {jobs}");
}

#[tokio::test]
async fn what_cannot_be_asked_withdraws_nothing_and_is_unknown_after_a_while() {
    let mut crew = DaemonScene::new(&DAEMONS, "health", json!({})).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    let daemons = counted(&crew, [1, 0, 1, 0]).await;
    let path = "/api/v2/organizations/*/provisionerdaemons";
    crew.pool.sim.fault("GET", path, SimFault::status(500, "out of order", ""), None);
    let message = crew.pool.until(|pool| is(pool, "DaemonsConnected", "Unknown", None)).await;
    let said = condition(&message, "DaemonsConnected").unwrap();
    assert!(said.message.contains("out of order"), "{said:?}");
    assert_eq!(status(&crew.pool.now().await).daemons, Some(daemons), "kept");
    assert!(is(&crew.pool.now().await, "Ready", "True", None));
    crew.pool.sim.clear_faults();
    crew.until_condition("True", "Connected").await;
}

#[tokio::test]
async fn a_pool_that_is_scaled_to_zero_is_as_it_should_be() {
    let mut crew = DaemonScene::new(&DAEMONS, "health", json!({"replicas": 1})).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    crew.pool.edit(json!({"replicas": 0})).await;
    crew.until_condition("True", "ScaledToZero").await;
    crew.all_leave();
    counted(&crew, [0, 0, 0, 0]).await;
    crew.pool.edit(json!({"replicas": 1})).await;
    crew.until_pods(1).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
}

#[tokio::test]
async fn pools_of_a_control_plane_without_access_are_asked_for_with_their_own_token() {
    let pool = coder_k8s_scenes::pool::PoolScene::bare(
        &DAEMONS,
        "health",
        coder_k8s_testbed::codersim::Mode::Licensed,
    )
    .await;
    pool.make_plane(json!({"operatorAccess": {"disabled": true}})).await;
    pool.scene.until_ready("coder").await;
    pool.secret("own", "token", &pool.sim.owner_token()).await;
    let mut crew =
        DaemonScene::of(pool, json!({"bootstrap": {"credentialsSecretRef": {"name": "own"}}})).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
}

#[tokio::test]
async fn a_token_that_was_replaced_is_read_anew() {
    let mut crew = DaemonScene::new(&DAEMONS, "health", json!({})).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    let sim = &crew.pool.sim;
    let secret: k8s_openapi::api::core::v1::Secret = crew.pool.scene.until_exists("token").await;
    let old = String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap();
    crew.pool.secret("token", "token", &sim.owner_token()).await;
    sim.revoke(&old.into());
    let name = crew.until_pods(1).await.remove(0);
    crew.busy(&name, true);
    counted(&crew, [1, 1, 0, 0]).await;
    let refused = || {
        let all = crew.pool.sim.requests();
        all.iter()
            .filter(|entry| entry.path.ends_with("/provisionerdaemons") && entry.status == Some(401))
            .count()
    };
    let asked = eventually(PATIENCE, || async { if refused() <= 1 { Ok(()) } else { Err(refused()) } });
    asked.await.unwrap();
}
