//! One request before it is sent.

use std::borrow::Cow;

use http::Method;
use secrecy::{ExposeSecret, SecretString, zeroize::Zeroizing};
use serde::Serialize;

/// What a call is, for those who count it or make it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it does: a verb and a thing, never an object's name.
    pub name: &'static str,
    /// Whether it changes anything in coderd.
    pub writes: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    /// Anybody.
    Nobody,
    /// The bearer of the session token.
    Session,
    /// The bearer of a provisioner key.
    ProvisionerKey,
    /// The bearer of the token of a workspace proxy.
    Proxy,
}

/// Peculiarities of a route's refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// None.
    Plain,
    /// Adding a license: any 400 is about the license, and a duplicate is known by its text.
    AddsLicense,
    /// Answers 500 where 403 is meant.
    HidesForbidden,
}

/// A request.
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) method: Method,
    /// Each one is a part of the path, encoded when sent.
    pub(crate) path: Vec<Cow<'static, str>>,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<Zeroizing<Vec<u8>>>,
    pub(crate) auth: Auth,
    pub(crate) surface: Surface,
    /// What was put into the request and must not come back in an error.
    pub(crate) secrets: Vec<SecretString>,
    /// A provisioner key, or the token of a workspace proxy.
    pub(crate) key: Option<SecretString>,
}

impl Request {
    /// A request below `/api/v2`, by the bearer of the session token.
    pub(crate) fn new(method: Method, name: &'static str) -> Self {
        let writes = method != Method::GET;
        Self {
            call: Call { name, writes },
            method,
            path: vec!["api".into(), "v2".into()],
            query: Vec::new(),
            body: None,
            auth: Auth::Session,
            surface: Surface::Plain,
            secrets: Vec::new(),
            key: None,
        }
    }

    pub(crate) fn get(name: &'static str) -> Self {
        Self::new(Method::GET, name)
    }

    pub(crate) fn post(name: &'static str) -> Self {
        Self::new(Method::POST, name)
    }

    pub(crate) fn delete(name: &'static str) -> Self {
        Self::new(Method::DELETE, name)
    }

    /// Fixed parts of the path.
    pub(crate) fn at(mut self, parts: &'static str) -> Self {
        self.path.extend(parts.split('/').map(Cow::Borrowed));
        self
    }

    /// A part of the path that comes from outside.
    pub(crate) fn part(mut self, part: &str) -> Self {
        self.path.push(part.to_owned().into());
        self
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Self {
        // A body of ours is made of strings, numbers and maps of strings, which always serialize.
        self.body = serde_json::to_vec(body).ok().map(Zeroizing::new);
        self
    }

    pub(crate) fn by(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    pub(crate) fn on(mut self, surface: Surface) -> Self {
        self.surface = surface;
        self
    }

    /// Names something that was sent and must not come back in an error.
    pub(crate) fn hiding(mut self, secret: &SecretString) -> Self {
        self.secrets.push(secret.clone());
        self
    }

    pub(crate) fn with_key(mut self, key: &SecretString) -> Self {
        self.key = Some(key.clone());
        self.hiding(key).by(Auth::ProvisionerKey)
    }

    pub(crate) fn with_proxy_token(mut self, token: &SecretString) -> Self {
        self.key = Some(token.clone());
        self.hiding(token).by(Auth::Proxy)
    }

    /// Parts that a URL would drop or read as another place. They name nothing in coderd.
    pub(crate) fn bad_part(&self) -> bool {
        self.path.iter().any(|part| matches!(part.trim(), "" | "." | ".."))
    }

    pub(crate) fn secret_texts(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(ExposeSecret::expose_secret)
    }
}
