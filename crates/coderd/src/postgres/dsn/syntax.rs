//! The two notations of a connection string, URL and `key=value` pairs, read into parameters.
//!
//! Nothing is interpreted here: whether a parameter is allowed and what it means is decided by the parent module.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::{BadDsn, Parameters};

/// Reads a URL. Parameters of the query override the parts of the URL.
pub(super) fn url(text: &str) -> Result<Parameters, BadDsn> {
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
        // As in the driver of coderd, the first parameter of a name counts in a query.
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

/// Reads `key=value` pairs, with the quotes and backslashes of libpq.
pub(super) fn pairs(text: &str) -> Result<Parameters, BadDsn> {
    let mut given = Parameters::default();
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
