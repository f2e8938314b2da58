//! Jobs that nobody can run.

use std::time::Duration;

use coder_k8s_testbed::{
    codersim::{JobSeed, Mode, SimFault},
    eventually,
};
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    daemons::DaemonScene,
    pool::{PoolScene, tags},
    scene::{Scene, condition, message},
};

use crate::DAEMONS;

fn job(list: &[(&str, &str)], seconds: u64) -> JobSeed {
    let waiting = Duration::from_secs(seconds);
    JobSeed { status: "pending".into(), tags: tags(list), waiting, worker_id: None }
}

#[tokio::test]
async fn jobs_that_nobody_can_run_are_told_with_what_would_help() {
    let mut crew = DaemonScene::new(&DAEMONS, "jobs", json!({"tags": {"region": "eu"}})).await;
    let scene = &crew.pool.scene;
    scene.until_condition("coder", "JobsRunnable", "True", Some("Runnable")).await;
    crew.pool.sim.set_jobs(&[
        job(&[("region", "eu")], 20),
        job(&[("gpu", "1")], 90),
        job(&[("gpu", "1")], 300),
    ]);
    let plane = scene.until_condition("coder", "JobsRunnable", "False", Some("NoDaemonMatches")).await;
    let said = message(&plane, "JobsRunnable");
    assert_eq!(
        said,
        "jobs with the tags gpu=1 in organization default wait for a daemon: a CoderProvisioner with tags gpu=1 would run them"
    );
    assert_eq!(condition(&plane, "Ready").unwrap().status, "True", "it gates nothing");
    let events = told_of(scene, "NoDaemonMatches").await;
    assert_eq!(events.iter().filter(|event| event.1 == "NoDaemonMatches").count(), 1, "{events:?}");

    let wanted = |tags: &str| {
        let namespace = &scene.namespace;
        format!("{{namespace=\"{namespace}\",name=\"coder\",organization=\"default\",tags=\"{tags}\"}}")
    };
    let (_, metrics) = scene.operator().get("--metrics-addr", "/metrics").await;
    let value = |name: &str, tags: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name}{} ", wanted(tags))));
        line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
    };
    assert_eq!(value("coder_k8s_jobs_pending", "gpu=1"), 2);
    assert_eq!(value("coder_k8s_jobs_pending", "region=eu"), 1);
    assert!(value("coder_k8s_jobs_longest_wait_seconds", "gpu=1") >= 300);

    // The pool has the tags of the other job, and nobody of it is there.
    crew.pool.sim.set_jobs(&[job(&[("region", "eu")], 90)]);
    let told = eventually(PATIENCE, || async {
        let said = message(&scene.until_exists("coder").await, "JobsRunnable");
        if said.contains("CoderProvisioner pool would run them") { Ok(()) } else { Err(said) }
    });
    told.await.unwrap();
    crew.connect_all().await;
    crew.pool.scene.until_condition("coder", "JobsRunnable", "True", Some("Runnable")).await;
    told_of(&crew.pool.scene, "Runnable").await;
}

/// Waits for an event about the control plane, which follows its status.
async fn told_of(scene: &Scene, reason: &str) -> Vec<(String, String)> {
    let told = eventually(PATIENCE, || async {
        let events = scene.events("coder").await;
        if events.iter().any(|event| event.1 == reason) { Ok(events) } else { Err(format!("{events:?}")) }
    });
    told.await.unwrap()
}

#[tokio::test]
async fn jobs_that_cannot_be_listed_are_unknown_and_the_daemons_are_told_nevertheless() {
    let mut crew = DaemonScene::new(&DAEMONS, "jobs", json!({})).await;
    crew.pool.scene.until_condition("coder", "JobsRunnable", "True", Some("Runnable")).await;
    let path = "/api/v2/organizations/*/provisionerjobs";
    let refusal = SimFault::status(403, "Forbidden.", "");
    crew.pool.sim.fault("GET", path, refusal, None);
    crew.pool.scene.until_condition("coder", "JobsRunnable", "Unknown", Some("Forbidden")).await;
    crew.connect_all().await;
    crew.until_condition("True", "Connected").await;
    crew.pool.sim.clear_faults();
    crew.pool.scene.until_condition("coder", "JobsRunnable", "True", Some("Runnable")).await;
}

#[tokio::test]
async fn nobody_is_asked_for_a_control_plane_without_pools() {
    let pool = PoolScene::plane(&DAEMONS, "jobs", Mode::Licensed).await;
    pool.sim.set_jobs(&[job(&[], 300)]);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(pool.sim.count("GET", "/api/v2/organizations"), 0);
    assert!(condition(&pool.scene.until_exists("coder").await, "JobsRunnable").is_none());
    let crew = DaemonScene::of(pool, json!({"tags": {"a": "b"}})).await;
    let scene = &crew.pool.scene;
    let plane = scene.until_condition("coder", "JobsRunnable", "False", Some("NoDaemonMatches")).await;
    assert!(message(&plane, "JobsRunnable").contains("without tags"));
    scene.delete::<coder_k8s_api::CoderProvisioner>("pool").await;
    scene.until("coder", |plane| condition(plane, "JobsRunnable").is_none()).await;
}
