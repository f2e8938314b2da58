//! Decoding the JSON of coderd. A null or missing field becomes its default and an unknown field is ignored, so that
//! other releases of coderd can be read.

use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{
    answer::{Answer, Media},
    error::{ErrorKind, Unexpected},
};

/// Decodes a body that must be an object.
pub(crate) fn object<T: DeserializeOwned>(answer: &Answer) -> Result<T, ErrorKind> {
    // serde accepts a list for a struct, field by field, so a list must be refused before.
    if answer.media == Media::Json && answer.body.trim_ascii_start().first() != Some(&b'{') {
        let what = Unexpected::Undecodable { line: 1, column: 1 };
        return Err(ErrorKind::UnexpectedAnswer { status: answer.status, what });
    }
    json(answer)
}

/// Decodes a body that must be a list. coderd writes an empty list as `null` on some routes.
pub(crate) fn list<T: DeserializeOwned>(answer: &Answer) -> Result<Vec<T>, ErrorKind> {
    json::<Option<Vec<T>>>(answer).map(Option::unwrap_or_default)
}

/// Accepts an answer whose body carries no information.
pub(crate) fn nothing(answer: &Answer) -> Result<(), ErrorKind> {
    if answer.body.is_empty() { Ok(()) } else { json::<serde::de::IgnoredAny>(answer).map(drop) }
}

fn json<T: DeserializeOwned>(answer: &Answer) -> Result<T, ErrorKind> {
    let what = match answer.media {
        Media::Html | Media::Other => Unexpected::ContentType,
        Media::Json => match serde_json::from_slice(&answer.body) {
            Ok(value) => return Ok(value),
            // The text of serde quotes the value, which may be secret. The position is enough.
            Err(error) => Unexpected::Undecodable { line: error.line(), column: error.column() },
        },
    };
    Err(ErrorKind::UnexpectedAnswer { status: answer.status, what })
}

/// The value, or the default for `null`.
pub(crate) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A timestamp, or `None` for `null` and for text that is not a timestamp.
pub(crate) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// A credential. An empty one is an error: it would be stored as if it worked.
pub(crate) fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<SecretString, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Err(serde::de::Error::custom("an empty credential"));
    }
    Ok(text.into())
}
