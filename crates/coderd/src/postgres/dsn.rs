//! The connection URL of a database, read by the rules of coderd's driver.
//!
//! A URL or `key=value` pairs; `require` when no `sslmode` is given. Nothing comes from this process: no `PG*`
//! variable, no file, no user of the system. A parameter that names a file is refused, because that file is in
//! coderd's pod and not here.

mod pairs;
mod url;

use coder_k8s_api::Reason;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use secrecy::SecretString;

const DEFAULT_PORT: u16 = 5432;
/// Parameters that name files, or hold what would be in them.
const FILES: [&str; 9] = [
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslinline",
    "sslcrl",
    "sslcrldir",
    "passfile",
    "service",
    "servicefile",
];

/// Where a URL is read.
#[derive(Clone, Copy, Debug)]
pub struct DsnContext<'a> {
    /// The namespace of the control plane, in which a host without dots is a Service.
    pub namespace: &'a str,
}

/// A connection URL that can be used. `Debug` shows host, port, database and user alone.
#[derive(Clone)]
pub struct Dsn {
    /// The host as it is written, which is the name that a certificate has to bear.
    pub(super) host: String,
    /// The host that is dialed.
    pub(super) dial: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<SecretString>,
    pub(super) database: Option<String>,
    pub(super) tls: TlsMode,
    /// `sslrootcert` was given: a file that is not here.
    pub(super) roots_in_a_file: bool,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) options: Option<String>,
    pub(super) search_path: Option<String>,
    pub(super) role: Option<String>,
    server: String,
}

/// How much of the server's identity is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    /// Encrypted; verified only when an authority is given.
    Require,
    VerifyCa,
    VerifyFull,
}

/// Why a connection URL cannot be used. Quotes nothing that could be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDsn {
    /// Nothing is there.
    #[error("the connection URL is empty")]
    Empty,
    /// Not a URL, and not `key=value` pairs.
    #[error("the connection URL cannot be read: {0}")]
    Syntax(&'static str),
    /// Whose password is it?
    #[error("the connection URL names no user")]
    NoUser,
    /// Not a port.
    #[error(
        "the connection URL has a port that is not a number from 1 to 65535; special characters in a user or password \
         are written as %XX"
    )]
    Port,
    /// coderd's driver takes one host.
    #[error("the connection URL names several hosts, which coderd's driver does not support: name one")]
    SeveralHosts,
    /// A socket in coderd's pod.
    #[error("the connection URL names a Unix socket, which is in coderd's pod: name a host")]
    Socket,
    /// A mode that coderd's driver refuses too, or one that does not exist.
    #[error("the connection URL has an sslmode other than disable, require, verify-ca and verify-full")]
    SslMode,
    /// A file in coderd's pod.
    #[error(
        "the connection URL has `{0}`, which names a file or a certificate of coderd's pod and is not used here: \
         leave it out, or choose another `operatorAccess.method`"
    )]
    File(&'static str),
    /// The authority is in a file in coderd's pod.
    #[error(
        "the connection URL has `sslrootcert`, a file in coderd's pod that is not read here: put the authority \
         into a Secret and name it in `operatorAccess.databaseCASecretRef`"
    )]
    RootsInAFile,
}

impl BadDsn {
    /// One stable word, for conditions.
    pub fn reason(&self) -> Reason {
        Reason::BadConnectionUrl
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dsn({} as {})", self.server, self.user)
    }
}

impl Dsn {
    /// Reads a connection URL. White space around it does not matter.
    pub fn parse(text: &str, context: &DsnContext<'_>) -> Result<Self, BadDsn> {
        let text = text.trim();
        if text.is_empty() {
            return Err(BadDsn::Empty);
        }
        let given = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            url::read(text)?
        } else if text.contains("://") {
            return Err(BadDsn::Syntax("it starts with neither postgres:// nor postgresql://"));
        } else {
            pairs::read(text)?
        };
        Self::from_parameters(&given, context)
    }

    fn from_parameters(given: &Parameters, context: &DsnContext<'_>) -> Result<Self, BadDsn> {
        if let Some(file) = FILES.iter().find(|name| given.get(name).is_some()) {
            return Err(BadDsn::File(file));
        }
        let host = given.get("host").unwrap_or("localhost").to_owned();
        if host.contains(',') {
            return Err(BadDsn::SeveralHosts);
        }
        if host.starts_with(['/', '@']) {
            return Err(BadDsn::Socket);
        }
        if host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(BadDsn::Syntax("its host is not a name or an address"));
        }
        let port = match given.get("port") {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(BadDsn::Port)?,
            None => DEFAULT_PORT,
        };
        let tls = match given.get("sslmode").unwrap_or("require") {
            "disable" => TlsMode::Disable,
            "require" => TlsMode::Require,
            "verify-ca" => TlsMode::VerifyCa,
            "verify-full" => TlsMode::VerifyFull,
            _ => return Err(BadDsn::SslMode),
        };
        let user = given.get("user").ok_or(BadDsn::NoUser)?.to_owned();
        let owned = |name| given.get(name).map(str::to_owned);
        let database = owned("dbname");
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let server = format!("{shown}:{port}/{}", database.as_deref().unwrap_or(&user));
        let seconds = given.get("connect_timeout").and_then(|seconds| seconds.parse().ok());
        Ok(Self {
            dial: dialed(&host, context.namespace),
            host,
            port,
            user,
            password: given.get("password").map(SecretString::from),
            database,
            tls,
            roots_in_a_file: given.get("sslrootcert").is_some(),
            connect_timeout: seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
            options: owned("options"),
            search_path: owned("search_path"),
            role: owned("role"),
            server,
        })
    }

    /// Host, port and database, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Whether the connection is encrypted.
    pub fn encrypted(&self) -> bool {
        self.tls != TlsMode::Disable
    }
}

/// A short name is that of a Service in the namespace of coderd, which is seldom that of the operator.
fn dialed(host: &str, namespace: &str) -> String {
    let short = !host.contains('.') && host != "localhost" && host.parse::<IpAddr>().is_err();
    if short { format!("{host}.{namespace}.svc") } else { host.to_owned() }
}

/// Parameters by name; the last one of a name counts, and an empty one is none.
#[derive(Default)]
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    fn get(&self, name: &str) -> Option<&str> {
        let last = self.0.iter().rev().find(|(key, _)| key == name);
        last.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests;
