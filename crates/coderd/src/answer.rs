//! An HTTP response of the server: read completely and within bounds, decoded, or classified as a refusal. Pure but for
//! [`Answer::read`].
//!
//! Decoding: a null or missing field becomes its default and an unknown field is ignored, so that other releases of coderd
//! can be read.
//!
//! Refusals: coderd answers in JSON with a `message`. Its text is the only way to tell a missing route from a missing
//! object, and a missing license from a missing permission. A refusal that is not JSON comes from a proxy or gateway in
//! between and says nothing about coderd. A 404 counts only if coderd itself sent it: the 404 of a gateway, which may
//! be JSON as well, must not look like a deleted object.

use std::time::Duration;

use coder_k8s_api::shortened;
use http::{HeaderMap, header};
use jiff::Timestamp;
use reqwest::Response;
use secrecy::{SecretString, zeroize::Zeroizing};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny},
};
use url::Url;

use crate::{
    error::{ErrorKind, Outage, Unexpected},
    intervals::{
        MAX_ANSWER_VALUES, MAX_BODY_BYTES, MAX_MESSAGE_CHARS, MAX_NOTE_BYTES, MAX_NOTES, MAX_REFUSAL_BYTES,
        MAX_WORD_BYTES, RATE_LIMIT_DELAY_DEFAULT, RATE_LIMIT_DELAY_MAX,
    },
    request::Surface,
    server,
};

/// A header that coderd sets on every response, and a proxy or gateway in front of it does not.
const CODERD_HEADER: &str = "x-coder-build-version";
/// Shorter parts of a secret are not removed from messages: they match ordinary words and reveal nothing.
const MIN_SECRET_PART: usize = 8;
/// Words of letters and digits of this length are credentials: half of a session token has 22 characters, a part of a UUID
/// has at most 12.
const MIN_CREDENTIAL_WORD: usize = 20;

/// The text of the decoding error for a value that exceeds a bound.
pub(crate) const EXCESSIVE: &str = "excessive";

/// Content type, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Html,
    Other,
}

/// Status, the headers that matter, and the body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    media: Media,
    retry_after: Option<Duration>,
    location: Option<String>,
    /// Whether coderd itself answered, by its header.
    from_coderd: bool,
    /// May contain a credential, so it is zeroed on drop.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

impl Answer {
    /// What the caller gets for an injected fault: the answer that coderd would give with this status, or a broken
    /// connection.
    pub(crate) fn injected(status: Option<u16>) -> Result<Self, ErrorKind> {
        let broken = || ErrorKind::Transient(Outage::Broken("injected fault".to_owned()));
        let status = status.ok_or_else(broken)?;
        let body = Zeroizing::new(br#"{"message":"injected fault"}"#.to_vec());
        Ok(Self { status, media: Media::Json, retry_after: None, location: None, from_coderd: true, body })
    }

    /// Reads the response to its end. Fails if the body exceeds the cap.
    pub(crate) async fn read(mut response: Response) -> Result<Self, ErrorKind> {
        let status = response.status().as_u16();
        let headers = response.headers();
        let media = media(headers);
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let seconds = text(header::RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        let retry_after = seconds.map(Duration::from_secs);
        let location = text(header::LOCATION).map(str::to_owned);
        let from_coderd = headers.contains_key(CODERD_HEADER);
        let mut body = Zeroizing::new(Vec::new());
        let broken = |error| ErrorKind::Transient(Outage::Broken(cause(&error)));
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > MAX_BODY_BYTES {
                return Err(ErrorKind::UnexpectedAnswer { status, what: Unexpected::TooLarge });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self { status, media, retry_after, location, from_coderd, body })
    }

    /// Decodes a body that must be an object.
    pub(crate) fn object<T: DeserializeOwned>(&self) -> Result<T, ErrorKind> {
        // serde accepts a list for a struct, field by field, so a list must be refused before.
        if self.media == Media::Json && self.body.trim_ascii_start().first() != Some(&b'{') {
            return Err(self.unexpected(Unexpected::Undecodable { line: 1, column: 1 }));
        }
        self.json()
    }

    /// Decodes a body that must be a list. coderd writes an empty list as `null` on some routes.
    pub(crate) fn list<T: DeserializeOwned>(&self) -> Result<Vec<T>, ErrorKind> {
        self.json::<Option<Vec<T>>>().map(Option::unwrap_or_default)
    }

    /// Accepts an answer whose body carries no information.
    pub(crate) fn nothing(&self) -> Result<(), ErrorKind> {
        if self.body.is_empty() { Ok(()) } else { self.json::<IgnoredAny>().map(drop) }
    }

    fn json<T: DeserializeOwned>(&self) -> Result<T, ErrorKind> {
        match self.media {
            Media::Html | Media::Other => Err(self.unexpected(Unexpected::ContentType)),
            Media::Json if count_values(&self.body) > MAX_ANSWER_VALUES => {
                Err(self.unexpected(Unexpected::TooMany))
            }
            // The text of serde quotes the value, which may be secret. The position is enough.
            Media::Json => serde_json::from_slice(&self.body).map_err(|error| {
                self.unexpected(if error.to_string().starts_with(EXCESSIVE) {
                    Unexpected::TooMany
                } else {
                    Unexpected::Undecodable { line: error.line(), column: error.column() }
                })
            }),
        }
    }

    pub(crate) fn unexpected(&self, what: Unexpected) -> ErrorKind {
        ErrorKind::UnexpectedAnswer { status: self.status, what }
    }

    /// Why the answer is not a success, or `None` if it is one. A web page is never a success, whatever its status: a
    /// login page of a proxy has status 200.
    pub(crate) fn refusal<'a>(
        &self,
        surface: Surface,
        own: &Url,
        secrets: impl Iterator<Item = &'a str>,
    ) -> Option<ErrorKind> {
        Some(match (self.status, self.media) {
            (200..=299, Media::Json | Media::Other) => return None,
            (300..=399, _) => self.redirect(own),
            (429, _) => {
                // A date, a negative number or one that overflows is no number of seconds.
                let retry_after = self.retry_after.unwrap_or(RATE_LIMIT_DELAY_DEFAULT);
                ErrorKind::RateLimited { retry_after: retry_after.min(RATE_LIMIT_DELAY_MAX) }
            }
            (..500, Media::Html) => self.unexpected(Unexpected::WebPage),
            (..500, Media::Other) => self.unexpected(Unexpected::ContentType),
            (_, Media::Json) => self.classify(&self.json().unwrap_or_default(), surface, secrets),
            (500.., _) => self.classify(&Refusal::default(), surface, secrets),
        })
    }

    fn classify<'a>(
        &self,
        refusal: &Refusal,
        surface: Surface,
        secrets: impl Iterator<Item = &'a str>,
    ) -> ErrorKind {
        let status = self.status;
        let text = format!("{} {}", refusal.message, refusal.detail).to_lowercase();
        let says = |marks: &[&str]| marks.iter().any(|mark| text.contains(mark));
        let message = refusal.message_without(secrets, status);
        match (status, surface) {
            // coderd does not map the unique violation: it answers 500 and quotes the database.
            (_, Surface::AddsLicense) if says(&["licenses_jwt_key", "duplicate key", "already exists"]) => {
                ErrorKind::Duplicate(message)
            }
            (400 | 413 | 422, Surface::AddsLicense) => ErrorKind::InvalidLicense(message),
            (401, _) => ErrorKind::Unauthenticated(message),
            (403, _) if says(&["contact sales"]) => ErrorKind::NotEntitled(message),
            (403, _) => ErrorKind::Forbidden(message),
            (404, _) if !self.from_coderd => self.unexpected(Unexpected::NotCoderd),
            (404, _) if refusal.message == "Route not found." => ErrorKind::NotSupported,
            (404, _) => ErrorKind::NotFound(message),
            (409, _) => ErrorKind::Duplicate(message),
            (428, _) => self.unexpected(Unexpected::Status),
            // Some create handlers of coderd answer 500 instead of 403 if the token lacks a permission.
            (500, Surface::HidesForbidden) if says(&["unauthorized", "rbac: forbidden"]) => {
                ErrorKind::Forbidden(message)
            }
            (408 | 500..=599, _) => ErrorKind::Transient(Outage::Server { status, message }),
            (400..=499, _) => ErrorKind::Invalid(message),
            _ => self.unexpected(Unexpected::Status),
        }
    }

    /// A redirect is reported by host and port only. The rest of the location may contain a token.
    fn redirect(&self, own: &Url) -> ErrorKind {
        let location = self.location.as_deref().filter(|location| location.len() <= MAX_REFUSAL_BYTES);
        let to = location.and_then(|location| own.join(location).ok());
        match to.as_ref().and_then(server::authority) {
            Some(to) => ErrorKind::Redirected { to: shortened(to, MAX_WORD_BYTES) },
            None => self.unexpected(Unexpected::Status),
        }
    }
}

fn media(headers: &HeaderMap) -> Media {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "application/json" => Media::Json,
        "text/html" | "application/xhtml+xml" => Media::Html,
        _ => Media::Other,
    }
}

/// The innermost cause. The outer errors of reqwest only say that a request failed, and name its URL, which may carry
/// secrets.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// The JSON body of every refusal of coderd.
#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default, deserialize_with = "or_default")]
    message: String,
    #[serde(default, deserialize_with = "or_default")]
    detail: String,
    #[serde(default, deserialize_with = "or_default")]
    validations: Vec<Validation>,
}

#[derive(Deserialize)]
struct Validation {
    #[serde(default, deserialize_with = "or_default")]
    field: String,
}

impl Refusal {
    /// The message of coderd for people: one short line, without anything that was sent.
    fn message_without<'a>(&self, secrets: impl Iterator<Item = &'a str>, status: u16) -> String {
        let mut text = self.message.clone();
        if text.trim().is_empty() {
            return format!("status {status} without a message");
        }
        // The names of fields are safe to show. Their details may quote what was sent.
        let fields: Vec<_> = self.validations.iter().map(|validation| validation.field.as_str()).collect();
        if !fields.is_empty() {
            text = format!("{text} ({})", fields.join(", "));
        }
        if text.len() > MAX_REFUSAL_BYTES {
            return format!(
                "status {status} with a message of {} bytes, which is too long to show",
                text.len()
            );
        }
        for secret in secrets.map(str::trim).filter(|secret| !secret.is_empty()) {
            // coderd may quote a part only: the id of a token, a section of a license, the secret of a proxy token.
            let parts = secret.split(['.', '-', ':']).filter(|part| part.len() >= MIN_SECRET_PART);
            text = [secret].into_iter().chain(parts).fold(text, |text, part| text.replace(part, "[hidden]"));
        }
        let text = without_credentials(&text);
        let mut line: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE_CHARS).collect();
        line.truncate(line.trim_end().len());
        line
    }
}

/// The text without words that look like a credential: one that was sent earlier, or to somebody else.
fn without_credentials(text: &str) -> String {
    // A section of a license may contain '-', as a UUID, a time and a name do: it has letters of both cases too.
    let text = without_words(
        text,
        |c| c == '-',
        |word| {
            word.contains(|c: char| c.is_ascii_lowercase()) && word.contains(|c: char| c.is_ascii_uppercase())
        },
    );
    without_words(&text, |_| false, |word| word.contains(|c: char| c.is_ascii_alphabetic()))
}

/// The text without long words of letters, digits, `_` and what `is_part` says, if they have a digit and are `secret`.
fn without_words(text: &str, is_part: fn(char) -> bool, secret: fn(&str) -> bool) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || is_part(c);
    let is_credential = |word: &str| {
        word.len() >= MIN_CREDENTIAL_WORD && word.contains(|c: char| c.is_ascii_digit()) && secret(word)
    };
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(|c: char| !is_part(c)) {
        let word = piece.trim_end_matches(|c: char| !is_part(c));
        shown.push_str(if is_credential(word) { "[hidden]" } else { word });
        shown.push_str(piece.get(word.len()..).unwrap_or_default());
    }
    shown
}

/// The number of values in a JSON text: one for each list, object, and entry after the first of one.
fn count_values(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            b'[' | b'{' | b',' if !in_text => count += 1,
            _ => {}
        }
    }
    count
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

/// An id, name or version.
pub(crate) fn word<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if text.len() > MAX_WORD_BYTES {
        return Err(serde::de::Error::custom(EXCESSIVE));
    }
    Ok(text)
}

/// An id, name or version, or nothing for `null`.
pub(crate) fn word_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    struct Word(#[serde(deserialize_with = "word")] String);
    Ok(Option::<Word>::deserialize(from)?.map_or_else(String::new, |Word(text)| text))
}

/// Sentences for people: the first of them, shortened, and a last one that says how many were left out.
pub(crate) fn notes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let mut all: Vec<String> = or_default(from)?;
    let more = all.len().saturating_sub(MAX_NOTES);
    all.truncate(MAX_NOTES);
    let mut all: Vec<_> =
        all.into_iter().map(|note| shortened(without_credentials(&note), MAX_NOTE_BYTES)).collect();
    all.extend((more > 0).then(|| format!("and {more} more, which are not shown")));
    Ok(all)
}

/// A credential. An empty one is an error: it would be stored as if it worked.
pub(crate) fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<SecretString, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Err(serde::de::Error::custom("an empty credential"));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests;
