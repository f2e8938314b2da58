//! Where the system has no root certificates, as in an image without a CA bundle: the operator works with what has a CA of
//! its own, and says what is missing where it needs one.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use coder_k8s_scenes::{apply, scene::Scene, scene::message};
use coder_k8s_testbed::codersim::{CoderSim, Mode};
use secrecy::ExposeSecret;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn without_root_certificates_only_a_server_that_needs_them_cannot_be_called() {
    let scene = Scene::unmanaged("roots").await;
    let issued =
        rcgen::generate_simple_self_signed(vec![format!("own-ca.{}.svc.cluster.local", scene.namespace)])
            .unwrap();
    let sim = CoderSim::builder(Mode::Unlicensed).tls(issued.cert.pem(), issued.signing_key.serialize_pem());
    let sim = sim.start().await.unwrap();
    scene.service("own-ca", sim.address());
    let operator = scene.start_without_roots(&["--allowed-coder-urls=https://coder.example.test"]);
    operator.until_leading().await;
    for (name, key, value) in
        [("token", "token", sim.owner_token().expose_secret()), ("ca", "ca.crt", issued.cert.pem().as_str())]
    {
        let metadata = json!({"name": name, "namespace": scene.namespace});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {key: value}});
        apply(&scene.client, secret).await;
    }
    let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"}});
    let mut with_ca = access.clone();
    with_ca["caSecretRef"] = json!({"name": "ca"});
    scene.plane("own-ca", json!({"operatorAccess": with_ca, "tls": {"secretNames": ["cert"]}})).await;
    scene.until_condition("own-ca", "OperatorAccessReady", "True", Some("TokenAccepted")).await;

    let mut https = access;
    https["apiURL"] = json!("https://coder.example.test");
    scene.plane("verified", json!({"operatorAccess": https})).await;
    let plane = scene.until_condition("verified", "OperatorAccessReady", "False", Some("BadTarget")).await;
    let said = message(&plane, "OperatorAccessReady");
    for part in ["there is no root certificate to verify it with", "`caSecretRef`", "CA bundle"] {
        assert!(said.contains(part), "{said}");
    }
}

/// What an operator without root certificates says first, when the API server is at this address and its CA is not told: the
/// line with which it starts, or the error with which it ends.
fn first_words(server: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, roots) = (folder.path().join("kubeconfig"), folder.path().join("roots"));
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "x", "user": {"token": "x"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    fs::write(&kubeconfig, text.to_string()).unwrap();
    fs::write(&roots, "").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_coder-k8s"))
        .args([
            "controller",
            "--log-format=json",
            "--health-addr=off",
            "--metrics-addr=off",
            "--admin-addr=off",
        ])
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .env("SSL_CERT_FILE", roots)
        .env_remove("SSL_CERT_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains(" starts") || line.starts_with("coder-k8s: "));
    let _ = child.kill();
    child.wait().unwrap();
    said.unwrap_or_default()
}

#[test]
fn an_api_server_that_cannot_be_verified_is_an_error_that_says_what_to_do() {
    let said = first_words("https://127.0.0.1:9");
    assert!(
        said.contains("name its CA in the kubeconfig (certificate-authority), or install a CA bundle"),
        "{said}"
    );
    let said = first_words("http://127.0.0.1:9");
    assert!(said.contains(" starts"), "nothing is to be verified: {said}");
}
