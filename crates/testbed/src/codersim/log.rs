//! What was asked of the simulator, for assertions. A credential shows as a short fingerprint.

use std::fmt::Write as _;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it came.
    pub at: Timestamp,
    /// Its method.
    pub method: String,
    /// Its path, as it was sent, without the query.
    pub path: String,
    /// Its query.
    pub query: String,
    /// The fingerprint of its session token or provisioner key.
    pub credential: Option<String>,
    /// Whether it asked to bypass rate limits.
    pub bypass: bool,
    /// Whether it carried a cookie.
    pub cookie: bool,
    /// The status of the answer; None if there is none yet, or the connection was broken instead.
    pub status: Option<u16>,
}

impl Entry {
    /// Whether it has this method (or `*`) and a path that begins like this.
    pub fn is(&self, method: &str, path_prefix: &str) -> bool {
        (method == "*" || self.method == method) && self.path.starts_with(path_prefix)
    }
}

/// A moment in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(usize);

#[derive(Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
}

impl Log {
    /// Notes a request when it comes; gives its place.
    pub(super) fn came(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Notes how it was answered.
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

/// The first characters of a credential's digest.
pub(super) fn fingerprint(credential: &str) -> String {
    let digest = Sha256::digest(credential.as_bytes());
    digest.iter().take(4).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
