//! What a refusal means: from status, headers and body of an answer to an [`ErrorKind`]. Pure.
//!
//! coderd answers in JSON with a `message`. Its text is the only way to tell a missing route from a missing object,
//! and a missing license from a missing permission. A refusal that is not JSON comes from a proxy or gateway in
//! between and says nothing about coderd. A 404 counts only if coderd itself sent it: the 404 of a gateway, which may
//! be JSON as well, must not look like a deleted object.

use serde::Deserialize;
use url::Url;

use crate::{
    answer::{Answer, Media},
    call::Surface,
    decode,
    error::{ErrorKind, Outage, Unexpected},
    target,
};

const MAX_MESSAGE_CHARS: usize = 200;
/// Shorter parts of a secret are not removed from messages: they match ordinary words and reveal nothing.
const MIN_SECRET_PART: usize = 8;

/// The JSON body of every refusal of coderd.
#[derive(Default, Deserialize)]
struct Envelope {
    #[serde(default, deserialize_with = "decode::or_default")]
    message: String,
    #[serde(default, deserialize_with = "decode::or_default")]
    detail: String,
    #[serde(default, deserialize_with = "decode::or_default")]
    validations: Vec<Validation>,
}

#[derive(Deserialize)]
struct Validation {
    #[serde(default, deserialize_with = "decode::or_default")]
    field: String,
}

/// Why an answer is not a success, or `None` if it is one. A web page is never a success, whatever its status: a
/// login page of a proxy has status 200.
pub(crate) fn refusal<'a>(
    answer: &Answer,
    surface: Surface,
    own: &Url,
    secrets: impl Iterator<Item = &'a str>,
) -> Option<ErrorKind> {
    let status = answer.status;
    match status {
        200..=299 if answer.media == Media::Html => {
            return Some(ErrorKind::UnexpectedAnswer { status, what: Unexpected::WebPage });
        }
        200..=299 => return None,
        300..=399 => return Some(redirect(answer, own)),
        429 => return Some(ErrorKind::RateLimited { retry_after: answer.retry_delay() }),
        _ => {}
    }
    let envelope = match answer.media {
        Media::Json => serde_json::from_slice::<Envelope>(&answer.body).unwrap_or_default(),
        _ if status >= 500 => Envelope::default(),
        Media::Html => return Some(ErrorKind::UnexpectedAnswer { status, what: Unexpected::WebPage }),
        Media::Other => return Some(ErrorKind::UnexpectedAnswer { status, what: Unexpected::ContentType }),
    };
    let text = format!("{} {}", envelope.message, envelope.detail).to_lowercase();
    let message = message(&envelope, status, secrets);
    if surface == Surface::AddsLicense && is_duplicate_license(&text) {
        return Some(ErrorKind::Duplicate { message });
    }
    Some(match status {
        400 | 413 | 422 if surface == Surface::AddsLicense => ErrorKind::InvalidLicense { message },
        401 => ErrorKind::Unauthenticated { message },
        403 if text.contains("contact sales") => ErrorKind::NotEntitled { message },
        403 => ErrorKind::Forbidden { message },
        404 if !answer.from_coderd => ErrorKind::UnexpectedAnswer { status, what: Unexpected::NotCoderd },
        404 if envelope.message == "Route not found." => ErrorKind::NotSupported,
        404 => ErrorKind::NotFound { message },
        408 => ErrorKind::Transient(Outage::Server { status, message }),
        409 => ErrorKind::Duplicate { message },
        428 => ErrorKind::UnexpectedAnswer { status, what: Unexpected::Status },
        400..=499 => ErrorKind::Invalid { message },
        // Some create handlers of coderd answer 500 instead of 403 if the token lacks a permission.
        500 if surface == Surface::HidesForbidden && is_unauthorized(&text) => {
            ErrorKind::Forbidden { message }
        }
        500..=599 => ErrorKind::Transient(Outage::Server { status, message }),
        _ => ErrorKind::UnexpectedAnswer { status, what: Unexpected::Status },
    })
}

/// Whether the outage is one of the whole server rather than of one request, so that other requests should wait.
pub(crate) fn is_out_of_order(outage: &Outage) -> bool {
    match outage {
        Outage::Server { status, .. } => matches!(status, 502..=504),
        Outage::Unreachable(_) | Outage::Broken(_) | Outage::Timeout(_) => true,
        Outage::HeldOff { .. } => false,
    }
}

/// coderd does not map the unique violation: it answers 500 and quotes the database.
fn is_duplicate_license(text: &str) -> bool {
    ["licenses_jwt_key", "duplicate key", "already exists"].iter().any(|mark| text.contains(mark))
}

fn is_unauthorized(text: &str) -> bool {
    ["unauthorized", "rbac: forbidden"].iter().any(|mark| text.contains(mark))
}

/// A redirect is reported by host and port only. The rest of the location may contain a token.
fn redirect(answer: &Answer, own: &Url) -> ErrorKind {
    let to = answer.location.as_deref().and_then(|location| own.join(location).ok());
    match to.as_ref().and_then(target::authority) {
        Some(to) => ErrorKind::Redirected { to },
        None => ErrorKind::UnexpectedAnswer { status: answer.status, what: Unexpected::Status },
    }
}

/// The message of coderd for people: one short line, without anything that was sent.
fn message<'a>(envelope: &Envelope, status: u16, secrets: impl Iterator<Item = &'a str>) -> String {
    let mut text = envelope.message.clone();
    if text.trim().is_empty() {
        return format!("status {status} without a message");
    }
    // The names of fields are safe to show. Their details may quote what was sent.
    let fields: Vec<_> = envelope.validations.iter().map(|validation| validation.field.as_str()).collect();
    if !fields.is_empty() {
        text = format!("{text} ({})", fields.join(", "));
    }
    for secret in secrets {
        text = without(text, secret);
    }
    let mut line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE_CHARS).collect();
    line.truncate(line.trim_end().len());
    line
}

/// Removes a secret and its parts, because coderd may quote a part only: the id of a token, a section of a license,
/// the secret of a proxy token.
fn without(text: String, secret: &str) -> String {
    let secret = secret.trim();
    let parts = secret.split(['.', '-', ':']).filter(|part| part.len() >= MIN_SECRET_PART);
    let whole = Some(secret).filter(|secret| !secret.is_empty());
    whole.into_iter().chain(parts).fold(text, |text, part| text.replace(part, "[hidden]"))
}

#[cfg(test)]
#[path = "classify/tests.rs"]
mod tests;
