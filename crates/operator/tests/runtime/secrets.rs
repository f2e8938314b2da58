//! Values of Secrets reach nothing that the process writes, at the most verbose level.

use std::{fs, time::Duration};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_scenes::{Operator, plane::observed, scene::Scene};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const CANARY: &str = "canary-5up3r53cr37";
/// The canary in base64, as a Secret carries it.
const ENCODED: &str = "Y2FuYXJ5LTV1cDNyNTNjcjM3";

fn assert_silent(operator: &Operator) {
    let output = operator.output();
    assert!(output.contains(r#""level":"DEBUG""#), "the log is verbose");
    for secret in [CANARY, ENCODED] {
        let line = output.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_values_are_in_no_line_of_the_log() {
    let scene = Scene::bare("secrets").await;
    let (client, namespace) = (&scene.client, scene.namespace.as_str());
    let operator = scene.start(&["--log-level=trace"]);
    operator.until_leading().await;
    let secrets: Api<Secret> = scene.api();
    let planes: Api<CoderControlPlane> = scene.api();
    let plane = json!({
        "metadata": {"name": "coder"},
        "spec": {
            "licenseSecretRef": {"name": "license"},
            "extraEnv": [{"name": "CODER_PG_CONNECTION_URL", "value": format!("postgres://u:{CANARY}@db/coder")}],
        },
    });
    let plane: CoderControlPlane = serde_json::from_value(json!({
        "apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "metadata": plane["metadata"], "spec": plane["spec"],
    }))
    .unwrap();
    planes.create(&PostParams::default(), &plane).await.unwrap();
    for name in ["license", "unreferenced"] {
        let secret = json!({
            "metadata": {"name": name, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": CANARY}},
            "stringData": {"license": CANARY},
        });
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let change = json!({"stringData": {"license": format!("{CANARY}-2")}});
        secrets.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    }
    observed(client, namespace, "coder").await;
    // Writes that fail say why, and still nothing of the content.
    let conflict = json!({"metadata": {"name": "other"}});
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = scene.api();
    accounts.create(&PostParams::default(), &serde_json::from_value(conflict).unwrap()).await.unwrap();
    let rename = json!({"spec": {"serviceAccount": {"name": "other"}}});
    planes.patch("coder", &PatchParams::default(), &Patch::Merge(&rename)).await.unwrap();
    observed(client, namespace, "coder").await;
    assert_silent(&operator);
    let (_, metrics) = operator.get("--metrics-addr", "/metrics").await;
    assert!(!metrics.contains(CANARY));
}

/// An API server that answers everything with a body that cannot be decoded and holds a secret. The value itself is
/// what a decoder stumbles over, so that an error which quotes it would give it away.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_decoded_is_not_quoted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 16 * 1024];
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    let body = json!({
                        "kind": "SecretList", "apiVersion": "v1", "metadata": CANARY,
                        "items": [{"metadata": CANARY, "data": {"token": ENCODED}}], "spec": CANARY, "status": CANARY,
                    })
                    .to_string();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let folder = std::env::temp_dir().join(format!("coder-k8s-canary-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let kubeconfig = folder.join("kubeconfig");
    fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        ),
    )
    .unwrap();
    let operator =
        Operator::start_with("nobody".into(), &kubeconfig, folder.join("output"), &["--log-level=trace"]);
    operator
        .until(|lines| {
            let failed = |line: &&serde_json::Value| {
                line["message"].as_str().is_some_and(|m| m.contains("cannot be decoded"))
            };
            (lines.iter().filter(failed).count() > 3).then_some(())
        })
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_silent(&operator);
    let (_, ready) = operator.get("--health-addr", "/readyz").await;
    assert!(ready.contains("cannot be decoded") && !ready.contains(CANARY), "{ready}");
    drop(operator);
    fs::remove_dir_all(&folder).unwrap();
}
