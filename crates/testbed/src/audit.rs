//! Requests to the API server, from its own audit log.
//!
//! The log leaves out the components of the cluster, so it contains the requests of the code under test. The server
//! writes a line after it has sent the response: a test that looks for a request that it just made must poll.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

/// A folder in which the test command finds the logs of all clusters, although those remove their files at their end.
pub const KEPT_LOGS: &str = "CODER_K8S_AUDIT_LOGS";

/// Makes the log, with a second name in that folder if there is one.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    File::create(path)?;
    let Some(folder) = std::env::var_os(KEPT_LOGS) else { return Ok(()) };
    let name: String = path.to_string_lossy().chars().map(|c| if c == '/' { '-' } else { c }).collect();
    fs::hard_link(path, Path::new(&folder).join(name))
}

/// The audit policy: leaves out these users and health probes.
pub(crate) fn policy(unlogged_users: &[&str]) -> String {
    let policy = serde_json::json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "None", "users": unlogged_users },
            { "level": "None", "userGroups": ["system:serviceaccounts:kube-system"] },
            { "level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"] },
            { "level": "Metadata" },
        ],
    });
    policy.to_string()
}

/// One request, as the API server logged it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// `ResponseComplete`, or `ResponseStarted` for a watch that is open. A watch that ended has both.
    pub stage: String,
    /// Authenticated user.
    pub user: String,
    /// Impersonated user, if any.
    pub impersonated: Option<String>,
    /// Header `User-Agent`.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// Plural of the kind. Empty for URLs that are no resource.
    pub resource: String,
    /// `status`, `binding`, ...; empty for the object itself.
    pub subresource: String,
    /// Empty for requests across namespaces.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    /// HTTP status of the response.
    pub code: u16,
    /// When the server received the request.
    pub received: Timestamp,
    /// Path and query.
    pub uri: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Response,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    code: u16,
}

impl From<Line> for AuditEvent {
    fn from(line: Line) -> Self {
        Self {
            stage: line.stage,
            user: line.user.username,
            impersonated: line.impersonated_user.map(|user| user.username),
            user_agent: line.user_agent,
            verb: line.verb,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            code: line.response_status.code,
            received: line.request_received_timestamp,
            uri: line.request_uri,
        }
    }
}

/// A log that grows. What was read once is kept, because tests ask again and again.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Bytes that were read.
    read: u64,
    events: Vec<AuditEvent>,
}

impl Log {
    /// The events so far, oldest first. A server that has logged nothing yet has no file.
    pub(crate) fn events(&mut self, path: &Path) -> io::Result<&[AuditEvent]> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(&self.events),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // The last line may be half written, in the middle of a character too.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        text.truncate(whole);
        let text =
            String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.events.extend(parse(&text)?);
        self.read += u64::try_from(whole).unwrap_or_default();
        Ok(&self.events)
    }
}

/// Ignores a last line without a line end, because the server may still be writing it.
fn parse(text: &str) -> serde_json::Result<Vec<AuditEvent>> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str::<Line>(line).map(AuditEvent::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/pods/p/status","verb":"patch","user":{"username":"admin","groups":["system:masters"]},"impersonatedUser":{"username":"jane"},"sourceIPs":["127.0.0.1"],"userAgent":"test","objectRef":{"resource":"pods","namespace":"a","name":"p","apiVersion":"v1","subresource":"status"},"responseStatus":{"metadata":{},"code":403},"requestReceivedTimestamp":"2026-11-15T20:57:00.123456Z","stageTimestamp":"2026-11-15T20:57:00.223456Z"}"#;

    #[test]
    fn what_is_added_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut log = Log::default();
        assert_eq!(log.events(&path).unwrap(), []);
        for (text, count) in [(format!("{LINE}\n{}", &LINE[..40]), 1), (format!("{LINE}\n{LINE}\n"), 2)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(log.events(&path).unwrap().len(), count);
        }
    }

    #[test]
    fn a_line_is_read_and_a_half_line_is_not() {
        let events = parse(&format!("{LINE}\n{}", &LINE[..40])).unwrap();
        let [event] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((event.user.as_str(), event.impersonated.as_deref()), ("admin", Some("jane")));
        assert_eq!((event.resource.as_str(), event.subresource.as_str()), ("pods", "status"));
        assert_eq!((event.code, event.verb.as_str()), (403, "patch"));
    }
}
