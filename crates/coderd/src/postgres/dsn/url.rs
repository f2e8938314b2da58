//! A connection URL, taken apart.

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::{BadDsn, Parameters};

/// The parameters of a URL: its parts first, then those of the query, which take their place.
pub(super) fn read(text: &str) -> Result<Parameters, BadDsn> {
    if several_hosts(text) {
        return Err(BadDsn::SeveralHosts);
    }
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::InvalidPort => BadDsn::Port,
        _ => BadDsn::Syntax("it is not a URL; special characters in a user or password are written as %XX"),
    })?;
    let mut given = Parameters::default();
    given.set("user", decoded(url.username())?);
    given.set("password", decoded(url.password().unwrap_or_default())?);
    match url.host() {
        Some(Host::Domain(name)) => given.set("host", decoded(name)?),
        Some(Host::Ipv4(address)) => given.set("host", address.to_string()),
        Some(Host::Ipv6(address)) => given.set("host", address.to_string()),
        None => {}
    }
    if let Some(port) = url.port() {
        given.set("port", port.to_string());
    }
    given.set("dbname", decoded(url.path().strip_prefix('/').unwrap_or_default())?);
    let mut seen = Vec::new();
    for (name, value) in url.query_pairs() {
        // The first one of a name counts in a query.
        if !value.is_empty() && !seen.contains(&name) {
            given.set(name.clone(), value);
        }
        seen.push(name);
    }
    Ok(given)
}

/// A comma in the part between the credentials and the path. A URL parser would call it a bad port.
fn several_hosts(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default().contains(',')
}

fn decoded(part: &str) -> Result<String, BadDsn> {
    let bad = || BadDsn::Syntax("it has a % that is not followed by two hexadecimal digits of UTF-8");
    let mut rest = part;
    while let Some((_, after)) = rest.split_once('%') {
        let digits = after.get(..2).ok_or_else(bad)?;
        if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(bad());
        }
        rest = after.get(2..).unwrap_or_default();
    }
    percent_decode_str(part).decode_utf8().map(std::borrow::Cow::into_owned).map_err(|_| bad())
}
