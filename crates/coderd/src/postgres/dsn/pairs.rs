//! `key=value` pairs, with quotes and backslashes as in libpq.

use std::iter::Peekable;
use std::str::Chars;

use super::{BadDsn, Parameters};

pub(super) fn read(text: &str) -> Result<Parameters, BadDsn> {
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
