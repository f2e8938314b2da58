//! Workspace proxies that a deployment knows.

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    call::{Request, Surface},
    client::Client,
    decode,
    error::{Error, ErrorKind},
};

/// A workspace proxy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Proxy {
    /// Its uuid; that of the primary is the deployment's.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its name for people.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub display_name: String,
    /// Its icon.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub icon_url: String,
    /// Whether coderd reached it lately.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub healthy: bool,
    /// What coderd saw.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub status: ProxyHealth,
    /// When it was registered.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// Whether it was deleted; by its uuid it is found nevertheless.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub deleted: bool,
    /// Its version, once it registered.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub version: String,
}

/// What coderd saw of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ProxyHealth {
    /// `ok`, `unreachable`, `unhealthy`, `unregistered` or `unknown`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub status: String,
    /// What is wrong.
    #[serde(default, deserialize_with = "decode::or_default")]
    report: Report,
    /// When coderd looked.
    #[serde(default, deserialize_with = "decode::time")]
    pub checked_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Report {
    #[serde(default, deserialize_with = "decode::or_default")]
    errors: Vec<String>,
    #[serde(default, deserialize_with = "decode::or_default")]
    warnings: Vec<String>,
}

impl ProxyHealth {
    /// What is wrong with it.
    pub fn errors(&self) -> &[String] {
        &self.report.errors
    }

    /// What may go wrong.
    pub fn warnings(&self) -> &[String] {
        &self.report.warnings
    }
}

/// How a proxy is to be called. coderd patches only what is complete: none may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// Its name; not `primary`.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
    /// A path or URL.
    pub icon: String,
}

/// A proxy with its token, which is shown once.
#[derive(Clone, Debug)]
pub struct RegisteredProxy {
    /// The proxy.
    pub proxy: Proxy,
    /// Its credential; None if it stays what it was.
    pub token: Option<SecretString>,
}

#[derive(Deserialize)]
struct Made {
    proxy: Proxy,
    #[serde(default, deserialize_with = "decode::or_default")]
    proxy_token: String,
}

impl From<Made> for RegisteredProxy {
    fn from(made: Made) -> Self {
        let token = Some(made.proxy_token).filter(|token| !token.is_empty());
        Self { proxy: made.proxy, token: token.map(SecretString::from) }
    }
}

#[derive(Deserialize)]
struct Regions {
    #[serde(default, deserialize_with = "decode::or_default")]
    regions: Vec<Proxy>,
}

impl Client {
    /// All proxies; the first one is the primary.
    pub async fn proxies(&self) -> Result<Vec<Proxy>, Error> {
        let found: Regions = self.fetch(Request::get("list workspaceproxies").at("workspaceproxies")).await?;
        Ok(found.regions)
    }

    /// A proxy by uuid or name.
    pub async fn proxy(&self, proxy: &str) -> Result<Proxy, Error> {
        self.fetch(Request::get("get workspaceproxy").at("workspaceproxies").part(proxy)).await
    }

    /// Registers a proxy, and gives its token. `Duplicate`: the name is taken.
    pub async fn create_proxy(&self, settings: &ProxySettings) -> Result<RegisteredProxy, Error> {
        let ProxySettings { name, display_name, icon } = settings;
        let body = json!({ "name": name, "display_name": display_name, "icon": icon });
        let request = Request::post("create workspaceproxy").at("workspaceproxies").json(&body);
        self.made(request.on(Surface::HidesForbidden), settings).await
    }

    /// Changes all settings of a proxy, found by its uuid. A new token ends the old one at once.
    pub async fn update_proxy(
        &self,
        id: &str,
        settings: &ProxySettings,
        regenerate_token: bool,
    ) -> Result<RegisteredProxy, Error> {
        let ProxySettings { name, display_name, icon } = settings;
        let body = json!({
            "id": id, "name": name, "display_name": display_name, "icon": icon,
            "regenerate_token": regenerate_token,
        });
        let request = Request::new(http::Method::PATCH, "update workspaceproxy").at("workspaceproxies");
        self.made(request.part(id).json(&body), settings).await
    }

    /// Whether coderd knows the token of a proxy. Needs no session token. `Unauthenticated`: it does not.
    pub async fn prove_proxy_token(&self, token: &SecretString) -> Result<(), Error> {
        // Asked without saying for what: coderd looks at the token first, and then refuses the question. So it never
        // sends the keys that proxies sign with.
        let request = Request::get("prove workspaceproxy token").at("workspaceproxies/me/crypto-keys");
        let call = request.call;
        if !token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "no token has such characters".to_owned();
            return Err(self.error(call, ErrorKind::Unauthenticated { message }));
        }
        match self.send(request.with_proxy_token(token)).await {
            Ok(_) => Ok(()),
            Err(Error { kind: ErrorKind::Invalid { message }, .. }) if message.contains("feature") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a proxy by uuid or name. Its name is free again, its token void.
    pub async fn delete_proxy(&self, proxy: &str) -> Result<(), Error> {
        self.perform(Request::delete("delete workspaceproxy").at("workspaceproxies").part(proxy)).await
    }

    /// Sends complete settings only: a proxy without icon or display name could not be changed any more.
    async fn made(&self, request: Request, settings: &ProxySettings) -> Result<RegisteredProxy, Error> {
        let ProxySettings { name, display_name, icon } = settings;
        if [name, display_name, icon].iter().any(|text| text.trim().is_empty()) {
            let message = "a workspace proxy needs a name, a display name and an icon".to_owned();
            return Err(self.error(request.call, ErrorKind::Invalid { message }));
        }
        self.fetch::<Made>(request).await.map(RegisteredProxy::from)
    }
}
