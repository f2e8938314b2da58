//! Small at rest: what the operator asks of the API server when nothing changes, and what it serves meanwhile.

use std::time::{Duration, Instant};

use crate::support::{Operator, control_plane, grant, request, requests, writes};
use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_testbed::{Cluster, eventually};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use rustix::process::Signal;

const OBJECTS: usize = 200;
/// How long nothing may happen.
const REST: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_objects_cost_nothing_at_rest_and_no_write_after_a_restart() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let api: Api<CoderControlPlane> = Api::namespaced(client.clone(), "default");
    stream::iter(0..OBJECTS)
        .map(|n| {
            let api = api.clone();
            async move { api.create(&PostParams::default(), &control_plane(&format!("coder-{n}"))).await }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();

    let mut first = Operator::start(&cluster, &[]);
    let settled = || async {
        let all = api.list(&ListParams::default()).await.unwrap();
        let open = all.iter().filter(|o| {
            o.status.as_ref().is_none_or(|s| s.workload.observed_generation != o.metadata.generation)
        });
        match open.count() {
            0 => Ok(()),
            open => Err(format!("{open} are not settled")),
        }
    };
    eventually(crate::support::PATIENCE, settled)
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", first.output()));
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=coder-k8s");
    assert_eq!(accounts.list(&ours).await.unwrap().items.len(), OBJECTS);

    // Per object: one child, one status, one event. The lease and the watches come on top.
    let written = || async {
        let all = requests(&cluster, |user| user == first.user);
        match writes(&all).len() {
            count if count >= 3 * OBJECTS => Ok(()),
            count => Err(format!("{count} writes")),
        }
    };
    eventually(crate::support::PATIENCE, written).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = requests(&cluster, |user| user == first.user);
    let (accepted, refused): (Vec<_>, Vec<_>) = writes(&all).into_iter().partition(|event| event.code < 300);
    println!("{} writes for {OBJECTS} new objects, {} refused", accepted.len(), refused.len());
    assert_eq!(accepted.len(), 3 * OBJECTS);
    assert!(refused.len() <= OBJECTS / 20, "writes onto an old view are rare: {refused:?}");
    assert!(all.iter().all(|event| event.code != 403), "the declared rights are enough");

    tokio::time::sleep(REST).await;
    let later = requests(&cluster, |user| user == first.user);
    let extra: Vec<_> =
        later.iter().skip(all.len()).filter(|e| e.resource != "leases" && e.verb != "watch").collect();
    assert!(extra.is_empty(), "at rest: {extra:?}");

    first.signal(Signal::TERM);
    assert_eq!(first.exit_code().await, Some(0), "{}", first.output());
    let started = Instant::now();
    let second = Operator::start(&cluster, &[]);
    second.ready().await;
    println!("ready {:?} after the start, with {OBJECTS} objects (debug build)", started.elapsed());
    second.leads().await;
    second.reconciled("CoderControlPlane", OBJECTS as u64).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = requests(&cluster, |user| user == second.user);
    assert!(writes(&again).is_empty(), "after a restart: {:?}", writes(&again));

    let (code, text) = second.get("--metrics-addr", "/metrics").await;
    assert_eq!(code, 200);
    let text = unchunked(&text);
    assert_eq!(coder_k8s_engine::metrics::lint(&text), Vec::<String>::new(), "{text}");
    for line in [
        "coder_k8s_leading 1",
        r#"coder_k8s_objects{kind="CoderControlPlane",ready="false"} 200"#,
        r#"coder_k8s_reconciles_total{kind="CoderControlPlane",outcome="settled",reason="Reconciled"} 200"#,
        "coder_k8s_queue_depth 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_changes_while_it_runs() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    grant(&cluster.client(), &Install::default()).await;
    let operator = Operator::start(&cluster, &["--log-level=warn"]);
    // At `warn` the addresses are not logged: a second instance tells its own.
    let loud = Operator::start(&cluster, &[]);
    let admin = loud.address("--admin-addr").await;
    assert!(!operator.output().contains(r#""level":"INFO""#));
    let put = |level: &str| {
        let length = level.len();
        format!(
            "PUT /log-level HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{level}"
        )
    };
    assert_eq!(request(&admin, &put("debug")).await.0, 200);
    loud.until(|lines| lines.iter().any(|line| line["level"] == "DEBUG").then_some(())).await;
    let (code, why) = request(&admin, &put("no=such=level")).await;
    assert_eq!(code, 400, "{why}");
}

/// The body of an answer, whether it was sent in chunks or not.
fn unchunked(body: &str) -> String {
    if body.starts_with('#') {
        return body.to_owned();
    }
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        text.push_str(&after[..size]);
        rest = after.get(size + 2..).unwrap_or("");
    }
    text
}
