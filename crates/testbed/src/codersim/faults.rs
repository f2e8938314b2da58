//! Fault injection on the side of the server.

use std::time::Duration;

/// How a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// Answers with this instead of calling the route. The call has no effect.
    Answer {
        /// HTTP status.
        status: u16,
        /// Names and values of headers.
        headers: Vec<(String, String)>,
        /// Body as text.
        body: String,
    },
    /// Delays the answer.
    Latency(Duration),
    /// Breaks the connection before the call has an effect.
    Reset,
    /// Breaks the connection after the call had its effect, before the answer.
    ResetAfter,
}

impl SimFault {
    /// An error in the JSON envelope of coderd.
    pub fn status(status: u16, message: &str, detail: &str) -> Self {
        let body = serde_json::json!({ "message": message, "detail": detail }).to_string();
        let fault = Self::Answer { status, headers: vec![content("application/json; charset=utf-8")], body };
        fault.with_header("X-Coder-Build-Version", "v2.36.1")
    }

    /// The answer of the rate limiter.
    pub fn rate_limited(retry_after: Duration) -> Self {
        let message = "You've been rate limited for sending more than 512 requests in 1m0s.";
        let fault = Self::status(429, message, "");
        fault.with_header("Retry-After", &retry_after.as_secs().to_string())
    }

    /// A web page, as of a proxy that wants a login.
    pub fn html(status: u16) -> Self {
        let body = "<!DOCTYPE html><html><body>Sign in</body></html>".to_owned();
        Self::Answer { status, headers: vec![content("text/html; charset=utf-8")], body }
    }

    /// A redirect to this location.
    pub fn redirect(to: &str) -> Self {
        let headers = vec![("Location".to_owned(), to.to_owned()), content("text/html; charset=utf-8")];
        Self::Answer { status: 307, headers, body: format!("<a href=\"{to}\">Temporary Redirect</a>") }
    }

    /// Adds a header to an answer.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }
}

fn content(kind: &str) -> (String, String) {
    ("Content-Type".to_owned(), kind.to_owned())
}

/// Identifies an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(u64);

struct Rule {
    id: FaultId,
    method: String,
    path: String,
    fault: SimFault,
    left: Option<u32>,
}

#[derive(Default)]
pub(super) struct Rules {
    all: Vec<Rule>,
    next: u64,
}

impl Rules {
    pub(super) fn add(&mut self, method: &str, path: &str, fault: SimFault, times: Option<u32>) -> FaultId {
        self.next += 1;
        let (id, method, path) = (FaultId(self.next), method.to_owned(), path.to_owned());
        self.all.push(Rule { id, method, path, fault, left: times });
        id
    }

    /// Whether no fault is left to be injected.
    pub(super) fn is_empty(&self) -> bool {
        self.all.iter().all(|rule| rule.left == Some(0))
    }

    pub(super) fn clear(&mut self, id: FaultId) {
        self.all.retain(|rule| rule.id != id);
    }

    /// The fault of this call, if any. The fault that was injected first wins.
    pub(super) fn take(&mut self, method: &str, path: &str) -> Option<SimFault> {
        let at = self.all.iter().position(|rule| {
            rule.left != Some(0) && (rule.method == "*" || rule.method == method) && matches(&rule.path, path)
        })?;
        let rule = self.all.get_mut(at)?;
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.fault.clone())
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    for expected in pattern.split('/') {
        match (expected, parts.next()) {
            ("**", _) => return true,
            ("*", Some(_)) => {}
            (expected, Some(part)) if expected == part => {}
            _ => return false,
        }
    }
    parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_part_by_part() {
        for (pattern, path, expected) in [
            ("/api/v2/licenses", "/api/v2/licenses", true),
            ("/api/v2/licenses", "/api/v2/licenses/1", false),
            ("/api/v2/licenses/*", "/api/v2/licenses/1", true),
            ("/api/v2/licenses/*", "/api/v2/licenses", false),
            ("/api/**", "/api/v2/x/y", true),
            ("/**", "/healthz", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_fault_ends_after_its_times_or_when_cleared() {
        let mut rules = Rules::default();
        rules.add("GET", "/a", SimFault::Reset, Some(2));
        let forever = rules.add("*", "/a", SimFault::ResetAfter, None);
        let taken: Vec<_> = (0..4).map(|_| rules.take("GET", "/a").unwrap()).collect();
        assert_eq!(taken, [SimFault::Reset, SimFault::Reset, SimFault::ResetAfter, SimFault::ResetAfter]);
        rules.clear(forever);
        assert_eq!(rules.take("GET", "/a"), None);
    }
}
