//! Reading coderd's JSON: what is null or missing is empty, what is unknown is left out.

use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{
    answer::{Answer, Media},
    error::{ErrorKind, Unexpected},
};

/// The body of an answer, which is an object, as a type.
pub(crate) fn object<T: DeserializeOwned>(answer: &Answer) -> Result<T, ErrorKind> {
    // serde would take a list for a struct.
    if answer.media == Media::Json && answer.body.trim_ascii_start().first() != Some(&b'{') {
        let what = Unexpected::Undecodable { line: 1, column: 1 };
        return Err(ErrorKind::UnexpectedAnswer { status: answer.status, what });
    }
    json(answer)
}

/// The body of an answer, which is a list or null.
pub(crate) fn list<T: DeserializeOwned>(answer: &Answer) -> Result<Vec<T>, ErrorKind> {
    json::<Option<Vec<T>>>(answer).map(Option::unwrap_or_default)
}

/// An answer that says nothing but that it was done.
pub(crate) fn nothing(answer: &Answer) -> Result<(), ErrorKind> {
    if answer.body.is_empty() { Ok(()) } else { json::<serde::de::IgnoredAny>(answer).map(drop) }
}

fn json<T: DeserializeOwned>(answer: &Answer) -> Result<T, ErrorKind> {
    let what = match answer.media {
        Media::Html | Media::Other => Unexpected::ContentType,
        Media::Json => match serde_json::from_slice(&answer.body) {
            Ok(value) => return Ok(value),
            // serde quotes what it stumbles over; the place is enough.
            Err(error) => Unexpected::Undecodable { line: error.line(), column: error.column() },
        },
    };
    Err(ErrorKind::UnexpectedAnswer { status: answer.status, what })
}

/// The value, or its default in place of null.
pub(crate) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A time; None for null and for what is no time.
pub(crate) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// A credential, which is never empty.
pub(crate) fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<SecretString, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Err(serde::de::Error::custom("an empty credential"));
    }
    Ok(text.into())
}
