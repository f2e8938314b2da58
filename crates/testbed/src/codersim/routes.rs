//! Routing, and the checks in front of the routes.

use serde_json::json;

use super::{
    Mode,
    message::{Asked, Reply},
    state::State,
};

/// Answers a request.
pub(super) fn answer(state: &mut State, asked: &Asked) -> Reply {
    let parts: Vec<&str> = asked.parts.iter().map(String::as_str).collect();
    let reply = match parts.as_slice() {
        ["healthz"] => Reply::text(200, "OK"),
        ["api", "v2", rest @ ..] => match state.limit(asked) {
            Err(refusal) => refusal,
            Ok(()) => api(state, asked, rest).unwrap_or_else(|refusal| refusal),
        },
        // coderd serves the dashboard, a web page, for every other path.
        _ => Reply::raw(
            200,
            vec![("Content-Type".to_owned(), "text/html; charset=utf-8".to_owned())],
            "<!doctype html><html><title>Coder</title></html>".to_owned(),
        ),
    };
    reply.header("X-Coder-Build-Version", &state.version)
}

fn api(state: &mut State, asked: &Asked, path: &[&str]) -> Result<Reply, Reply> {
    match (asked.method.as_str(), path) {
        ("GET", ["buildinfo"]) => Ok(build_info(state)),
        (_, ["buildinfo"]) => Err(Reply::empty(405)),
        ("GET", ["users", "first"]) => Ok(state.get_first_user()),
        ("POST", ["users", "first"]) => state.post_first_user(asked),
        ("POST", ["users", "login"]) => state.post_login(asked),
        ("POST", ["users"]) => state.post_user(asked),
        ("GET", ["users", user]) => state.get_user(asked, user),
        ("POST", ["users", user, "keys", "tokens"]) => state.post_token(asked, user),
        ("GET", ["users", user, "keys", "tokens"]) => state.get_tokens(asked, user),
        ("GET", ["users", user, "keys", "tokens", "tokenconfig"]) => state.get_token_config(asked, user),
        ("DELETE", ["users", user, "keys", id]) => state.delete_token(asked, user, id),
        ("GET", ["organizations"]) => state.get_organizations(asked),
        ("GET", ["organizations", org]) => state.get_organization(asked, org),
        ("GET", ["organizations", org, "provisionerdaemons"]) => state.get_daemons(asked, org),
        ("GET", ["organizations", org, "provisionerjobs"]) => state.get_jobs(asked, org),
        _ if state.mode == Mode::Agpl => Err(Reply::no_route()),
        ("GET", ["organizations", org, "provisionerdaemons", "serve"]) => state.serve(asked, org),
        (_, ["organizations", org, "provisionerkeys", rest @ ..]) => state.keys(asked, org, rest),
        ("GET", ["provisionerkeys", _]) => state.get_key_details(asked),
        ("GET", ["entitlements"]) => Ok(Reply::json(200, state.entitlements().json)),
        (_, ["licenses", rest @ ..]) => state.licenses(asked, rest),
        (_, ["workspaceproxies", rest @ ..]) => state.proxies(asked, rest),
        _ => Err(Reply::no_route()),
    }
}

fn build_info(state: &State) -> Reply {
    Reply::json(
        200,
        json!({
            "external_url": "https://github.com/coder/coder", "version": state.version,
            "dashboard_url": "http://coder.example", "telemetry": false, "workspace_proxy": false,
            "agent_api_version": "2.0", "provisioner_api_version": state.provisioner_api_text(), "upgrade_message": "",
            "deployment_id": state.deployment_id,
        }),
    )
}
