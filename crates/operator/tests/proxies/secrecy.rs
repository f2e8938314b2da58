//! Tokens reach nothing that the operator writes but their Secret, at no level of the log.

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderWorkspaceProxy, crds};
use coder_k8s_testbed::{
    Cluster,
    codersim::{Mode, SimFault},
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret, events::v1::Event};
use kube::api::ListParams;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{
    pool::Pool,
    proxy::{SECRET, Site},
    scene::{Kind, Scene},
    support::{Operator, grant},
};

async fn all_of<K: Kind>(site: &Site) -> String {
    serde_json::to_string(&site.scene().api::<K>().list(&ListParams::default()).await.unwrap().items).unwrap()
}

async fn silent(site: &Site, operator: &Operator, secrets: &[SecretString], path: &str) {
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
    let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
    let _node = cluster.node("testbed").await.unwrap();
    grant(&cluster.client(), &Install::default()).await;
    let mut scene = Scene::new("secrecy").await;
    (scene.client, scene.namespace) = (cluster.client(), "default".to_owned());
    let site = Site { coder: Pool::within(scene, Mode::Licensed).await };
    let operator = Operator::start(
        &cluster,
        &["--leader-elect=false", "--log-level=trace", "--entitlements-interval=2s", "--verify-interval=5s"],
    );
    operator.host("coder.default.svc.cluster.local", site.sim().address());
    site.coder.make_plane(json!({})).await;
    site.coder.answered().await;
    let token = site.sim().owner_token();
    site.coder.secret("creds", "token", &token).await;
    let url = "http://coder.default.svc.cluster.local";
    let spec = json!({"bootstrap": {"coderURL": url, "credentialsSecretRef": {"name": "creds"}}});
    site.make_as("eu", spec).await;
    let mut secrets = vec![token, site.agrees().await.token];
    silent(&site, &operator, &secrets, "registered").await;
    // Answers that quote what was sent.
    for code in [403, 500] {
        let text = secrets[1].expose_secret();
        let quoted = SimFault::status(code, &format!("{text} is no good"), text);
        let fault = site.sim().fault("GET", "/api/v2/workspaceproxies/me/*", quoted, None);
        site.verified().await;
        silent(&site, &operator, &secrets, &format!("{code} that quotes the token")).await;
        site.sim().clear(fault);
    }
    site.settles().await;
    site.scene().delete::<Secret>(SECRET).await;
    site.scene().until(SECRET, |_: &Secret| true).await;
    secrets.push(site.agrees().await.token);
    silent(&site, &operator, &secrets, "made again").await;
    site.scene().delete::<CoderWorkspaceProxy>("eu").await;
    site.scene().gone::<CoderWorkspaceProxy>("eu").await;
    silent(&site, &operator, &secrets, "deleted").await;
}
