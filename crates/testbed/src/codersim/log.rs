//! Log of requests, for assertions. A credential is recorded as a short fingerprint only.

use std::fmt::Write as _;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the request arrived.
    pub at: Timestamp,
    /// HTTP method.
    pub method: String,
    /// Path as sent, without the query.
    pub path: String,
    /// Query as sent.
    pub query: String,
    /// Fingerprint of the session token, provisioner key or proxy token.
    pub credential: Option<String>,
    /// Whether the request asked to bypass rate limits.
    pub bypass: bool,
    /// Whether the request had a cookie.
    pub cookie: bool,
    /// Status of the answer. `None` if there is none yet, or if the connection was broken instead.
    pub status: Option<u16>,
}

impl Entry {
    /// Whether the request has this method (or `*`) and this prefix of the path.
    pub fn is(&self, method: &str, path_prefix: &str) -> bool {
        (method == "*" || self.method == method) && self.path.starts_with(path_prefix)
    }
}

/// A position in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(usize);

#[derive(Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
}

impl Log {
    /// Records a request at its arrival. Returns its position.
    pub(super) fn came(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Records the status of the answer.
    pub(super) fn answered(&mut self, place: usize, status: Option<u16>) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.status = status;
        }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.entries.len())
    }

    pub(super) fn since(&self, mark: Mark) -> Vec<Entry> {
        self.entries.iter().skip(mark.0).cloned().collect()
    }
}

/// First characters of the digest of a credential.
pub(super) fn fingerprint(credential: &str) -> String {
    let digest = Sha256::digest(credential.as_bytes());
    digest.iter().take(4).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
