//! An answer of the server, read within bounds.

use std::time::Duration;

use http::{HeaderMap, header};
use reqwest::Response;
use secrecy::zeroize::Zeroizing;

use crate::error::{ErrorKind, Outage, Unexpected};

/// The largest body that is read.
pub(crate) const CAP: usize = 4 * 1024 * 1024;
/// On every answer of coderd, and of nobody else.
const MARK: &str = "x-coder-build-version";
/// What a 429 without a usable Retry-After means.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// What kind of text a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Html,
    Other,
}

/// Status, the headers that matter, and the body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) media: Media,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) location: Option<String>,
    /// Whether it bears the mark that coderd puts on each of its answers.
    pub(crate) marked: bool,
    /// May hold a credential.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

impl Answer {
    /// An answer of coderd as it would be with this status.
    pub(crate) fn injected(status: u16) -> Self {
        let body = Zeroizing::new(br#"{"message":"injected fault"}"#.to_vec());
        Self { status, media: Media::Json, retry_after: None, location: None, marked: true, body }
    }

    /// Reads an answer to its end, or to the cap.
    pub(crate) async fn read(mut response: Response) -> Result<Self, ErrorKind> {
        let status = response.status().as_u16();
        let headers = response.headers();
        let media = media(headers);
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let retry_after = text(header::RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        let location = text(header::LOCATION).map(str::to_owned);
        let marked = headers.contains_key(MARK);
        let mut body = Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
            if body.len() + chunk.len() > CAP {
                return Err(ErrorKind::UnexpectedAnswer { status, what: Unexpected::TooLarge });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self { status, media, retry_after: retry_after.map(Duration::from_secs), location, marked, body })
    }

    /// How long the server wants to be left alone.
    pub(crate) fn patience(&self) -> Duration {
        self.retry_after.unwrap_or(DEFAULT_PATIENCE)
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

/// Why there is no answer. Only the cause is told, which names no URL.
pub(crate) fn unsent(error: &reqwest::Error) -> ErrorKind {
    ErrorKind::Transient(if error.is_connect() {
        Outage::Unreachable(cause(error))
    } else {
        Outage::Broken(cause(error))
    })
}

fn broken(error: &reqwest::Error) -> ErrorKind {
    ErrorKind::Transient(Outage::Broken(cause(error)))
}

/// The innermost cause of an error, which says what a person can do about.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
