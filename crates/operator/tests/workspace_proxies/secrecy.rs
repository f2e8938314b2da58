//! Tokens reach nothing that the operator writes but their Secret, at no level of the log.

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::codersim::{Mode, SimFault};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret, events::v1::Event};
use kube::api::ListParams;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use coder_k8s_scenes::{
    Operator,
    pool::PoolScene,
    proxy::{ProxyScene, SECRET},
    scene::{Kind, Scene},
};

async fn all_of<K: Kind>(site: &ProxyScene) -> String {
    serde_json::to_string(&site.scene().api::<K>().list(&ListParams::default()).await.unwrap().items).unwrap()
}

async fn silent(site: &ProxyScene, operator: &Operator, secrets: &[SecretString], path: &str) {
    let mut metadata = site.scene().api::<Secret>().list(&ListParams::default()).await.unwrap().items;
    for secret in &mut metadata {
        secret.data = None;
    }
    let written = [
        ("log", operator.output()),
        ("events", all_of::<Event>(site).await),
        ("proxies", all_of::<CoderWorkspaceProxy>(site).await),
        ("deployments", all_of::<Deployment>(site).await),
        ("metadata of Secrets", serde_json::to_string(&metadata).unwrap()),
        ("metrics", operator.get("--metrics-addr", "/metrics").await.1),
    ];
    for secret in secrets {
        // The public half of a proxy's token is its UUID.
        let plain = secret.expose_secret().rsplit(':').next().unwrap();
        for (what, text) in &written {
            assert_eq!(text.lines().find(|line| line.contains(plain)), None, "{path}: {what}");
        }
        for entry in site.sim().requests() {
            assert!(!format!("{}?{}", entry.path, entry.query).contains(plain), "{path}: in a URL");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_in_no_log_event_status_or_metric() {
    let scene = Scene::unmanaged("secrecy").await;
    let site = ProxyScene { coder: PoolScene::within(scene, Mode::Licensed).await };
    let operator = site.scene().start(&[
        "--leader-elect=false",
        "--log-level=trace",
        "--entitlements-interval=2s",
        "--verify-interval=5s",
    ]);
    site.coder.make_plane(json!({})).await;
    site.coder.until_answered().await;
    let token = site.sim().owner_token();
    site.coder.secret("creds", "token", &token).await;
    let url = format!("http://coder.{}.svc.cluster.local", site.scene().namespace);
    let spec = json!({"bootstrap": {"coderURL": url, "credentialsSecretRef": {"name": "creds"}}});
    site.make_as("eu", spec).await;
    let mut secrets = vec![token, site.assert_consistent().await.token];
    silent(&site, &operator, &secrets, "registered").await;
    // Answers that quote what was sent.
    for code in [403, 500] {
        let text = secrets[1].expose_secret();
        let quoted = SimFault::status(code, &format!("{text} is no good"), text);
        let fault = site.sim().fault("GET", "/api/v2/workspaceproxies/me/*", quoted, None);
        site.until_verified().await;
        silent(&site, &operator, &secrets, &format!("{code} that quotes the token")).await;
        site.sim().clear(fault);
    }
    site.until_settled().await;
    site.scene().delete::<Secret>(SECRET).await;
    site.scene().until(SECRET, |_: &Secret| true).await;
    secrets.push(site.assert_consistent().await.token);
    silent(&site, &operator, &secrets, "made again").await;
    site.scene().delete::<CoderWorkspaceProxy>("eu").await;
    site.scene().until_gone::<CoderWorkspaceProxy>("eu").await;
    silent(&site, &operator, &secrets, "deleted").await;
}
