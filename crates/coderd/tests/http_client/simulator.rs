//! What the simulator adds to coderd: accidents, a log, a clock.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_coderd::{DaemonFilter, Entitlement, JobFilter, ListedDaemonStatus, Refreshed, license};
use coder_k8s_testbed::{
    CoderSim,
    codersim::{DaemonSeed, JobSeed, Mode, SimFault},
};

use super::{nobody, owner, sim};

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn state_and_address_survive_a_restart() {
    let sim = sim(Mode::Licensed).await;
    let (client, address) = (owner(&sim), sim.address());
    client.create_provisioner_key("default", "key", &BTreeMap::new()).await.unwrap();
    sim.stop().await;
    sim.restart().await.unwrap();
    assert_eq!(sim.address(), address);
    assert_eq!(owner(&sim).provisioner_keys("default").await.unwrap().len(), 1);
    assert_eq!(sim.count("POST", "/api/v2/organizations/"), 1, "the log is kept");
}

#[tokio::test]
async fn a_lost_database_is_another_deployment() {
    let sim = sim(Mode::Licensed).await;
    let (client, before) = (owner(&sim), sim.deployment_id());
    sim.reset_backend();
    assert_ne!(client.build_info().await.unwrap().deployment_id, before);
    assert_eq!(client.me().await.unwrap_err().reason().as_str(), "Unauthenticated");
    assert!(!client.has_first_user().await.unwrap());
    assert!(!client.entitlements().await.unwrap().has_license);
}

#[tokio::test]
async fn licenses_run_out_by_the_clock() {
    let sim = sim(Mode::Unlicensed).await;
    let client = owner(&sim);
    client.add_license(&CoderSim::license().expires_in(DAY * 10).build()).await.unwrap();
    let feature = async || {
        let found = client.entitlements().await.unwrap();
        (found.has_license, found.features["workspace_proxy"].entitlement.clone(), found.warnings)
    };
    let (_, _, warnings) = feature().await;
    assert_eq!(warnings, ["Your license expires in 10 days."]);
    sim.advance(DAY * 10 + DAY / 2);
    assert_eq!(feature().await, (true, Entitlement::GracePeriod, vec![]));
    sim.advance(DAY);
    assert_eq!(feature().await, (false, Entitlement::NotEntitled, vec![]));
    assert_eq!(sim.licenses().len(), 1, "it is still listed");
}

#[tokio::test]
async fn licenses_with_defects_are_refused_in_coderds_words() {
    let sim = sim(Mode::Unlicensed).await;
    let client = owner(&sim);
    let license = CoderSim::license;
    for bad in [
        license().expired(),
        license().claim("version", 2),
        license().claim("account_id", ""),
        license().claim("nbf", serde_json::Value::Null),
        license().claim("license_expires", 9_999_999_999_i64),
        license().claim("deployment_ids", vec!["another"]),
    ] {
        let error = client.add_license(&bad.build()).await.unwrap_err();
        assert_eq!(error.reason().as_str(), "InvalidLicense", "{bad:?}");
    }
    client.add_license(&license().claim("deployment_ids", vec![sim.deployment_id()]).build()).await.unwrap();
    let trial = license().trial().feature_set("enterprise").build();
    client.add_license(&trial).await.unwrap();
    assert!(client.entitlements().await.unwrap().trial, "the last license counts");
    let claims = license::Claims::read(&trial).unwrap();
    let listed = client.licenses().await.unwrap();
    assert_eq!(license::find(&claims, &listed).unwrap().uuid, claims.id);
    assert_eq!(client.refresh_entitlements().await.unwrap(), Refreshed::Lately);
    sim.advance(Duration::from_mins(2));
    assert_eq!(client.refresh_entitlements().await.unwrap(), Refreshed::Now);
}

#[tokio::test]
async fn tokens_run_out_and_users_are_suspended() {
    let sim = sim(Mode::Agpl).await;
    let owner = owner(&sim);
    let token = owner.create_token("me", "short", Some(Duration::from_hours(1))).await.unwrap();
    let client = owner.with_any_token(&token.secret).unwrap();
    client.me().await.unwrap();
    sim.advance(Duration::from_hours(2));
    assert_eq!(client.me().await.unwrap_err().reason().as_str(), "Unauthenticated");
    assert_eq!(owner.tokens("me").await.unwrap().len(), 2, "an expired token keeps its name");
    sim.suspend("admin", true);
    let error = owner.me().await.unwrap_err();
    assert!(error.to_string().contains("not active"), "{error}");
    sim.suspend("admin", false);
    sim.revoke(&sim.owner_token());
    owner.me().await.unwrap();
}

#[tokio::test]
async fn daemons_age_and_leave_with_their_key() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    sim.add_key("pool", &BTreeMap::from([("a".to_owned(), "b".to_owned())]));
    let key_id = Some(sim.keys()[0].id.clone());
    let daemon = |name: &str, seconds, busy| DaemonSeed {
        name: name.to_owned(),
        key_id: key_id.clone(),
        seen_ago: Duration::from_secs(seconds),
        busy,
    };
    sim.set_daemons(&[daemon("idle", 1, false), daemon("old", 120, false), daemon("lost", 600, true)]);
    let alive = client.provisioner_daemons("default", DaemonFilter::default()).await.unwrap();
    assert_eq!(alive.len(), 1);
    assert_eq!((alive[0].status, alive[0].key_name.as_str()), (Some(ListedDaemonStatus::Idle), "pool"));
    assert_eq!(alive[0].tags["scope"], "organization");
    let all = client.provisioner_daemons("default", DaemonFilter { offline: true }).await.unwrap();
    let status: BTreeMap<_, _> = all.iter().map(|daemon| (daemon.name.as_str(), daemon.status)).collect();
    assert_eq!(status["old"], Some(ListedDaemonStatus::Offline));
    assert_eq!(status["lost"], Some(ListedDaemonStatus::Busy), "dead with a job is busy");
    let with_key = client.provisioner_key_daemons("default").await.unwrap();
    let entry = with_key.iter().find(|entry| entry.key.name == "pool").unwrap();
    assert_eq!(entry.daemons.len(), 2, "seen in the last three minutes");
    assert!(entry.daemons.iter().all(|daemon| daemon.status.is_none()));
    client.delete_provisioner_key("default", "pool").await.unwrap();
    assert!(client.provisioner_daemons("default", DaemonFilter { offline: true }).await.unwrap().is_empty());
}

#[tokio::test]
async fn jobs_are_listed_newest_first_by_status() {
    let sim = sim(Mode::Agpl).await;
    let client = owner(&sim);
    let job = |status: &str, seconds| JobSeed {
        status: status.to_owned(),
        tags: BTreeMap::new(),
        waiting: Duration::from_secs(seconds),
        worker_id: None,
    };
    let ids = sim.set_jobs(&[job("pending", 90), job("running", 5), job("pending", 10)]);
    let pending = JobFilter { pending_only: true };
    let found = client.provisioner_jobs("default", pending).await.unwrap();
    assert_eq!(found.iter().map(|job| &job.id).collect::<Vec<_>>(), [&ids[2], &ids[0]]);
    assert_eq!(client.provisioner_jobs("default", JobFilter::default()).await.unwrap().len(), 3);
}

#[tokio::test]
async fn rate_limits_are_for_each_path_and_end_with_the_minute() {
    let sim = sim(Mode::Unlicensed).await;
    sim.set_rate_limit(Some(2));
    for expected in [None, None, Some("RateLimited")] {
        let outcome = nobody(&sim).entitlements().await.err();
        assert_eq!(outcome.as_ref().map(|error| error.reason().as_str()), expected);
    }
    nobody(&sim).build_info().await.unwrap();
    sim.advance(Duration::from_mins(1));
    nobody(&sim).entitlements().await.unwrap();
}

#[tokio::test]
async fn faults_and_log_tell_calls_apart() {
    let sim = sim(Mode::Licensed).await;
    let client = owner(&sim);
    let fault = sim.fault("GET", "/api/v2/organizations/*", SimFault::status(500, "no", ""), None);
    client.organization("default").await.unwrap_err();
    client.organizations().await.unwrap();
    sim.clear(fault);
    let mark = sim.mark();
    client.organization("default").await.unwrap();
    assert_eq!(sim.since(mark).len(), 1);
    assert_eq!(sim.count("GET", "/api/v2/organizations"), 3);
    let fingerprints: Vec<_> = sim.requests().into_iter().map(|entry| entry.credential.unwrap()).collect();
    assert!(fingerprints.iter().all(|print| print.len() == 8 && *print == fingerprints[0]));
    sim.fault("*", "/**", SimFault::Reset, None);
    sim.clear_faults();
    client.organizations().await.unwrap();
}
