//! Workspace proxies. As in coderd, the license is checked before the credential.

use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    CoderSim, ProxySeen,
    message::{Asked, Reply},
    state::{Proxy, State, id, random_text},
};

impl CoderSim {
    /// Deletes a proxy, as an administrator does in the dashboard.
    pub fn delete_proxy(&self, id: &str) {
        self.with(|state| {
            for proxy in state.proxies.iter_mut().filter(|proxy| proxy.id == id) {
                proxy.deleted = true;
            }
        });
    }

    /// Restores a proxy with its UUID and token, as a restored database does. It is unregistered until it runs.
    pub fn restore_proxy(&self, proxy: &ProxySeen) {
        let ProxySeen { id, name, display_name, icon, deleted, token, status: _, url: _, version: _ } =
            proxy.clone();
        let secret = token.expose_secret().rsplit(':').next().unwrap_or_default().to_owned();
        self.with(|state| {
            let mut restored = Proxy::unregistered(id, secret, state.now());
            (restored.name, restored.display_name, restored.icon, restored.deleted) =
                (name, display_name, icon, deleted);
            state.proxies.push(restored);
            state.issue_all();
        });
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProxyBody {
    id: String,
    name: String,
    display_name: String,
    icon: String,
    regenerate_token: bool,
}

impl State {
    pub(super) fn proxies(&mut self, asked: &Asked, rest: &[&str]) -> Result<Reply, Reply> {
        if !self.entitlements().is_enabled("workspace_proxy") {
            return Err(Reply::not_licensed("Workspace Proxy"));
        }
        if let ["me", rest @ ..] = rest {
            return self.proxy_itself(asked, rest);
        }
        let owner = self.authenticate(asked)?.is_owner();
        match (asked.method.as_str(), rest) {
            ("GET", []) => {
                let listed = self.proxies.iter().filter(|proxy| !proxy.deleted).map(show);
                let regions: Vec<_> = std::iter::once(self.primary()).chain(listed).collect();
                Ok(Reply::json(200, json!({ "regions": regions })))
            }
            ("POST", []) => self.post_proxy(asked, owner),
            ("GET", [proxy]) if self.is_primary(proxy) => Ok(Reply::json(200, self.primary())),
            ("GET", [proxy]) => self.find_proxy(proxy).map(|proxy| Reply::json(200, show(proxy))),
            ("PATCH" | "DELETE", [_]) if !owner => Err(Reply::not_found()),
            ("PATCH", [proxy]) => self.patch_proxy(asked, proxy),
            ("DELETE", [proxy]) if self.is_primary(proxy) => {
                Err(Reply::error(400, "Cannot delete primary proxy"))
            }
            ("DELETE", [proxy]) => {
                self.find_proxy(proxy)?.deleted = true;
                Ok(Reply::error(200, "Proxy has been deleted!"))
            }
            _ => Err(Reply::no_route()),
        }
    }

    fn post_proxy(&mut self, asked: &Asked, owner: bool) -> Result<Reply, Reply> {
        let body: ProxyBody = asked.json()?;
        required("name", &body.name)?;
        if body.name.eq_ignore_ascii_case("primary") {
            let message = "The name \"primary\" is reserved for the primary region.";
            return Err(Reply::error(400, message).validation("name", "Reserved name"));
        }
        if !owner {
            return Err(Reply::unmapped_denial());
        }
        let taken = |proxy: &Proxy| !proxy.deleted && proxy.name.eq_ignore_ascii_case(&body.name);
        if self.proxies.iter().any(taken) {
            let message = format!("Workspace proxy with name {:?} already exists.", body.name);
            return Err(Reply::error(409, &message));
        }
        let (secret, now) = (random_text(64), self.now());
        let mut proxy = Proxy::unregistered(id(), secret, now);
        (proxy.name, proxy.display_name, proxy.icon) = (body.name, body.display_name, body.icon);
        let reply = json!({ "proxy": show(&proxy), "proxy_token": token(&proxy) });
        self.proxies.push(proxy);
        self.issue_all();
        Ok(Reply::json(201, reply))
    }

    fn patch_proxy(&mut self, asked: &Asked, text: &str) -> Result<Reply, Reply> {
        let body: ProxyBody = asked.json()?;
        for (field, value) in [
            ("id", &body.id),
            ("name", &body.name),
            ("display_name", &body.display_name),
            ("icon", &body.icon),
        ] {
            required(field, value)?;
        }
        if self.is_primary(text) {
            if body.name != "primary" {
                return Err(Reply::error(400, "Cannot update name of default primary proxy."));
            }
            return Ok(Reply::json(200, json!({ "proxy": self.primary(), "proxy_token": "" })));
        }
        let now = self.now();
        let own = self.find_proxy(text)?.id.clone();
        let taken =
            |proxy: &Proxy| !proxy.deleted && proxy.id != own && proxy.name.eq_ignore_ascii_case(&body.name);
        if self.proxies.iter().any(taken) {
            let detail =
                "pq: duplicate key value violates unique constraint \"workspace_proxies_lower_name_idx\"";
            return Err(Reply::error(500, "An internal server error occurred.").detail(detail));
        }
        let proxy = self.find_proxy(text)?;
        proxy.name = body.name;
        proxy.display_name = body.display_name;
        proxy.icon = body.icon;
        proxy.updated_at = now;
        let mut shown = String::new();
        if body.regenerate_token {
            proxy.secret = random_text(64);
            shown = token(proxy);
        }
        Ok(Reply::json(200, json!({ "proxy": show(proxy), "proxy_token": shown })))
    }

    fn is_primary(&self, text: &str) -> bool {
        text == "primary" || text == self.deployment_id
    }

    /// By UUID, including deleted ones; by exact name, without deleted ones.
    fn find_proxy(&mut self, text: &str) -> Result<&mut Proxy, Reply> {
        let found =
            self.proxies.iter_mut().find(|proxy| proxy.id == text || !proxy.deleted && proxy.name == text);
        found.ok_or_else(Reply::not_found)
    }

    fn primary(&self) -> Value {
        let now = self.now().to_string();
        json!({
            "id": self.deployment_id, "name": "primary", "display_name": "Default",
            "icon_url": "/emojis/1f3e1.png", "healthy": true, "path_app_url": "http://coder.example",
            "wildcard_hostname": "", "derp_enabled": true, "derp_only": false,
            "status": { "status": "ok", "report": { "errors": [], "warnings": [] }, "checked_at": now },
            "created_at": "0001-01-01T00:00:00Z", "updated_at": "0001-01-01T00:00:00Z", "deleted": false,
            "version": self.version,
        })
    }
}

fn required(field: &str, value: &str) -> Result<(), Reply> {
    if !value.is_empty() {
        return Ok(());
    }
    let detail = "Validation failed for tag \"required\" with value: \"\"";
    Err(Reply::error(400, "Validation failed.").validation(field, detail))
}

fn token(proxy: &Proxy) -> String {
    format!("{}:{}", proxy.id, proxy.secret)
}

fn show(proxy: &Proxy) -> Value {
    json!({
        "id": proxy.id, "name": proxy.name, "display_name": proxy.display_name, "icon_url": proxy.icon,
        "healthy": proxy.status == "ok", "path_app_url": proxy.url, "wildcard_hostname": proxy.wildcard_hostname,
        "derp_enabled": proxy.derp_enabled, "derp_only": proxy.derp_only,
        "status": { "status": proxy.status, "report": { "errors": proxy.errors, "warnings": proxy.warnings },
            "checked_at": proxy.checked_at.to_string() },
        "created_at": proxy.created_at.to_string(), "updated_at": proxy.updated_at.to_string(),
        "deleted": proxy.deleted, "version": proxy.version,
    })
}
