//! Reading coderd's JSON: what is null or missing is empty, what is unknown is left out.

use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{
    answer::{Answer, Media},
    error::{Kind, Unexpected},
};

/// The body of an answer as a type.
pub(crate) fn body<T: DeserializeOwned>(answer: &Answer) -> Result<T, Kind> {
    let status = answer.status;
    let what = match answer.media {
        Media::Html => Unexpected::WebPage,
        Media::Other => Unexpected::ContentType,
        Media::Json => match serde_json::from_slice(&answer.body) {
            Ok(value) => return Ok(value),
            // serde quotes what it stumbles over; the place is enough.
            Err(error) => Unexpected::Undecodable { line: error.line(), column: error.column() },
        },
    };
    Err(Kind::UnexpectedAnswer { status, what })
}

/// An answer that says nothing but that it was done.
pub(crate) fn nothing(answer: &Answer) -> Result<(), Kind> {
    if answer.body.is_empty() { Ok(()) } else { body::<serde::de::IgnoredAny>(answer).map(drop) }
}

/// A list that may be null.
#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub(crate) struct List<T>(#[serde(deserialize_with = "or_default")] pub(crate) Vec<T>);

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
