//! Checks of who may open the websockets of daemons and proxies. The client has no websockets, so these are plain
//! requests.

use std::sync::Arc;

use secrecy::ExposeSecret;
use serde_json::Value;

use super::{Bench, Check, Finding, Needs, ensure};

const SERVE: &str =
    "/api/v2/organizations/default/provisionerdaemons/serve?provisioner=terraform&version=1.0";
const PROXY: &str = "/api/v2/workspaceproxies/me";
const KEY: &str = "Coder-Provisioner-Daemon-Key";
const TOKEN: &str = "Coder-External-Proxy-Token";

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("daemons need a license, before any credential", Needs::Unlicensed, unlicensed_daemons),
        Check::new("a daemon needs a key", Needs::Licensed, daemon_credentials),
        Check::new("running proxies need a license, before any token", Needs::Unlicensed, unlicensed_proxies),
        Check::new("a running proxy needs its token", Needs::Licensed, proxy_credentials),
        Check::new("an AGPL build has no place for daemons and proxies", Needs::Agpl, agpl),
    ]
}

/// Status and message of the answer to a GET with these headers.
async fn get(bench: &Bench, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String), String> {
    let url = format!("{}{path}", bench.subject.target.url.trim_end_matches('/'));
    let mut request = reqwest::Client::new().get(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.send().await.map_err(|error| error.to_string())?;
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.unwrap_or_default();
    let message = body.get("message").and_then(Value::as_str).unwrap_or_default();
    Ok((status, message.to_owned()))
}

fn says(found: &(u16, String), status: u16, message: &str) -> Finding {
    ensure(*found == (status, message.to_owned()), &format!("{status} {message:?}, not {found:?}"))
}

async fn unlicensed_daemons(bench: Arc<Bench>) -> Finding {
    let message = "External provisioner daemons is an Enterprise feature. Contact sales!";
    let (unknown, owner) = ("x".repeat(43), bench.subject.owner.expose_secret());
    for headers in [vec![], vec![(KEY, unknown.as_str())], vec![("Coder-Session-Token", owner)]] {
        says(&get(&bench, SERVE, &headers).await?, 403, message)?;
    }
    Ok(())
}

async fn daemon_credentials(bench: Arc<Bench>) -> Finding {
    let message = "API key or external provisioner authentication required, but none provided";
    let unknown = "x".repeat(43);
    says(&get(&bench, SERVE, &[]).await?, 401, message)?;
    says(&get(&bench, SERVE, &[(KEY, &unknown)]).await?, 401, message)
}

async fn unlicensed_proxies(bench: Arc<Bench>) -> Finding {
    let message = "Workspace Proxy is a Premium feature. Contact sales!";
    for path in ["/coordinate?version=2.0", "/crypto-keys?feature=workspace_apps_token"] {
        says(&get(&bench, &format!("{PROXY}{path}"), &[]).await?, 403, message)?;
        says(&get(&bench, &format!("{PROXY}{path}"), &[(TOKEN, "nonsense")]).await?, 403, message)?;
    }
    Ok(())
}

async fn proxy_credentials(bench: Arc<Bench>) -> Finding {
    let path = format!("{PROXY}/crypto-keys?feature=workspace_apps_token");
    let unknown = format!("{}:{}", uuid::Uuid::new_v4(), "x".repeat(64));
    says(&get(&bench, &path, &[]).await?, 401, "Missing required external proxy token")?;
    for token in ["nonsense", &unknown] {
        says(&get(&bench, &path, &[(TOKEN, token)]).await?, 401, "Invalid external proxy token")?;
    }
    Ok(())
}

async fn agpl(bench: Arc<Bench>) -> Finding {
    says(&get(&bench, SERVE, &[]).await?, 404, "Route not found.")?;
    says(&get(&bench, &format!("{PROXY}/coordinate?version=2.0"), &[]).await?, 404, "Route not found.")
}
