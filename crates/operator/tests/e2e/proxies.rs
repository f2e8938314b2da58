//! A real workspace proxy and the simulator.

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_coderd::{ProxySettings, RegisteredProxy};
use coder_k8s_testbed::codersim::{Entry, ProxySeen};
use k8s_openapi::api::core::v1::Secret;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use coder_k8s_scenes::request;

use crate::{real::IMAGE, simulated::Simulated};

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
    coder_k8s_scenes::apply(&place.scene().client, service).await;
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

#[tokio::test]
async fn a_proxy_from_the_deployment_of_the_operator_turns_healthy_and_its_tokens_die() {
    let place = Simulated::new("operated").await;
    let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderWorkspaceProxy", "metadata": {"name": NAME},
        "spec": {"controlPlaneRef": {"name": "coder"}, "image": IMAGE}});
    place.scene().create::<CoderWorkspaceProxy>(object).await;
    let first = healthy(&place).await;
    let settled = |id: &str| {
        let id = id.to_owned();
        move |proxy: &CoderWorkspaceProxy| {
            let status = proxy.status.clone().unwrap_or_default();
            status.workload.conditions.iter().any(|said| said.type_ == "Ready" && said.status == "True")
                && status.proxy_id.as_ref() == Some(&id)
                && status.health.as_deref() == Some("ok")
        }
    };
    place.scene().until(NAME, settled(&first.id)).await;
    let secret: Secret = place.scene().until_exists("eu-proxy-token").await;
    assert!(secret.data.unwrap()["token"].0 == first.token.expose_secret().as_bytes());
    assert!(place.refused().is_empty(), "{:?}", place.refused());

    // Somebody regenerates the token: it is found out, and the pods get one that is good.
    place.owner().update_proxy(&first.id, &settings(), true).await.unwrap();
    assert_eq!(replayed(&place, &first.token).await, 401);
    let second = place
        .until("the pods have another token", async || {
            let secret = place.scene().api::<Secret>().get("eu-proxy-token").await.ok()?;
            let proxy = seen(&place)?;
            (secret.data?["token"].0 == proxy.token.expose_secret().as_bytes()).then_some(proxy)
        })
        .await;
    place
        .until("a proxy registers with it", async || {
            let good = |entry: &Entry| {
                entry.is("POST", "/api/v2/workspaceproxies/me/register") && entry.status == Some(201)
            };
            let last = place.sim().requests().into_iter().rfind(good)?;
            let before = place.sim().requests().into_iter().find(good)?;
            (last.credential != before.credential).then_some(())
        })
        .await;
    assert_eq!((second.id.as_str(), replayed(&place, &second.token).await), (first.id.as_str(), 200));

    place.scene().delete::<CoderWorkspaceProxy>(NAME).await;
    place.scene().until_gone::<CoderWorkspaceProxy>(NAME).await;
    assert_eq!(replayed(&place, &second.token).await, 401);
    assert!(seen(&place).is_none());
}
