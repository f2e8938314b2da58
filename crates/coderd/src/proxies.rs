//! Workspace proxies and their registration.
//!
//! coderd shows the token of a proxy once. Issuing another token invalidates the previous one at once.

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    answer,
    client::Client,
    error::{CoderdError, ErrorKind, Result},
    request::{Auth, Request, Surface},
};

/// A workspace proxy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Proxy {
    /// UUID of the proxy. For the primary, the UUID of the deployment.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Unique among proxies that are not deleted.
    #[serde(deserialize_with = "answer::word")]
    pub name: String,
    /// Name for people.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub display_name: String,
    /// Path or URL of the icon. A URL may hold the icon itself.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub icon_url: String,
    /// Result of the last health check.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub status: ProxyHealth,
    /// When the proxy was registered.
    #[serde(default, deserialize_with = "answer::time")]
    pub created_at: Option<Timestamp>,
    /// Whether the proxy was deleted. A deleted proxy is still found by its UUID.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub deleted: bool,
    /// Version of the proxy. Empty until its first registration.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub version: String,
}

/// Result of a health check of coderd. The problems that it found are left out: the status names the state alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ProxyHealth {
    /// `ok`, `unreachable`, `unhealthy`, `unregistered`, or `unknown` before the first check.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub status: String,
}

/// How a proxy appears. All fields are required: coderd refuses to update a proxy with an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Name, which must not be `primary`.
    pub name: String,
    /// Name for people.
    pub display_name: String,
    /// Path or URL of the icon.
    pub icon: String,
}

/// A proxy and, if one was issued, its token.
#[derive(Clone, Debug)]
pub struct RegisteredProxy {
    /// The proxy after the request.
    pub proxy: Proxy,
    /// The new token. `None` if the existing one stays valid.
    pub token: Option<SecretString>,
}

#[derive(Deserialize)]
struct RegistrationAnswer {
    proxy: Proxy,
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    proxy_token: String,
}

impl From<RegistrationAnswer> for RegisteredProxy {
    fn from(answer: RegistrationAnswer) -> Self {
        let token = Some(answer.proxy_token).filter(|token| !token.is_empty());
        Self { proxy: answer.proxy, token: token.map(SecretString::from) }
    }
}

#[derive(Deserialize)]
struct Regions {
    #[serde(default, deserialize_with = "answer::or_default")]
    regions: Vec<Proxy>,
}

impl Client {
    /// Lists all proxies. The first one is the primary, which is coderd itself.
    pub async fn proxies(&self) -> Result<Vec<Proxy>> {
        let found: Regions = self.fetch(Request::get("list workspaceproxies", &["workspaceproxies"])).await?;
        Ok(found.regions)
    }

    /// Returns a proxy by UUID or name.
    pub async fn proxy(&self, proxy: &str) -> Result<Proxy> {
        self.fetch(Request::get("get workspaceproxy", &["workspaceproxies", proxy])).await
    }

    /// Registers a proxy and returns its token. `Duplicate`: the name is taken.
    pub async fn create_proxy(&self, settings: &ProxySettings) -> Result<RegisteredProxy> {
        let ProxySettings { name, display_name, icon } = settings;
        let body = json!({ "name": name, "display_name": display_name, "icon": icon });
        let request = Request::post("create workspaceproxy", &["workspaceproxies"], &body);
        self.register(request.on(Surface::HidesForbidden), settings).await
    }

    /// Replaces all settings of a proxy. With `regenerate_token`, the previous token is invalid at once.
    pub async fn update_proxy(
        &self,
        id: &str,
        settings: &ProxySettings,
        regenerate_token: bool,
    ) -> Result<RegisteredProxy> {
        let ProxySettings { name, display_name, icon } = settings;
        let body = json!({
            "id": id, "name": name, "display_name": display_name, "icon": icon,
            "regenerate_token": regenerate_token,
        });
        let path = ["workspaceproxies", id];
        let request = Request::new(http::Method::PATCH, "update workspaceproxy", &path).json(&body);
        self.register(request, settings).await
    }

    /// Succeeds if coderd knows the token. Needs no session token. `Unauthenticated`: coderd does not know it.
    pub async fn prove_proxy_token(&self, token: &SecretString) -> Result<()> {
        // Sent without the required parameter `feature`: coderd checks the token first and then answers 400. A complete
        // request would return the keys that proxies sign with, which the operator must never hold.
        let request = Request::get("prove workspaceproxy token", &["workspaceproxies", "me", "crypto-keys"]);
        if !token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "the token has characters that no token has".to_owned();
            return Err(self.error(request.call, ErrorKind::Unauthenticated(message)));
        }
        match self.call(request.by(Auth::Proxy(token.clone())), |_| Ok(())).await {
            Err(CoderdError { kind: ErrorKind::Invalid(message), .. }) if message.contains("feature") => {
                Ok(())
            }
            result => result,
        }
    }

    /// Deletes a proxy by UUID or name. The name is free again and the token is invalid.
    pub async fn delete_proxy(&self, proxy: &str) -> Result<()> {
        self.perform(Request::delete("delete workspaceproxy", &["workspaceproxies", proxy])).await
    }

    /// Refuses incomplete settings before they are sent: coderd would register the proxy and then never let it be
    /// updated.
    async fn register(&self, request: Request, settings: &ProxySettings) -> Result<RegisteredProxy> {
        let ProxySettings { name, display_name, icon } = settings;
        if [name, display_name, icon].iter().any(|text| text.trim().is_empty()) {
            let message = "a workspace proxy needs a name, a display name and an icon".to_owned();
            return Err(self.error(request.call, ErrorKind::Invalid(message)));
        }
        self.fetch::<RegistrationAnswer>(request).await.map(RegisteredProxy::from)
    }
}
