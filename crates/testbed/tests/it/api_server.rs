//! Disturbing the API server on purpose.

use std::time::Duration;

use coder_k8s_testbed::{Cluster, eventually};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::{SOON, alone};

#[tokio::test]
async fn a_paused_api_server_hangs_and_a_restarted_one_keeps_its_data() {
    let _alone = alone().await;
    let cluster = Cluster::builder().controller_manager(false).start().await.unwrap();
    assert!(!cluster.has_controller_manager());
    let node = cluster.node("one").await.unwrap();
    let namespaces = Api::<Namespace>::all(cluster.client());
    namespaces.get("default").await.unwrap();

    cluster.pause_api_server().unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(300), namespaces.get("default")).await;
    assert!(answer.is_err(), "a paused server answered: {answer:?}");
    cluster.resume_api_server().unwrap();
    namespaces.get("default").await.unwrap();

    let pods = Api::<Pod>::namespaced(cluster.client(), "default");
    // A busy machine may need a moment: admission waits for what it watches.
    eventually(SOON, || async { pods.create(&PostParams::default(), &pod("before")).await }).await.unwrap();
    cluster.restart_api_server().await.unwrap();
    eventually(SOON, || async { pods.create(&PostParams::default(), &pod("after")).await }).await.unwrap();
    for name in ["before", "after"] {
        eventually(SOON, || async {
            let phase = pods
                .get(name)
                .await
                .map_err(|error| error.to_string())?
                .status
                .and_then(|status| status.phase);
            if phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{name} is {phase:?}")) }
        })
        .await
        .unwrap();
    }
    assert_eq!(node.name(), "one");

    let dir = cluster.run_dir().to_owned();
    cluster.stop().await;
    assert!(!dir.exists());
}

fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "main", "image": "example" }] },
    }))
    .unwrap()
}
