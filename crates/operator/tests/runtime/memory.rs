//! Memory does not grow with what others keep in the cluster.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::crds;
use coder_k8s_scenes::{Operator, grant};
use coder_k8s_testbed::Cluster;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};

const SECRETS: usize = 5_000;

fn resident_kib(operator: &Operator) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_foreign_secrets_add_nothing() {
    let cluster = Cluster::builder().controller_manager(false).crds(crds()).start().await.unwrap();
    let client = cluster.client();
    grant(&client, &Install::default()).await;
    let before = Operator::start(&cluster, &[]);
    before.until_leading().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let empty = resident_kib(&before);

    let secrets: Api<Secret> = Api::namespaced(client, "default");
    stream::iter(0..SECRETS)
        .map(|n| {
            let secrets = secrets.clone();
            async move {
                let secret = Secret {
                    metadata: ObjectMeta { name: Some(format!("foreign-{n}")), ..ObjectMeta::default() },
                    data: Some([("value".to_owned(), ByteString(vec![b'x'; 4096]))].into()),
                    ..Secret::default()
                };
                secrets.create(&PostParams::default(), &secret).await
            }
        })
        .buffer_unordered(32)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let watched = resident_kib(&before);
    // One that starts with all of them there.
    let after = Operator::start(&cluster, &[]);
    after.until_ready().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = resident_kib(&after);
    println!(
        "resident: {empty} KiB with none, {watched} KiB after watching {SECRETS} being made, {started} KiB started with them"
    );
    assert!(watched < empty + 4_096, "{empty} KiB became {watched} KiB");
    assert!(started < empty + 4_096, "{empty} KiB against {started} KiB");
}
