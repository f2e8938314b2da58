//! One request before it is sent: who asks, for what, and what must not come back in an error.

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

/// The credential of a request. Each kind has a header of its own.
pub(crate) enum Auth {
    /// None.
    Nobody,
    /// The session token of the client.
    Session,
    ProvisionerKey(SecretString),
    /// The token of a workspace proxy.
    Proxy(SecretString),
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
    pub(crate) path: Vec<String>,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<Zeroizing<Vec<u8>>>,
    pub(crate) auth: Auth,
    pub(crate) surface: Surface,
    secrets: Vec<SecretString>,
}

impl Request {
    /// A request below `/api/v2`, with the session token.
    pub(crate) fn new(method: Method, name: &'static str, path: &[&str]) -> Self {
        let writes = method != Method::GET;
        Self {
            call: Call { name, writes },
            method,
            path: ["api", "v2"].iter().chain(path).map(|part| (*part).to_owned()).collect(),
            query: Vec::new(),
            body: None,
            auth: Auth::Session,
            surface: Surface::Plain,
            secrets: Vec::new(),
        }
    }

    pub(crate) fn get(name: &'static str, path: &[&str]) -> Self {
        Self::new(Method::GET, name, path)
    }

    pub(crate) fn post(name: &'static str, path: &[&str], body: &impl Serialize) -> Self {
        Self::new(Method::POST, name, path).json(body)
    }

    pub(crate) fn delete(name: &'static str, path: &[&str]) -> Self {
        Self::new(Method::DELETE, name, path)
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

    pub(crate) fn by(self, auth: Auth) -> Self {
        Self { auth, ..self }
    }

    pub(crate) fn on(self, surface: Surface) -> Self {
        Self { surface, ..self }
    }

    /// Names something that is part of the body and must not come back in an error.
    pub(crate) fn hiding(mut self, secret: &SecretString) -> Self {
        self.secrets.push(secret.clone());
        self
    }

    /// Whether a URL would drop a part of the path or read it as another place. Such a part names nothing in coderd.
    pub(crate) fn has_bad_part(&self) -> bool {
        self.path.iter().any(|part| matches!(part.trim(), "" | "." | ".."))
    }

    pub(crate) fn secret_texts(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(ExposeSecret::expose_secret)
    }
}
