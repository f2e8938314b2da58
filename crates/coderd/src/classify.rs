//! What a refusal means. Pure: from status, headers and body to a [`ErrorKind`].
//!
//! coderd's own answers are JSON with a `message`; its text tells a missing route from a missing object and a
//! missing license from a missing right. A refusal that is not JSON comes from somebody in between, and says
//! nothing about coderd. A 404 counts only with coderd's mark: that of a gateway, which may well be JSON, must not
//! look like a deleted object.

use serde::Deserialize;
use url::Url;

use crate::{
    answer::{Answer, Media},
    call::Surface,
    decode,
    error::{ErrorKind, Outage, Unexpected},
    target,
};

const LONGEST_MESSAGE: usize = 200;
/// Shorter parts of a secret are words, and say nothing.
const SHORTEST_PART: usize = 8;

/// coderd's envelope.
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

/// Why an answer is not a success; None if it is one. A web page never is, whatever its status.
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
        429 => return Some(ErrorKind::RateLimited { retry_after: answer.patience() }),
        _ => {}
    }
    let envelope = match answer.media {
        Media::Json => serde_json::from_slice::<Envelope>(&answer.body).unwrap_or_default(),
        _ if status >= 500 => Envelope::default(),
        Media::Html => return Some(ErrorKind::UnexpectedAnswer { status, what: Unexpected::WebPage }),
        Media::Other => return Some(ErrorKind::UnexpectedAnswer { status, what: Unexpected::ContentType }),
    };
    let said = format!("{} {}", envelope.message, envelope.detail).to_lowercase();
    let message = message(&envelope, status, secrets);
    if surface == Surface::AddsLicense && is_duplicate_license(&said) {
        return Some(ErrorKind::Duplicate { message });
    }
    Some(match status {
        400 | 413 | 422 if surface == Surface::AddsLicense => ErrorKind::InvalidLicense { message },
        401 => ErrorKind::Unauthenticated { message },
        403 if said.contains("contact sales") => ErrorKind::NotEntitled { message },
        403 => ErrorKind::Forbidden { message },
        404 if !answer.marked => ErrorKind::UnexpectedAnswer { status, what: Unexpected::NotCoderd },
        404 if envelope.message == "Route not found." => ErrorKind::NotSupported,
        404 => ErrorKind::NotFound { message },
        408 => ErrorKind::Transient(Outage::Server { status, message }),
        409 => ErrorKind::Duplicate { message },
        428 => ErrorKind::UnexpectedAnswer { status, what: Unexpected::Status },
        400..=499 => ErrorKind::Invalid { message },
        // Some create handlers of coderd do not map a refused authorization.
        500 if surface == Surface::HidesForbidden && is_unauthorized(&said) => {
            ErrorKind::Forbidden { message }
        }
        500..=599 => ErrorKind::Transient(Outage::Server { status, message }),
        _ => ErrorKind::UnexpectedAnswer { status, what: Unexpected::Status },
    })
}

/// Whether a trouble is that of the server as a whole, rather than of one request.
pub(crate) fn is_out_of_order(trouble: &Outage) -> bool {
    match trouble {
        Outage::Server { status, .. } => matches!(status, 502..=504),
        Outage::Unreachable(_) | Outage::Broken(_) | Outage::Timeout(_) => true,
        Outage::HeldOff { .. } => false,
    }
}

/// coderd answers 500 with the words of the database.
fn is_duplicate_license(said: &str) -> bool {
    ["licenses_jwt_key", "duplicate key", "already exists"].iter().any(|mark| said.contains(mark))
}

fn is_unauthorized(said: &str) -> bool {
    ["unauthorized", "rbac: forbidden"].iter().any(|mark| said.contains(mark))
}

/// Where a redirect leads: host and port, nothing that might be secret.
fn redirect(answer: &Answer, own: &Url) -> ErrorKind {
    let to = answer.location.as_deref().and_then(|location| own.join(location).ok());
    match to.as_ref().and_then(target::authority) {
        Some(to) => ErrorKind::Redirected { to },
        None => ErrorKind::UnexpectedAnswer { status: answer.status, what: Unexpected::Status },
    }
}

/// What coderd said, for people: one short line without anything that was sent.
fn message<'a>(envelope: &Envelope, status: u16, secrets: impl Iterator<Item = &'a str>) -> String {
    let mut text = envelope.message.clone();
    if text.trim().is_empty() {
        return format!("status {status} without a message");
    }
    // The names of fields are coderd's own; their details may quote what was sent.
    let fields: Vec<_> = envelope.validations.iter().map(|validation| validation.field.as_str()).collect();
    if !fields.is_empty() {
        text = format!("{text} ({})", fields.join(", "));
    }
    for secret in secrets {
        text = without(text, secret);
    }
    let mut line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_MESSAGE).collect();
    line.truncate(line.trim_end().len());
    line
}

/// Takes out a secret and its parts: the pieces of a token, of a license, of a proxy's credential.
fn without(text: String, secret: &str) -> String {
    let secret = secret.trim();
    let parts = secret.split(['.', '-', ':']).filter(|part| part.len() >= SHORTEST_PART);
    let whole = Some(secret).filter(|secret| !secret.is_empty());
    whole.into_iter().chain(parts).fold(text, |text, part| text.replace(part, "[hidden]"))
}

#[cfg(test)]
#[path = "classify/tests.rs"]
mod tests;
