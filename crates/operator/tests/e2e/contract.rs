//! The contract that holds the simulator, against the real server.

use coder_k8s_testbed::contract::{self, Build, Subject};
use serde_json::json;

use crate::real::Real;

#[tokio::test]
async fn the_real_coderd_keeps_the_contract() {
    let real = Real::serving("contract", json!({"operatorAccess": {"disabled": true}})).await;
    let target = real.target().await;
    let owner = contract::set_up(&target).await.unwrap();
    let subject = Subject { target, owner, build: Build::Unlicensed, spare_license: None };
    let report = contract::run(&subject).await;
    println!("{report}");
    assert!(report.failed.is_empty(), "{report}");
    assert!(report.passed.len() >= 25, "too few checks apply: {report}");
}
