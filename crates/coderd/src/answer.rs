//! An HTTP response of the server, read completely and within bounds. What it means is decided in [`crate::classify`]
//! and [`crate::decode`].

use std::time::Duration;

use http::{HeaderMap, header};
use reqwest::Response;
use secrecy::zeroize::Zeroizing;

use crate::error::{ErrorKind, Outage, Unexpected};

/// The largest body in bytes. A longer one is an error, whoever sends it.
pub(crate) const MAX_BODY: usize = 4 * 1024 * 1024;
/// A header that coderd sets on every response, and a proxy or gateway in front of it does not.
const CODERD_HEADER: &str = "x-coder-build-version";
/// Delay after a 429 without a usable `Retry-After`.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(30);

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
    pub(crate) media: Media,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) location: Option<String>,
    /// Whether coderd itself answered, by its header.
    pub(crate) from_coderd: bool,
    /// May contain a credential, so it is zeroed on drop.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

impl Answer {
    /// The answer that coderd would give with this status, for injected faults.
    pub(crate) fn injected(status: u16) -> Self {
        let body = Zeroizing::new(br#"{"message":"injected fault"}"#.to_vec());
        Self { status, media: Media::Json, retry_after: None, location: None, from_coderd: true, body }
    }

    /// Reads the response to its end. Fails if the body exceeds the cap.
    pub(crate) async fn read(mut response: Response) -> Result<Self, ErrorKind> {
        let status = response.status().as_u16();
        let headers = response.headers();
        let media = media(headers);
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let retry_after = text(header::RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        let location = text(header::LOCATION).map(str::to_owned);
        let from_coderd = headers.contains_key(CODERD_HEADER);
        let mut body = Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(ErrorKind::UnexpectedAnswer { status, what: Unexpected::TooLarge });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self {
            status,
            media,
            retry_after: retry_after.map(Duration::from_secs),
            location,
            from_coderd,
            body,
        })
    }

    /// How long to wait before the next request, after a 429.
    pub(crate) fn retry_delay(&self) -> Duration {
        self.retry_after.unwrap_or(DEFAULT_RETRY_AFTER)
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

/// Classifies an error before the first byte of an answer. The text has no URL, because a URL may carry secrets.
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

/// The innermost cause. The outer errors of reqwest only say that a request failed, and name its URL.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
