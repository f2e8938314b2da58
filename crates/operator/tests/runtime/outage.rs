//! The log of an operator whose API server goes away and comes back.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::crds;
use coder_k8s_scenes::{Operator, bare_cluster, control_plane, grant, plane::observed, planes};
use coder_k8s_testbed::Cluster;
use kube::api::PostParams;
use serde_json::Value;

/// What an operator logged at info level and above, from a line on.
fn lines(operator: &Operator, from: usize) -> Vec<Value> {
    let output = operator.output();
    let all = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.skip(from).filter(|line| line["level"] != "DEBUG").collect()
}

fn texts(lines: &[Value]) -> Vec<String> {
    let text = |line: &Value| {
        format!("{} {}", line["level"].as_str().unwrap_or(""), line["message"].as_str().unwrap_or(""))
    };
    lines.iter().map(text).collect()
}

/// Takes the API server away for a while, and returns what the operator logged about it.
async fn log_of_outage(
    operator: &Operator,
    cluster: &Cluster,
    take: impl AsyncFn(),
    give: impl AsyncFn(),
) -> Vec<String> {
    operator.until_idle("CoderControlPlane").await;
    let before = lines(operator, 0).len();
    take().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    give().await;
    // Work goes on.
    let client = cluster.client();
    let name = format!("after-{before}");
    planes(&client, "default").create(&PostParams::default(), &control_plane(&name)).await.unwrap();
    observed(&client, "default", &name).await;
    // Watches that wait for their next attempt have made it by then.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let told = texts(&lines(operator, before));
    println!("{} lines:\n{}", told.len(), told.join("\n"));
    told.into_iter().filter(|line| !line.contains("wrote ")).collect()
}

fn assert_told_once(told: &[String]) {
    // A machine with much else to do may take longer than the 30 s after which it is told again.
    let is_still = |line: &&String| line.starts_with("WARN the API server has not answered for ");
    let (still, others): (Vec<_>, Vec<_>) = told.iter().partition(is_still);
    let [away, back] = &others[..] else { panic!("{} lines: {told:#?}", told.len()) };
    assert!(still.len() <= 2, "{told:#?}");
    assert!(
        away.starts_with("WARN the API server does not answer, and the operator keeps trying: "),
        "{away}"
    );
    assert!(back.starts_with("INFO the API server answers again, after "), "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_is_one_line_and_one_when_it_is_back() {
    let (cluster, client) = bare_cluster(crds()).await;
    grant(&client, &Install::default()).await;
    let mut operator =
        Operator::start(&cluster, &["--lease-duration=60s", "--renew-deadline=50s", "--request-timeout=3s"]);
    operator.until_leading().await;
    planes(&client, "default").create(&PostParams::default(), &control_plane("coder")).await.unwrap();
    observed(&client, "default", "coder").await;
    let killed = log_of_outage(
        &operator,
        &cluster,
        async || cluster.stop_api_server().unwrap(),
        async || cluster.start_api_server().await.unwrap(),
    );
    assert_told_once(&killed.await);
    let hanging = log_of_outage(
        &operator,
        &cluster,
        async || cluster.pause_api_server().unwrap(),
        async || cluster.resume_api_server().unwrap(),
    );
    assert_told_once(&hanging.await);
    assert!(operator.runs());
}
