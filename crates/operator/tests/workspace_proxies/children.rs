//! What a proxy consists of in the cluster.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
};
use kube::ResourceExt;
use secrecy::ExposeSecret;
use serde_json::json;

use coder_k8s_scenes::{
    apply,
    proxy::{CHILD, ProxyScene, is, status},
};

use crate::OPERATOR;

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_has_a_deployment_a_service_and_an_account_of_its_own() {
    // The control plane bears the same name.
    let site = ProxyScene::plane(&OPERATOR, "children", coder_k8s_testbed::codersim::Mode::Licensed).await;
    site.make_as(
        "coder",
        json!({"controlPlaneRef": {"name": "coder"}, "derpOnly": true,
        "extraArgs": ["--verbose"], "service": {"port": 8080, "annotations": {"a": "b"}}}),
    )
    .await;
    let made: Deployment = site.scene().until_exists("wsproxy-coder").await;
    let plane: Deployment = site.scene().until_exists("coder").await;
    assert_ne!(made.uid(), plane.uid());
    let pod = made.spec.as_ref().unwrap().template.spec.clone().unwrap();
    assert_eq!(pod.service_account_name.as_deref(), Some("wsproxy-coder"));
    let container = &pod.containers[0];
    assert_eq!(container.name, "workspace-proxy");
    assert_eq!(container.command.as_deref().unwrap(), ["coder"]);
    let args = ["wsproxy", "server", "--http-address=0.0.0.0:3001", "--derp-only", "--verbose"];
    assert_eq!(container.args.as_deref().unwrap(), args);
    assert_eq!(
        container.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap().path.as_deref(),
        Some("/healthz")
    );
    site.scene().until_exists::<ServiceAccount>("wsproxy-coder").await;
    let service: Service = site.scene().until_exists("wsproxy-coder").await;
    assert_eq!(service.annotations()["a"], "b");
    let port = &service.spec.unwrap().ports.unwrap()[0];
    assert_eq!((port.port, port.name.as_deref()), (8080, Some("http")));
    assert_eq!(port.target_port, Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(3001)));
    for child in [made.labels(), service.metadata.labels.as_ref().unwrap()] {
        assert_eq!(child["app.kubernetes.io/name"], "coder-workspace-proxy");
        assert_eq!(child["app.kubernetes.io/instance"], "coder");
        assert_eq!(child["app.kubernetes.io/managed-by"], "coder-k8s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_name_is_cut_where_it_must_be() {
    let site = ProxyScene::plane(&OPERATOR, "long", coder_k8s_testbed::codersim::Mode::Licensed).await;
    let name = "a".repeat(60);
    site.make_as(&name, json!({"controlPlaneRef": {"name": "coder"}})).await;
    let child = format!("wsproxy-{}-{}", "a".repeat(46), hash(&name));
    let made: Deployment = site.scene().until_exists(&child).await;
    assert_eq!(made.labels()["app.kubernetes.io/instance"], name);
    site.scene().until_exists::<Service>(&child).await;
}

fn hash(name: &str) -> String {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exposed_proxy_has_the_exposed_address() {
    let site = ProxyScene::ready(
        &OPERATOR,
        "exposed",
        json!({"replicas": 2, "expose": {"ingress": {"host": "eu.example.com",
        "wildcardHost": "*.eu.example.com", "tls": {"secretName": "cert"}}}}),
    )
    .await;
    let ingress: Ingress = site.scene().until_exists(CHILD).await;
    let rules = ingress.spec.unwrap().rules.unwrap();
    assert_eq!(rules[0].host.as_deref(), Some("eu.example.com"));
    let proxy = site.until_condition("Exposed", "True", "Exposed").await;
    assert_eq!(status(&proxy).access_url.as_deref(), Some("https://eu.example.com"));
    let env = site.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
    let value =
        |name: &str| env.iter().find(|entry| entry.name == name).and_then(|entry| entry.value.clone());
    assert_eq!(value("CODER_ACCESS_URL").as_deref(), Some("https://eu.example.com"));
    assert_eq!(value("CODER_WILDCARD_ACCESS_URL").as_deref(), Some("*.eu.example.com"));
    assert_eq!(value("CODER_DERP_SERVER_RELAY_URL").as_deref(), Some("http://$(KUBE_POD_IP):3001"));
    site.scene().until_exists::<PodDisruptionBudget>(CHILD).await;
    // What is no longer asked for goes.
    site.edit(json!({"replicas": 1, "expose": null})).await;
    site.scene().until_gone::<Ingress>(CHILD).await;
    site.scene().until_gone::<PodDisruptionBudget>(CHILD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_makes_a_proxy_serve_https() {
    let site = ProxyScene::plane(&OPERATOR, "tls", coder_k8s_testbed::codersim::Mode::Licensed).await;
    site.coder.secret_text("cert", "tls.crt", "any").await;
    site.make(json!({"tls": {"secretNames": ["cert"]}, "service": {"port": 443}})).await;
    let proxy = site.until_ready().await;
    let host = format!("https://{CHILD}.{}.svc.cluster.local", site.scene().namespace);
    assert_eq!(status(&proxy).access_url, Some(host.clone()));
    let ports = async || {
        let service: Service = site.scene().until_exists(CHILD).await;
        let ports = service.spec.unwrap().ports.unwrap();
        ports.into_iter().map(|port| (port.name.unwrap(), port.port)).collect::<Vec<_>>()
    };
    assert_eq!(ports().await, [("https".to_owned(), 443), ("http".to_owned(), 80)]);
    let pod = site.deployment().await.spec.unwrap().template.spec.unwrap();
    let env = pod.containers[0].env.as_ref().unwrap();
    for (name, value) in [
        ("CODER_TLS_ENABLE", "true"),
        ("CODER_TLS_ADDRESS", "0.0.0.0:8443"),
        ("CODER_TLS_CERT_FILE", "/etc/ssl/certs/coder/cert/tls.crt"),
        ("CODER_ACCESS_URL", &host),
    ] {
        let entry = env.iter().find(|entry| entry.name == name);
        assert_eq!(entry.and_then(|entry| entry.value.as_deref()), Some(value), "{name}");
    }
    let token = site.only().token;
    site.edit(json!({"tls": null, "service": {"port": 80}})).await;
    site.until_ready().await;
    assert_eq!(ports().await, [("http".to_owned(), 80)]);
    assert_eq!(site.only().token.expose_secret(), token.expose_secret(), "the same token");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_others_is_left_alone_and_said_to_be_in_the_way() {
    let site = ProxyScene::plane(&OPERATOR, "foreign", coder_k8s_testbed::codersim::Mode::Licensed).await;
    let theirs = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": CHILD, "namespace": site.scene().namespace},
        "spec": {"ports": [{"port": 1}]}});
    apply(&site.scene().client, theirs).await;
    site.make(json!({})).await;
    let proxy = site.until_condition("Conflict", "True", "ForeignObject").await;
    assert!(is(&proxy, "Ready", "False", Some("ForeignObject")) && is(&proxy, "Stalled", "True", None));
    assert!(is(&proxy, "ServiceReady", "False", None));
    site.scene().delete::<Service>(CHILD).await;
    site.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scale_of_a_proxy_is_a_number_like_any_other() {
    let site = ProxyScene::ready(&OPERATOR, "scale", json!({})).await;
    let generation = site.deployment().await.metadata.generation;
    site.edit(json!({"replicas": 0})).await;
    let proxy = site.until_condition("Ready", "True", "ScaledToZero").await;
    assert_eq!(status(&proxy).workload.replicas, Some(0));
    assert_eq!(site.asked("PATCH"), 0);
    assert!(site.deployment().await.metadata.generation > generation);
    site.edit(json!({"replicas": 2})).await;
    let proxy = site.until_condition("Ready", "True", "RolledOut").await;
    assert_eq!(status(&proxy).workload.ready_replicas, Some(2));
}
