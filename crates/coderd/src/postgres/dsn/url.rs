//! A connection URL, taken apart.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::{BadDsn, Parameters};

/// The parameters of a URL: its parts first, then those of the query, which take their place.
pub(super) fn read(text: &str) -> Result<Parameters, BadDsn> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (credentials, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (host, port) = host_and_port(place)?;

    let mut given = Parameters::default();
    for (name, part) in [("user", user), ("password", password), ("host", host), ("dbname", path)] {
        given.set(name, decoded(part)?);
    }
    given.set("port", port);
    let mut seen = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        // The first one of a name counts in a query.
        if !value.is_empty() && !seen.contains(&name) {
            given.set(name.clone(), value);
        }
        seen.push(name);
    }
    Ok(given)
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
    let mut rest = part;
    while let Some((_, after)) = rest.split_once('%') {
        let digits = after.get(..2).ok_or_else(bad)?;
        if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(bad());
        }
        rest = after.get(2..).unwrap_or_default();
    }
    percent_decode_str(part).decode_utf8().map(Cow::into_owned).map_err(|_| bad())
}
