//! Who a server is, and which credential it may see.
//!
//! An address becomes a [`Server`], which takes no credential. Asked who it is, it becomes an [`IdentifiedServer`], and only
//! that takes one: a [`BoundToken`] if the server is the deployment that the token belongs to, or, by the method that says
//! so, a token that belongs to nobody yet ([`IdentifiedServer::first_contact`]). Code that skips the question does not
//! compile.
//!
//! An identification holds for one exchange. Whoever keeps a [`Server`] identifies it again before the next one: another
//! deployment may answer at the same address by then.

use std::{fmt, net::IpAddr};

use secrecy::SecretString;
use serde::Deserialize;
use url::{Host, Url};

use crate::{
    answer,
    client::{CallLimits, Client},
    error::Result,
    license::Entitlements,
    request::{Auth, Request},
};

/// Where a coderd is, and which certificates prove it. `Debug` shows scheme, host and port alone.
#[derive(Clone)]
pub struct Endpoint {
    /// `http` or `https`, host and port. A path is left out: coderd has none.
    pub url: String,
    /// Certificate authorities as PEM. With them, only they are trusted; without, those of the system.
    pub ca: Option<Vec<u8>>,
    /// On whose behalf it is called: the namespace of the object. What one tenant learns of a server, and the requests that
    /// it has under way, never hold back another.
    pub tenant: String,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, ca, tenant: _ } = self;
        let url = Origin::parse(url).map_or_else(|bad| format!("({bad})"), |origin| origin.url.to_string());
        f.debug_struct("Endpoint").field("url", &url).field("ca", &ca.is_some()).finish()
    }
}

impl Endpoint {
    /// A server at this URL, without a credential, on behalf of nobody.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ca: None, tenant: String::new() }
    }
}

/// Why a target cannot be used. Does not quote it: a URL may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// Not a URL.
    #[error("not a URL: {0}")]
    Url(url::ParseError),
    /// Neither `http` nor `https`, or no host.
    #[error("the URL needs http or https and a host")]
    Scheme,
    /// User and password in the URL.
    #[error("the URL holds a user name or password")]
    Credentials,
    /// An empty token, or one that no header can hold.
    #[error("the token is empty or has characters that a token does not have")]
    Token,
    /// The certificate authorities cannot be used.
    #[error("the certificate authorities cannot be read: {0}")]
    Authorities(String),
    /// The spec names no authority, and the system has none either.
    #[error(
        "there is no root certificate to verify it with: name its CA in the spec (`caSecretRef`), or install a CA bundle \
         where the operator runs ({0})"
    )]
    NoSystemAuthorities(String),
}

/// Scheme, host and port: what tells servers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The URL with nothing but scheme, host and port.
    pub(crate) url: Url,
    /// Host and port, for people and the `Host` header.
    pub(crate) authority: String,
    pub(crate) port: u16,
    pub(crate) https: bool,
    /// The address in place of a name.
    pub(crate) literal: Option<IpAddr>,
}

impl Origin {
    pub(crate) fn parse(text: &str) -> Result<Self, BadEndpoint> {
        let mut url = Url::parse(text.trim()).map_err(BadEndpoint::Url)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BadEndpoint::Credentials);
        }
        let https = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(BadEndpoint::Scheme),
        };
        let port = url.port_or_known_default().ok_or(BadEndpoint::Scheme)?;
        let literal = match url.host() {
            Some(Host::Domain(name)) if !name.is_empty() => None,
            Some(Host::Ipv4(ip)) => Some(ip.into()),
            Some(Host::Ipv6(ip)) => Some(ip.into()),
            _ => return Err(BadEndpoint::Scheme),
        };
        url.set_path("");
        url.set_query(None);
        url.set_fragment(None);
        let authority = authority(&url).ok_or(BadEndpoint::Scheme)?;
        Ok(Self { url, authority, port, https, literal })
    }
}

/// Whether two URLs lead to one server: the same scheme, host and port.
pub fn is_same_server(one: &str, two: &str) -> bool {
    match (Origin::parse(one), Origin::parse(two)) {
        (Ok(one), Ok(two)) => one == two,
        _ => false,
    }
}

/// Whether a URL leads to a server by HTTPS.
pub fn is_https(url: &str) -> bool {
    Origin::parse(url).is_ok_and(|origin| origin.https)
}

/// Host and, where it is not the scheme's own, port.
pub(crate) fn authority(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

/// Identity of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BuildInfo {
    /// Version with a leading `v`, such as `v2.30.0`.
    #[serde(deserialize_with = "answer::word")]
    pub version: String,
    /// UUID of the deployment, stored in its database. Empty for a workspace proxy, which is no deployment.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub deployment_id: String,
    /// Whether a workspace proxy answered instead of coderd.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub workspace_proxy: bool,
}

impl Client {
    /// Asks the server who it is. Sends no credential, so it is safe before the server is identified.
    pub async fn build_info(&self) -> Result<BuildInfo> {
        self.fetch(Request::get("get buildinfo", &["buildinfo"]).by(Auth::Nobody)).await
    }
}

/// A coderd at an address. It is called without a credential.
#[derive(Clone, Debug)]
pub struct Server {
    client: Client,
}

impl Server {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// The same server for a caller with a deadline. Clients that come from it have the same limits.
    #[must_use]
    pub fn within(&self, limits: CallLimits) -> Self {
        Self { client: self.client.within(limits) }
    }

    /// Asks the server which deployment it is. One call.
    pub async fn identify(&self) -> Result<IdentifiedServer> {
        let info = self.client.build_info().await?;
        Ok(IdentifiedServer { client: self.client.clone(), info })
    }

    /// What the license allows. coderd answers this to anybody.
    pub async fn entitlements(&self) -> Result<Entitlements> {
        self.client.entitlements().await
    }
}

/// A session token and the deployment that accepted it.
#[derive(Clone)]
pub struct BoundToken {
    token: SecretString,
    deployment_id: String,
}

impl BoundToken {
    /// Binds a token to the deployment that it belongs to, as status records it.
    pub fn new(token: SecretString, deployment_id: impl Into<String>) -> Self {
        Self { token, deployment_id: deployment_id.into() }
    }
}

impl fmt::Debug for BoundToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundToken").field("deployment_id", &self.deployment_id).finish_non_exhaustive()
    }
}

/// Why a server gets no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The server is another deployment than the one that the token belongs to.
    #[error("another deployment answers than the one that the token belongs to")]
    OtherDeployment,
    /// The token cannot be sent at all.
    #[error(transparent)]
    BadToken(#[from] BadEndpoint),
}

/// A server that said which deployment it is.
#[derive(Clone, Debug)]
pub struct IdentifiedServer {
    client: Client,
    info: BuildInfo,
}

impl IdentifiedServer {
    /// The version that the server reports, with a leading `v`.
    pub fn version(&self) -> &str {
        &self.info.version
    }

    /// The deployment that the server belongs to. All replicas of one coderd report the same.
    pub fn deployment_id(&self) -> &str {
        &self.info.deployment_id
    }

    /// A client with a token of this deployment.
    pub fn authenticate(&self, token: &BoundToken) -> Result<Client, CredentialError> {
        if token.deployment_id != self.info.deployment_id {
            return Err(CredentialError::OtherDeployment);
        }
        Ok(self.client.with_token(&token.token)?)
    }

    /// A client with a token that is bound to no deployment: one that nobody sent anywhere yet, or that this very server
    /// issued a moment ago.
    pub fn first_contact(&self, token: &SecretString) -> Result<Client, CredentialError> {
        Ok(self.client.with_token(token)?)
    }

    /// A client for calls that need no session token: those that anybody may make, and those whose credential is an
    /// argument, such as a password or the material of a key.
    pub fn anonymous(&self) -> &Client {
        &self.client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart_by_scheme_host_and_port_alone() {
        let origin = |text| Origin::parse(text).unwrap();
        assert_eq!(origin("http://Coder.example:80/x?y#z"), origin(" http://coder.example "));
        assert_ne!(origin("http://coder.example"), origin("https://coder.example"));
        assert_ne!(origin("http://coder.example"), origin("http://coder.example:8080"));
        assert_eq!(origin("http://[::1]:7080/").authority, "[::1]:7080");
        assert!(origin("http://127.1").literal.is_some() && origin("https://coder").literal.is_none());
        assert!(is_same_server("http://coder.example:80/x", "http://CODER.example"));
        assert!(!is_same_server("http://coder.example", "http://coder.example.evil.test"));
        assert!(!is_same_server("nonsense", "nonsense"));
    }

    #[test]
    fn targets_that_cannot_work_are_refused_without_quoting_them() {
        for (text, expected) in [
            ("coder.example", BadEndpoint::Url(url::ParseError::RelativeUrlWithoutBase)),
            ("ftp://coder.example", BadEndpoint::Scheme),
            ("unix:/run/coder", BadEndpoint::Scheme),
            ("https://admin:hunter2@coder.example", BadEndpoint::Credentials),
        ] {
            let error = Origin::parse(text).unwrap_err();
            assert_eq!(error, expected, "{text}");
            let shown = format!("{error} {:?}", Endpoint::new(text));
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
