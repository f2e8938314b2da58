//! A real workspace proxy and the simulator.

use coder_k8s_coderd::{ProxySettings, RegisteredProxy};
use coder_k8s_testbed::codersim::{Entry, ProxySeen};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{simulated::Simulated, support::request};

const NAME: &str = "eu";

fn settings() -> ProxySettings {
    let [name, display_name, icon] = [NAME, "Europe", "/emojis/1f5fa.png"].map(str::to_owned);
    ProxySettings { name, display_name, icon }
}

/// Registers a proxy, as the operator does.
async fn register(place: &Simulated) -> RegisteredProxy {
    place.owner().create_proxy(&settings()).await.unwrap()
}

/// Runs a proxy with a token, in the shape that the operator gives it.
async fn run(place: &Simulated, token: &SecretString) {
    place.coder.secret("proxy-token", "token", token).await;
    let namespace = &place.scene().namespace;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"selector": {"app": NAME}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}});
    crate::support::apply(&place.scene().client, service).await;
    let from = json!({"secretKeyRef": {"name": "proxy-token", "key": "token"}});
    let container = json!({
        "args": ["wsproxy", "server"],
        "env": [
            {"name": "CODER_PRIMARY_ACCESS_URL", "value": format!("http://coder.{namespace}.svc.cluster.local")},
            {"name": "CODER_PROXY_SESSION_TOKEN", "valueFrom": from},
            {"name": "CODER_HTTP_ADDRESS", "value": "0.0.0.0:8080"},
            {"name": "CODER_ACCESS_URL", "value": format!("http://{NAME}.{namespace}.svc.cluster.local")},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 1},
    });
    place.deploy(NAME, container).await;
}

/// What the simulator sees of the only proxy that is not deleted.
fn seen(place: &Simulated) -> Option<ProxySeen> {
    place.sim().proxies().into_iter().find(|proxy| !proxy.deleted)
}

/// Waits until coderd finds the proxy well.
pub async fn healthy(place: &Simulated) -> ProxySeen {
    place.until("the proxy is well", async || seen(place).filter(|proxy| proxy.status == "ok")).await
}

/// The status of the answer when a token is shown to coderd once more.
pub async fn replayed(place: &Simulated, token: &SecretString) -> u16 {
    let text = format!(
        "GET /api/v2/workspaceproxies/me/crypto-keys?feature=workspace_apps_token HTTP/1.1\r\nHost: x\r\n\
         Coder-External-Proxy-Token: {}\r\nConnection: close\r\n\r\n",
        token.expose_secret()
    );
    request(&place.sim().address().to_string(), &text).await.0
}

/// Waits until a running proxy has found out that its token is no good any more, and has ended.
pub async fn gives_up(place: &Simulated) {
    place
        .until("the proxy gives up", async || {
            place.exits().into_iter().find(|exit| exit.told.is_none() && exit.code != 0)
        })
        .await;
}

#[tokio::test]
async fn a_real_proxy_registers_and_turns_healthy_and_its_token_dies_with_it() {
    let place = Simulated::new("proxies").await;
    let made = register(&place).await;
    let token = made.token.unwrap();
    assert_eq!(replayed(&place, &token).await, 200);
    run(&place, &token).await;
    let proxy = healthy(&place).await;
    assert_eq!(proxy.version, "v2.36.1");
    assert!(proxy.url.starts_with("http://127."), "{proxy:?}");
    assert!(place.refused().is_empty(), "{:?}", place.refused());

    place.owner().delete_proxy(&made.proxy.id).await.unwrap();
    assert_eq!(replayed(&place, &token).await, 401);
    gives_up(&place).await;
}

#[tokio::test]
async fn a_regenerated_token_shuts_the_old_one_out() {
    let place = Simulated::new("regenerated").await;
    let made = register(&place).await;
    let old = made.token.unwrap();
    run(&place, &old).await;
    healthy(&place).await;
    let new = place.owner().update_proxy(&made.proxy.id, &settings(), true).await.unwrap().token.unwrap();
    assert_eq!((replayed(&place, &old).await, replayed(&place, &new).await), (401, 200));
    gives_up(&place).await;
    // With the new token in the Secret, the next start succeeds.
    place.coder.secret("proxy-token", "token", &new).await;
    let mark = place.sim().mark();
    place
        .until("the proxy is back", async || {
            let since = place.sim().since(mark);
            let registered = |entry: &Entry| {
                entry.is("POST", "/api/v2/workspaceproxies/me/register") && entry.status == Some(201)
            };
            since.iter().any(registered).then_some(())
        })
        .await;
    healthy(&place).await;
}
