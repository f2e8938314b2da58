//! The requests of a running workspace proxy, and the health checks of coderd.
//!
//! A proxy sends its token in a header of its own, registers itself every few seconds, and keeps a websocket open,
//! whose calls are never answered here. coderd asks it for a health report after each of these, and when the last
//! report is old.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use uuid::Uuid;

use super::{
    Shared,
    drpc::Wire,
    message::{Asked, Reply, Then},
    serve::understood,
    state::{Proxy, Replica, State},
    wire,
};

pub(super) const TOKEN: &str = "coder-external-proxy-token";
/// The newest protocol version of the coordination that is accepted.
const TAILNET_API: (u32, u32) = (2, 10);
const FIRST_REGION: usize = 10_001;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Age of a report after which the next check is due.
const INTERVAL: SignedDuration = SignedDuration::from_secs(60);

#[derive(Deserialize)]
struct Registration {
    #[serde(default)]
    access_url: String,
    #[serde(default)]
    wildcard_hostname: String,
    #[serde(default)]
    derp_enabled: bool,
    #[serde(default)]
    derp_only: bool,
    #[serde(default)]
    replica_id: String,
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct Deregistration {
    #[serde(default)]
    replica_id: String,
}

/// Health report of a proxy.
#[derive(Deserialize)]
struct Report {
    errors: Option<Vec<String>>,
    warnings: Option<Vec<String>>,
}

impl State {
    /// Routes below `/workspaceproxies/me`.
    pub(super) fn proxy_itself(&mut self, asked: &Asked, rest: &[&str]) -> Result<Reply, Reply> {
        let at = self.proxy_of(asked)?;
        match (asked.method.as_str(), rest) {
            ("GET", ["crypto-keys"]) => self.get_crypto_keys(asked),
            ("POST", ["register"]) => self.post_register(asked, at),
            ("POST", ["deregister"]) => self.post_deregister(asked, at),
            ("GET", ["coordinate"]) => {
                let version = asked.param("version").filter(|text| !text.is_empty()).unwrap_or("1.0");
                understood(TAILNET_API, version).map_err(|detail| {
                    Reply::error(400, "Unknown or unsupported API version").validation("version", &detail)
                })?;
                Ok(wire::accept(asked)?.then(Then::Coordinate))
            }
            _ => Err(Reply::no_route()),
        }
    }

    /// The proxy whose token the request has.
    fn proxy_of(&self, asked: &Asked) -> Result<usize, Reply> {
        let token =
            asked.header(TOKEN).ok_or_else(|| Reply::error(401, "Missing required external proxy token"))?;
        let invalid = || Reply::error(401, "Invalid external proxy token");
        let (id, secret) = token.split_once(':').ok_or_else(invalid)?;
        if Uuid::parse_str(id).is_err() || secret.len() != 64 {
            return Err(invalid());
        }
        let at = self.proxies.iter().position(|proxy| proxy.id == id);
        let at = at.ok_or_else(|| invalid().detail("Proxy not found."))?;
        match self.proxies.get(at) {
            Some(proxy) if proxy.deleted => Err(invalid().detail("Proxy has been deleted.")),
            Some(proxy) if proxy.secret != secret => Err(invalid().detail("Invalid proxy token secret.")),
            _ => Ok(at),
        }
    }

    fn get_crypto_keys(&self, asked: &Asked) -> Result<Reply, Reply> {
        let secret = match asked.param("feature").unwrap_or_default() {
            "" => return Err(Reply::error(400, "Missing feature query parameter.")),
            "workspace_apps_api_key" => &self.proxy_secrets.api_key,
            "workspace_apps_token" => &self.proxy_secrets.token,
            other => return Err(Reply::error(400, &format!("Invalid feature: {other:?}"))),
        };
        let starts = self.now() - SignedDuration::from_hours(1);
        let key = json!({ "feature": asked.param("feature"), "secret": secret, "sequence": 1,
            "starts_at": starts.to_string(), "deletes_at": "0001-01-01T00:00:00Z" });
        Ok(Reply::json(200, json!({ "crypto_keys": [key] })))
    }

    fn post_register(&mut self, asked: &Asked, at: usize) -> Result<Reply, Reply> {
        let Registration { access_url, wildcard_hostname, derp_enabled, derp_only, replica_id, version } =
            asked.json()?;
        check_url(&access_url).map_err(|detail| Reply::error(400, "URL is invalid.").detail(detail))?;
        if Uuid::parse_str(&replica_id).map_or(true, |id| id.is_nil()) {
            return Err(Reply::error(400, "Replica ID is invalid."));
        }
        if derp_only && !derp_enabled {
            return Err(Reply::error(400, "DerpOnly cannot be true when DerpEnabled is false."));
        }
        match self.replicas.iter().find(|known| known.id == replica_id) {
            None => self.replicas.push(Replica { id: replica_id, stopped: false }),
            // A replica that deregistered is not registered again.
            Some(known) if known.stopped => {
                return Err(internal(&format!("replica {replica_id} is marked stopped")));
            }
            Some(_) => {}
        }
        let mesh = if derp_enabled { self.proxy_secrets.mesh.as_str() } else { "" };
        let reply = json!({ "derp_mesh_key": mesh, "derp_region_id": FIRST_REGION + at,
            "derp_map": { "Regions": {} }, "derp_force_websockets": false, "sibling_replicas": [] });
        let now = self.now();
        let proxy = self.proxies.get_mut(at).ok_or_else(Reply::not_found)?;
        (proxy.url, proxy.wildcard_hostname, proxy.version) = (access_url, wildcard_hostname, version);
        (proxy.derp_enabled, proxy.derp_only, proxy.updated_at) = (derp_enabled, derp_only, now);
        Ok(Reply::json(201, reply).then(Then::CheckProxy(proxy.id.clone())))
    }

    fn post_deregister(&mut self, asked: &Asked, at: usize) -> Result<Reply, Reply> {
        let body: Deregistration = asked.json()?;
        let id = body.replica_id;
        let found = self.replicas.iter_mut().find(|known| known.id == id);
        let replica = found.ok_or_else(Reply::not_found)?;
        if replica.stopped {
            return Err(internal(&format!("replica {id} is already marked stopped")));
        }
        replica.stopped = true;
        let proxy = self.proxies.get(at).ok_or_else(Reply::not_found)?;
        Ok(Reply::empty(204).then(Then::CheckProxy(proxy.id.clone())))
    }

    /// Proxies whose last report is old.
    fn proxies_due(&self) -> Vec<String> {
        let now = self.now();
        let due = |proxy: &&Proxy| {
            !proxy.deleted && !proxy.url.is_empty() && now.duration_since(proxy.checked_at) >= INTERVAL
        };
        self.proxies.iter().filter(due).map(|proxy| proxy.id.clone()).collect()
    }
}

fn check_url(text: &str) -> Result<(), &'static str> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let rest = rest.ok_or("scheme must be http or https")?;
    match rest.split_once('/') {
        Some((_, path)) if !path.is_empty() => Err("path must be empty or /"),
        _ => Ok(()),
    }
}

fn internal(detail: &str) -> Reply {
    Reply::error(500, "An internal server error occurred.").detail(detail)
}

/// Keeps the calls of a proxy waiting until it disconnects.
pub(super) async fn coordinate(socket: WebSocketStream<impl AsyncRead + AsyncWrite + Unpin>) {
    let unanswered = |stream| async move {
        let mut wire = Wire::new(stream);
        while wire.next().await?.is_some() {}
        Ok(())
    };
    wire::serve(socket, std::future::pending(), unanswered).await;
}

/// Checks every proxy whose last report is old.
pub(super) async fn check_due_proxies(shared: &Arc<Shared>) {
    let due = shared.state.lock().proxies_due();
    for id in due {
        check(shared, &id).await;
    }
}

/// Checks the health of a proxy and stores the result.
pub(super) async fn check(shared: &Arc<Shared>, id: &str) {
    let url = {
        let state = shared.state.lock();
        let proxy = state.proxies.iter().find(|proxy| proxy.id == id && !proxy.url.is_empty());
        proxy.map(|proxy| format!("{}/healthz-report", proxy.url.trim_end_matches('/')))
    };
    let Some(url) = url else { return };
    let (status, errors, warnings) = report(&url).await;
    let mut state = shared.state.lock();
    let now = state.now();
    if let Some(proxy) = state.proxies.iter_mut().find(|proxy| proxy.id == id) {
        (proxy.status, proxy.errors, proxy.warnings) = (status.to_owned(), errors, warnings);
        proxy.checked_at = now;
    }
}

async fn report(url: &str) -> (&'static str, Vec<String>, Vec<String>) {
    let client = reqwest::Client::builder().timeout(TIMEOUT).build();
    let asked = match client {
        Ok(client) => client.get(url).send().await,
        Err(error) => Err(error),
    };
    let answer = match asked {
        Err(error) => return ("unreachable", vec![format!("request to proxy failed: {error}")], Vec::new()),
        Ok(answer) => answer,
    };
    if answer.status() != 200 {
        return ("unhealthy", vec![format!("unexpected status code {}. ", answer.status())], Vec::new());
    }
    match answer.json::<Report>().await {
        Err(_) => {
            let error = format!("proxy url {url:?} is not a coder proxy instance, verify the url is correct");
            ("unhealthy", vec![error], Vec::new())
        }
        Ok(Report { errors, warnings }) => {
            let (errors, warnings) = (errors.unwrap_or_default(), warnings.unwrap_or_default());
            (if errors.is_empty() { "ok" } else { "unhealthy" }, errors, warnings)
        }
    }
}

#[cfg(test)]
mod tests {
    use coder_k8s_coderd::{Client, Connector, Endpoint, ProxySettings, Settings};
    use secrecy::{ExposeSecret, SecretString};
    use serde_json::Value;

    use super::*;
    use crate::{
        codersim::{
            CoderSim, Mode, SimFault,
            client::{self, dial},
        },
        eventually,
    };

    const PATH: &str = "/api/v2/workspaceproxies/me";
    const REPLICA: &str = "7b0a3e52-8c54-4c0e-9a57-0d3e2b1f6a11";
    const SOON: Duration = Duration::from_secs(20);

    /// A deployment with one proxy, played by the test. Its health report comes from another server.
    struct Scene {
        sim: CoderSim,
        elsewhere: CoderSim,
        owner: Client,
        id: String,
        token: SecretString,
    }

    fn settings() -> ProxySettings {
        let [name, display_name, icon] = ["eu", "Europe", "/emojis/1f5fa.png"].map(str::to_owned);
        ProxySettings { name, display_name, icon }
    }

    impl Scene {
        async fn new() -> Self {
            let sim = CoderSim::start(Mode::Licensed).await.unwrap();
            let elsewhere = CoderSim::start(Mode::Agpl).await.unwrap();
            let (target, token) = (Endpoint::new(sim.url()), sim.owner_token());
            let owner = Connector::new(Settings::on_loopback()).client(&target, Some(&token)).unwrap();
            let made = owner.create_proxy(&settings()).await.unwrap();
            Self { sim, elsewhere, owner, id: made.proxy.id, token: made.token.unwrap() }
        }

        fn reports(&self, report: &Value) {
            let headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
            let answer = SimFault::Answer { status: 200, headers, body: report.to_string() };
            self.elsewhere.clear_faults();
            self.elsewhere.fault("GET", "/healthz-report", answer, None);
        }

        async fn post(&self, what: &str, token: &SecretString, body: Value) -> (u16, Value) {
            let request = reqwest::Client::new().post(format!("{}{PATH}/{what}", self.sim.url()));
            let answer = request.header(TOKEN, token.expose_secret()).json(&body).send().await.unwrap();
            (answer.status().as_u16(), answer.json().await.unwrap_or_default())
        }

        async fn register(&self, token: &SecretString) -> (u16, Value) {
            let body = json!({"access_url": self.elsewhere.url(), "wildcard_hostname": "*.eu.example.com",
                "derp_enabled": true, "derp_only": false, "replica_id": REPLICA, "version": "v2.36.0"});
            self.post("register", token, body).await
        }

        async fn turns(&self, status: &str) {
            let seen = eventually(SOON, || async {
                let proxy = self.owner.proxy(&self.id).await.map_err(|error| error.to_string())?;
                if proxy.status.status == status { Ok(()) } else { Err(format!("{proxy:?}")) }
            });
            seen.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_proxy_that_registers_is_looked_at() {
        let scene = Scene::new().await;
        scene.turns("unregistered").await;
        scene.reports(&json!({"errors": [], "warnings": ["old"]}));
        let (status, first) = scene.register(&scene.token).await;
        assert_eq!(status, 201, "{first}");
        scene.turns("ok").await;
        assert_eq!(scene.register(&scene.token).await, (201, first), "mesh and region stay");
        let seen = scene.sim.proxies().remove(0);
        assert_eq!((seen.url, seen.version), (scene.elsewhere.url(), "v2.36.0".to_owned()));
        scene.reports(&json!({"errors": ["ill"], "warnings": []}));
        scene.register(&scene.token).await;
        scene.turns("unhealthy").await;

        // Nothing reports that the proxy is gone. The check that is due when the report is old finds out.
        scene.elsewhere.stop().await;
        assert_eq!(scene.owner.proxy(&scene.id).await.unwrap().status.status, "unhealthy");
        scene.sim.advance(Duration::from_secs(61));
        scene.turns("unreachable").await;
        let gone = scene.post("deregister", &scene.token, json!({"replica_id": REPLICA})).await;
        assert_eq!(gone.0, 204);
        assert_eq!(scene.register(&scene.token).await.0, 500, "who has left does not come back");
    }

    #[tokio::test]
    async fn a_token_is_good_until_it_is_regenerated_or_its_proxy_deleted() {
        let scene = Scene::new().await;
        let renewed = scene.owner.update_proxy(&scene.id, &settings(), true).await.unwrap().token.unwrap();
        let refused =
            |detail: &str| (401, json!({"message": "Invalid external proxy token", "detail": detail}));
        assert_eq!(scene.register(&scene.token).await, refused("Invalid proxy token secret."));
        assert_eq!(scene.register(&renewed).await.0, 201);
        scene.owner.delete_proxy(&scene.id).await.unwrap();
        assert_eq!(scene.register(&renewed).await, refused("Proxy has been deleted."));
        assert_eq!(scene.register(&"nonsense".into()).await.0, 401);
        let log = scene.sim.requests();
        assert!(log.iter().all(|entry| !entry.is("POST", PATH) || entry.credential.is_some()));
        scene.sim.delete_license(1);
        assert_eq!(scene.register(&renewed).await.0, 403, "the license comes before the token");
    }

    #[tokio::test]
    async fn a_proxy_coordinates_and_nothing_is_answered() {
        let scene = Scene::new().await;
        let headers = [(TOKEN, scene.token.expose_secret())];
        let refused =
            dial(&scene.sim, &format!("{PATH}/coordinate?version=3.0"), &headers).await.unwrap_err();
        assert_eq!(refused.0, 400);
        let socket = dial(&scene.sim, &format!("{PATH}/coordinate?version=2.0"), &headers).await.unwrap();
        let mut client = client::Client::open(socket, "/coder.tailnet.v2.Tailnet/Coordinate").await;
        let answer = tokio::time::timeout(Duration::from_millis(300), client.wire.next()).await;
        assert!(answer.is_err(), "{answer:?}");
        assert!(!client.carried.is_finished());
    }

    #[tokio::test]
    async fn a_proxy_gets_the_keys_that_it_signs_with() {
        let scene = Scene::new().await;
        for (feature, status, length) in [
            ("workspace_apps_api_key", 200, 64),
            ("workspace_apps_token", 200, 128),
            ("oidc_convert", 400, 0),
        ] {
            let request = reqwest::Client::new()
                .get(format!("{}{PATH}/crypto-keys?feature={feature}", scene.sim.url()));
            let answer = request.header(TOKEN, scene.token.expose_secret()).send().await.unwrap();
            assert_eq!(answer.status(), status, "{feature}");
            let body: Value = answer.json().await.unwrap();
            let secret = body["crypto_keys"][0]["secret"].as_str().unwrap_or_default();
            assert_eq!(secret.len(), length, "{feature}");
        }
    }
}
