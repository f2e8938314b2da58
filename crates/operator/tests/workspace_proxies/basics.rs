//! The three ways to a token, and what a proxy says about itself.

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::codersim::Mode;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::ResourceExt;
use serde_json::json;

use coder_k8s_scenes::{
    pool::IMAGE,
    proxy::{CHILD, ProxyScene, condition, is, message, object, status},
};

use crate::OPERATOR;

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_of_a_control_plane_is_registered_and_ready() {
    let site = ProxyScene::ready(
        &OPERATOR,
        "proxy",
        json!({"registration": {"displayName": "Europe", "icon": "/e.png"}}),
    )
    .await;
    let only = site.assert_consistent().await;
    assert_eq!(
        (only.name.as_str(), only.display_name.as_str(), only.icon.as_str()),
        ("eu", "Europe", "/e.png")
    );
    let proxy = site.now().await;
    for type_ in [
        "CredentialsReady",
        "Registered",
        "TokenSecretReady",
        "DeploymentReady",
        "ServiceReady",
        "Entitled",
        "ControlPlaneReady",
    ] {
        assert!(is(&proxy, type_, "True", None), "{type_}: {:?}", proxy.status);
    }
    let status = status(&proxy);
    assert_eq!(status.workload.phase.as_deref(), Some("Ready"));
    assert_eq!(status.workload.image.as_deref(), Some(IMAGE), "the control plane's");
    assert_eq!((status.workload.replicas, status.workload.ready_replicas), (Some(1), Some(1)));
    assert!(status.workload.selector.unwrap().contains("app.kubernetes.io/name=coder-workspace-proxy"));
    assert_eq!(status.deployment_id, Some(site.sim().deployment_id()));
    assert_eq!(proxy.finalizers(), ["coder.com/workspace-proxy-cleanup"]);
    assert_eq!(
        status.access_url.unwrap(),
        format!("http://wsproxy-eu.{}.svc.cluster.local", site.scene().namespace)
    );
    // Health is told and gates nothing.
    assert!(is(&proxy, "Healthy", "False", Some("NotReported")), "{:?}", proxy.status);
    site.sim().set_proxy_status("eu", "ok", "v2.36.1");
    let proxy = site.until_condition("Healthy", "True", "Healthy").await;
    let told = (proxy.status.clone().unwrap().health, proxy.status.unwrap().version);
    assert_eq!(told, (Some("ok".into()), Some("v2.36.1".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supplied_token_needs_no_coderd() {
    let site = ProxyScene::plane(&OPERATOR, "direct", Mode::Licensed).await;
    let spec = json!({"primaryAccessURL": "https://coder.example.com", "image": "example.test/coder:v1",
        "proxySessionTokenSecretRef": {"name": "mine"}});
    site.make_as("eu", spec).await;
    site.until_condition("TokenSecretReady", "False", "TokenSecretUnavailable").await;
    assert!(site.scene().absent::<Deployment>(CHILD).await);
    site.coder.secret_text("mine", "token", "anything").await;
    let proxy = site.until_ready().await;
    let told = status(&proxy);
    assert_eq!((told.registered, told.proxy_token_secret_ref.unwrap().name), (Some(false), "mine".into()));
    assert!(proxy.finalizers().is_empty() && condition(&proxy, "Registered").is_none());
    let container = site.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0);
    assert_eq!(container.image.as_deref(), Some("example.test/coder:v1"));
    let env = container.env.unwrap();
    assert_eq!(env[0].value.as_deref(), Some("https://coder.example.com"));
    let before = site.checksum().await;
    site.coder.secret_text("mine", "token", "another").await;
    site.scene().until(CHILD, |made: &Deployment| made.metadata.generation > Some(1)).await;
    assert_ne!(site.checksum().await, before, "the pods roll");
    let secret: Secret = site.scene().until_exists("mine").await;
    assert!(secret.owner_references().is_empty() && secret.labels().is_empty(), "and stays the user's");
    assert_eq!(site.asked("*"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_registers_at_the_address_of_a_control_plane() {
    let site = ProxyScene::plane(&OPERATOR, "bootstrap", Mode::Licensed).await;
    let url = format!("http://coder.{}.svc.cluster.local:80", site.scene().namespace);
    let bootstrap = json!({"coderURL": url, "credentialsSecretRef": {"name": "creds"}, "proxyName": "proxy-eu",
        "displayName": "Europe", "icon": "/emojis/1f310.png", "generatedTokenSecretName": "proxy-eu-token"});
    site.make_as("eu", json!({"image": IMAGE, "bootstrap": bootstrap})).await;
    let proxy = site.until_condition("CredentialsReady", "False", "CredentialsSecretUnavailable").await;
    assert!(!is(&proxy, "Ready", "True", None));
    site.coder.secret("creds", "token", &site.sim().owner_token()).await;
    let only = site.assert_consistent().await;
    assert_eq!((only.name.as_str(), only.display_name.as_str()), ("proxy-eu", "Europe"));
    assert_eq!(site.asked("POST"), 1);
    let told = status(&site.now().await);
    assert_eq!(told.proxy_token_secret_ref.unwrap().name, "proxy-eu-token");
    assert_eq!(told.coder_url, Some(url.clone()));
    let env = site.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
    assert_eq!(env[0].value, Some(url));
    // Without the credentials what works goes on.
    site.scene().delete::<Secret>("creds").await;
    let proxy = site.until_condition("CredentialsReady", "False", "CredentialsSecretUnavailable").await;
    assert!(is(&proxy, "Ready", "True", None) && is(&proxy, "Registered", "True", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_used_in_one_way_alone() {
    let site = ProxyScene::plane(&OPERATOR, "ways", Mode::Licensed).await;
    let both = json!({"primaryAccessURL": "http://c", "proxySessionTokenSecretRef": {"name": "t"},
        "bootstrap": {"coderURL": "http://c", "credentialsSecretRef": {"name": "c"}}});
    let refused = |spec: serde_json::Value| {
        let object: CoderWorkspaceProxy = serde_json::from_value(object("eu", spec)).unwrap();
        let api = site.scene().api::<CoderWorkspaceProxy>();
        async move { api.create(&kube::api::PostParams::default(), &object).await.unwrap_err().to_string() }
    };
    assert!(refused(both).await.contains("more than one way to its token"));
    assert!(refused(json!({})).await.contains("no way to its token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_proxy_is_left_alone() {
    let site = ProxyScene::plane(&OPERATOR, "paused", Mode::Licensed).await;
    let mut paused = object("eu", json!({"controlPlaneRef": {"name": "coder"}}));
    paused["metadata"]["annotations"] = json!({"coder.com/paused": "true"});
    site.scene().create::<CoderWorkspaceProxy>(paused).await;
    let proxy = site.until_condition("Paused", "True", "Annotated").await;
    assert!(message(&proxy, "Paused").contains("coder.com/paused"));
    assert_eq!((site.asked("*"), site.registrations().len()), (0, 0));
    let go = json!({"metadata": {"annotations": {"coder.com/paused": null}}});
    site.scene().edit::<CoderWorkspaceProxy>("eu", go).await;
    site.assert_consistent().await;
    assert!(condition(&site.now().await, "Paused").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_waits_for_its_control_plane() {
    let site = ProxyScene::plane(&OPERATOR, "waits", Mode::Licensed).await;
    site.make_as("eu", json!({"controlPlaneRef": {"name": "later"}})).await;
    let proxy = site.until_condition("ControlPlaneReady", "False", "ControlPlaneUnavailable").await;
    assert!(is(&proxy, "Ready", "False", None) && is(&proxy, "Stalled", "False", None));
    let later = site.coder.another_plane("later").await;
    site.until_settled().await;
    assert_eq!(coder_k8s_scenes::proxy::names(&later), ["eu"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_get_shows_a_ready_proxy_in_one_row() {
    let site =
        ProxyScene::ready(&OPERATOR, "columns", json!({"registration": {"proxyName": "proxy-eu"}})).await;
    site.sim().set_proxy_status("proxy-eu", "ok", "v2.36.1");
    let proxy = site.until_condition("Healthy", "True", "Healthy").await;
    let url = status(&proxy).access_url.unwrap();
    let narrow = json!([
        ["Name", "eu"],
        ["Ready", "True"],
        ["Status", "RolledOut"],
        ["Health", "Healthy"],
        ["Version", "v2.36.1"],
        ["URL", url],
    ]);
    assert_eq!(site.scene().row::<CoderWorkspaceProxy>("eu", false).await, narrow);
    let wide = json!([
        ["Name", "eu"],
        ["Ready", "True"],
        ["Status", "RolledOut"],
        ["Health", "Healthy"],
        ["Version", "v2.36.1"],
        ["URL", url],
        ["Replicas", 1],
        ["Desired", 1],
        ["Registered", true],
        ["Proxy", "proxy-eu"],
        ["Control Plane", "coder"],
        ["Image", IMAGE],
        ["Phase", "Ready"],
    ]);
    assert_eq!(site.scene().row::<CoderWorkspaceProxy>("eu", true).await, wide);
}
