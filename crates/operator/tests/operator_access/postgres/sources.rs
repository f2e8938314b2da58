//! Where the address of the database comes from.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Based, with_url};
use coder_k8s_scenes::{
    apply,
    scene::{message, status},
};

#[tokio::test]
async fn the_address_comes_from_every_place_that_the_pods_read() {
    for (title, env) in [
        (
            "a Secret",
            json!({"extraEnv": [{"name": "CODER_PG_CONNECTION_URL", "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}]}),
        ),
        (
            "a ConfigMap",
            json!({"extraEnv": [{"name": "CODER_PG_CONNECTION_URL", "valueFrom": {"configMapKeyRef": {"name": "db", "key": "url"}}}]}),
        ),
        ("all of a Secret", json!({"envFrom": [{"prefix": "CODER_PG_", "secretRef": {"name": "env"}}]})),
        (
            "parts of it",
            json!({"extraEnv": [
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
            {"name": "CODER_PG_CONNECTION_URL", "valueFrom": null, "value": "TEMPLATE"}]}),
        ),
    ] {
        let based = Based::new("pg").await;
        let (url, password) = (based.database.url(), based.database.password().to_owned());
        let scene = &based.coder.scene;
        let secret = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": scene.namespace}, "stringData": data});
        // Tools that write Secrets often leave a line end.
        apply(&scene.client, secret("db", json!({"url": format!("{url}\n"), "password": password}))).await;
        apply(&scene.client, secret("env", json!({"CONNECTION_URL": url}))).await;
        apply(
            &scene.client,
            json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "db", "namespace": scene.namespace}, "data": {"url": format!(" {url}\n")}}),
        )
        .await;
        let text = env.to_string().replace("TEMPLATE", &url.replace(&password, "$(PASSWORD)"));
        let mut spec: Value = serde_json::from_str(&text).unwrap();
        spec["operatorAccess"] = json!({"generatedTokenSecretName": "my-token"});
        scene.plane("coder", spec).await;
        let plane = based.until_accepted().await;
        assert_eq!(status(&plane).operator_token_secret_ref.unwrap().name, "my-token", "{title}");
        scene.until_exists::<Secret>("my-token").await;
        assert_eq!(based.database.connections(), 1, "{title}");
    }
}

#[tokio::test]
async fn an_address_that_nobody_may_reach_through_the_operator_is_refused_and_not_described() {
    let based = Based::new("pg").await;
    let scene = &based.coder.scene;
    // Loopback is allowed to this operator; the rest of the machine, the cloud and the API server are not.
    let api_server = scene.cluster().url().strip_prefix("https://").unwrap().trim_end_matches('/');
    let mut said = BTreeSet::new();
    for (n, place) in
        ["[::1]:1", "169.254.169.254:80", "[::ffff:169.254.169.254]", api_server].iter().enumerate()
    {
        let (name, url) = (format!("coder-{n}"), format!("postgres://u:p@{place}/coder"));
        scene.service(&name, based.coder.sim.address());
        scene.plane(&name, with_url(&url)).await;
        let found =
            scene.until_condition(&name, "OperatorAccessReady", "False", Some("AddressNotAllowed")).await;
        let message = message(&found, "OperatorAccessReady");
        said.insert(message.split_once("/coder: ").map(|(_, why)| why.to_owned()).unwrap_or(message));
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said.first().unwrap().contains("--allowed-address-ranges"), "{said:?}");
    // The address of a Service leads there too.
    scene.service("rebound", api_server.parse().unwrap());
    let secret = json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"}});
    based.coder.secret("token", "token", &based.coder.sim.owner_token()).await;
    scene.plane("rebound", json!({"operatorAccess": secret})).await;
    scene.until_condition("rebound", "OperatorAccessReady", "False", Some("AddressNotAllowed")).await;
}

#[tokio::test]
async fn an_address_that_is_missing_or_cannot_be_used_is_named_and_followed() {
    let based = Based::new("pg").await;
    let scene = &based.coder.scene;
    let plane = scene.plane("coder", json!({})).await;
    let plane_now = based.coder.until_condition("OperatorAccessReady", "False", "DatabaseURLMissing").await;
    assert!(
        message(&plane_now, "OperatorAccessReady").contains("CODER_PG_CONNECTION_URL in extraEnv or envFrom")
    );
    based.coder.until_refreshed(1).await;
    let plane_now = scene.until_observed("coder").await;
    assert!(plane_now.finalizers().is_empty(), "{}", plane.name_any());
    assert!(scene.absent::<Secret>("coder-operator-token").await);
    let env = |value: Value| json!({"extraEnv": if value.is_array() { value } else { json!([value]) }});
    // Each entry doubles the one before: expanded without a bound, this is a terabyte.
    let doubling = (1..=40).map(|index| {
        let before = index - 1;
        json!({"name": format!("A{index}"), "value": format!("$(A{before})$(A{before})")})
    });
    let first = json!({"name": "A0", "value": "canary-password"});
    let last = json!({"name": "CODER_PG_CONNECTION_URL", "value": "$(A40)"});
    let doubling: Vec<_> = [first].into_iter().chain(doubling).chain([last]).collect();
    for (value, reason, says) in [
        (
            json!({"name": "CODER_PG_CONNECTION_URL", "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}),
            "SecretMissing",
            "Secret db with the key url is not there",
        ),
        (
            json!({"name": "CODER_PG_CONNECTION_URL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            "SecretMissing",
            "secretKeyRef",
        ),
        (
            json!({"name": "CODER_PG_CONNECTION_URL", "value": "mysql://u:canary-password@db/coder"}),
            "BadConnectionURL",
            "CODER_PG_CONNECTION_URL",
        ),
        (
            json!({"name": "CODER_PG_CONNECTION_URL", "value": "postgres://u:canary-password@db/coder?sslrootcert=/etc/ca.pem"}),
            "BadConnectionURL",
            "databaseCASecretRef",
        ),
        (json!(doubling), "BadConnectionURL", "more than 32 KiB"),
    ] {
        scene.spec("coder", env(value.clone())).await;
        let plane = scene
            .until("coder", |plane: &coder_k8s_api::CoderControlPlane| {
                plane.status.as_ref().and_then(|s| s.workload.observed_generation)
                    == plane.metadata.generation
                    && coder_k8s_scenes::scene::condition(plane, "OperatorAccessReady")
                        .is_some_and(|c| c.reason == reason && c.message.contains(says))
            })
            .await;
        assert!(!message(&plane, "OperatorAccessReady").contains("canary"), "{value}");
        assert!(plane.finalizers().is_empty(), "{value}: nothing was made");
    }
    let auth = json!({"name": "CODER_PG_AUTH", "value": "awsiamrds"});
    let url = with_url(&based.database.url())["extraEnv"][0].clone();
    scene.spec("coder", json!({"extraEnv": [auth, url.clone()]})).await;
    based.coder.until_condition("OperatorAccessReady", "False", "DatabaseAuthUnsupported").await;
    scene.spec("coder", json!({"extraEnv": [url]})).await;
    based.until_accepted().await;
}
