//! The connection URL of a database, read by the rules of the driver of coderd (lib/pq).
//!
//! It is a URL or `key=value` pairs; `sslmode` defaults to `require`. Nothing is taken from the process of the
//! operator: no `PG*` variable, no file, no system user. A parameter that names a file is refused, because the file
//! exists in the pods of coderd and not here.

use std::borrow::Cow;
use std::fmt;
use std::iter::Peekable;
use std::net::IpAddr;
use std::str::Chars;
use std::time::Duration;

use coder_k8s_api::Reason;
use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use url::form_urlencoded;

const DEFAULT_PORT: u16 = 5432;
/// Parameters that name a file, or that contain what would be in one.
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

/// Where the URL is used.
#[derive(Clone, Copy, Debug)]
pub struct DsnContext<'a> {
    /// Namespace of the control plane. A host without dots is the name of a Service in it.
    pub namespace: &'a str,
}

/// A usable connection URL. `Debug` shows host, port, database and user only.
#[derive(Clone)]
pub struct Dsn {
    /// The host as written. The certificate of the server must be for this name.
    pub(super) host: String,
    /// The host to connect to.
    pub(super) dial: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: Option<SecretString>,
    pub(super) database: Option<String>,
    pub(super) tls: TlsMode,
    /// Whether `sslrootcert` is given, which names a file that does not exist here.
    pub(super) roots_in_a_file: bool,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) options: Option<String>,
    pub(super) search_path: Option<String>,
    pub(super) role: Option<String>,
    server: String,
}

/// How much of the identity of the server is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    /// Encrypted. Verified only if a CA is given.
    Require,
    VerifyCa,
    VerifyFull,
}

/// Why a connection URL is not usable. Never quotes a part that could be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDsn {
    /// The value is empty.
    #[error("the connection URL is empty")]
    Empty,
    /// Neither a URL nor `key=value` pairs.
    #[error("the connection URL cannot be read: {0}")]
    Syntax(&'static str),
    /// No user. libpq would take that of the process, which means nothing here.
    #[error("the connection URL names no user")]
    NoUser,
    /// Not a port number.
    #[error(
        "the connection URL has a port that is not a number from 1 to 65535; special characters in a user or password \
         are written as %XX"
    )]
    Port,
    /// More than one host, which the driver of coderd does not support.
    #[error("the connection URL names several hosts, which coderd's driver does not support: name one")]
    SeveralHosts,
    /// A Unix socket, which exists in the pods of coderd only.
    #[error("the connection URL names a Unix socket, which is in coderd's pod: name a host")]
    Socket,
    /// An `sslmode` that the driver of coderd refuses too, or that does not exist.
    #[error("the connection URL has an sslmode other than disable, require, verify-ca and verify-full")]
    SslMode,
    /// A file in the pods of coderd.
    #[error(
        "the connection URL has `{0}`, which names a file or a certificate of coderd's pod and is not used here: \
         leave it out, or choose another `operatorAccess.method`"
    )]
    File(&'static str),
    /// The CA is in a file in the pods of coderd.
    #[error(
        "the connection URL has `sslrootcert`, a file in coderd's pod that is not read here: put the authority \
         into a Secret and name it in `operatorAccess.databaseCASecretRef`"
    )]
    RootsInAFile,
}

impl BadDsn {
    /// The reason for conditions.
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
    /// Reads a connection URL. Surrounding white space is ignored.
    pub fn parse(text: &str, context: &DsnContext<'_>) -> Result<Self, BadDsn> {
        let text = text.trim();
        if text.is_empty() {
            return Err(BadDsn::Empty);
        }
        let given = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Parameters::of_url(text)?
        } else if text.contains("://") {
            return Err(BadDsn::Syntax("it starts with neither postgres:// nor postgresql://"));
        } else {
            Parameters::of_pairs(text)?
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

    /// Whether nobody verifies who answers, although the connection is encrypted: `sslmode=require` without a CA, which is
    /// the default. Whoever asks for `disable` knows.
    pub fn is_unverified(&self, has_ca: bool) -> bool {
        self.tls == TlsMode::Require && !has_ca
    }

    /// Host, port and database, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// A name without dots is a Service in the namespace of coderd, which is rarely the namespace of the operator.
fn dialed(host: &str, namespace: &str) -> String {
    let short = !host.contains('.') && host != "localhost" && host.parse::<IpAddr>().is_err();
    if short { format!("{host}.{namespace}.svc") } else { host.to_owned() }
}

/// Parameters by name. The last one of a name counts, and an empty value counts as absent.
#[derive(Default)]
struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads a URL. Parameters of the query override the parts of the URL.
    fn of_url(text: &str) -> Result<Self, BadDsn> {
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let (host, port) = host_and_port(place)?;

        let mut given = Self::default();
        for (name, part) in [("user", user), ("password", password), ("host", host), ("dbname", path)] {
            given.set(name, decoded(part)?);
        }
        given.set("port", port);
        let mut seen = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            // As in the driver of coderd, the first parameter of a name counts in a query.
            if !value.is_empty() && !seen.contains(&name) {
                given.set(name.clone(), value);
            }
            seen.push(name);
        }
        Ok(given)
    }

    /// Reads `key=value` pairs, with the quotes and backslashes of libpq.
    fn of_pairs(text: &str) -> Result<Self, BadDsn> {
        let mut given = Self::default();
        let mut rest = text.chars().peekable();
        loop {
            skip_space(&mut rest);
            if rest.peek().is_none() {
                return Ok(given);
            }
            let mut name = String::new();
            while let Some(c) = rest.next_if(|c| !c.is_whitespace() && *c != '=') {
                name.push(c);
            }
            skip_space(&mut rest);
            if name.is_empty() || rest.next_if_eq(&'=').is_none() {
                return Err(BadDsn::Syntax("a parameter has no = after its name"));
            }
            skip_space(&mut rest);
            let value = if rest.next_if_eq(&'\'').is_some() { quoted(&mut rest)? } else { plain(&mut rest)? };
            given.set(name, value);
        }
    }

    fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    fn get(&self, name: &str) -> Option<&str> {
        let last = self.0.iter().rev().find(|(key, _)| key == name);
        last.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

fn host_and_port(place: &str) -> Result<(&str, &str), BadDsn> {
    if place.contains(',') {
        return Err(BadDsn::SeveralHosts);
    }
    if let Some(address) = place.strip_prefix('[') {
        let unclosed = BadDsn::Syntax("the bracket around its address is not closed");
        let (address, port) = address.split_once(']').ok_or(unclosed)?;
        let port = if port.is_empty() { port } else { port.strip_prefix(':').ok_or(BadDsn::Port)? };
        return Ok((address, port));
    }
    Ok(place.split_once(':').unwrap_or((place, "")))
}

fn decoded(part: &str) -> Result<String, BadDsn> {
    let bad = || BadDsn::Syntax("it has a % that is not followed by two hexadecimal digits of UTF-8");
    // The crate keeps a % that begins no escape; the driver of coderd refuses it.
    let is_escape =
        |after: &str| after.get(..2).is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()));
    if !part.split('%').skip(1).all(is_escape) {
        return Err(bad());
    }
    percent_decode_str(part).decode_utf8().map(Cow::into_owned).map_err(|_| bad())
}

fn skip_space(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|c| c.is_whitespace()).is_some() {}
}

fn quoted(rest: &mut Peekable<Chars<'_>>) -> Result<String, BadDsn> {
    let mut value = String::new();
    loop {
        match rest.next().ok_or(BadDsn::Syntax("a quote is not closed"))? {
            '\'' => return Ok(value),
            '\\' => value.push(rest.next().ok_or(BadDsn::Syntax("a quote is not closed"))?),
            c => value.push(c),
        }
    }
}

fn plain(rest: &mut Peekable<Chars<'_>>) -> Result<String, BadDsn> {
    let mut value = String::new();
    while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
        let taken = if c == '\\' { rest.next() } else { Some(c) };
        value.push(taken.ok_or(BadDsn::Syntax("it ends with a backslash"))?);
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
