//! Turns a failed call to the API server into a [`Blocker`]: a reason, a message and the time of the next attempt. This is
//! the only place that interprets errors of kube for a status.

use std::time::Duration;

use coder_k8s_api::Reason;
use coder_k8s_core::outcome::{Blocker, Retry};

use crate::client;

/// Classifies an error. `action` completes "cannot ...", such as `write ServiceAccount coder`.
pub fn from_kube(action: &str, error: &kube::Error) -> Blocker {
    let (reason, retry) = match error {
        kube::Error::Api(status) => {
            let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
            let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            let retry = retry_after.map_or(Retry::Backoff, Retry::After);
            match status.code {
                _ if is_schema_skew(&status.message) => (Reason::SchemaSkew, Retry::Backoff),
                401 | 403 => (Reason::Forbidden, Retry::Backoff),
                404 => (Reason::NotFound, Retry::Backoff),
                409 => (Reason::Outdated, Retry::Soon),
                // A uid that does not match: the object was deleted and created again.
                422 if status.message.contains("metadata.uid") => (Reason::Outdated, Retry::Soon),
                400 | 422 => (Reason::Invalid, Retry::Backoff),
                429 => (Reason::RateLimited, retry),
                _ => (Reason::ApiServerError, retry),
            }
        }
        error if client::is_not_leading(error) => (Reason::NotLeading, Retry::Backoff),
        error if client::is_timeout(error) => (Reason::Timeout, Retry::Backoff),
        _ => (Reason::ApiServerUnreachable, Retry::Backoff),
    };
    Blocker::new(reason, format!("cannot {action}: {}", client::describe(error))).with_retry(retry)
}

/// Server-side apply responds to a field that the server does not know with 500 and this text.
fn is_schema_skew(message: &str) -> bool {
    message.contains("field not declared in schema")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16, message: &str, retry_after: Option<i32>) -> kube::Error {
        let status = serde_json::json!({
            "status": "Failure", "code": code, "message": message, "reason": "",
            "details": {"retryAfterSeconds": retry_after.unwrap_or(0)},
        });
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn each_response_has_its_reason_and_retry() {
        for (error, reason, retry) in [
            (api(403, "cannot patch resource", None), Reason::Forbidden, Retry::Backoff),
            (api(409, "conflict", None), Reason::Outdated, Retry::Soon),
            (
                api(422, "metadata.uid: Invalid value: field is immutable", None),
                Reason::Outdated,
                Retry::Soon,
            ),
            (
                api(422, "spec.selector: Invalid value: field is immutable", None),
                Reason::Invalid,
                Retry::Backoff,
            ),
            (api(422, "spec.ports: Required value", None), Reason::Invalid, Retry::Backoff),
            (api(429, "slow down", Some(7)), Reason::RateLimited, Retry::After(Duration::from_secs(7))),
            (api(500, "x: field not declared in schema", None), Reason::SchemaSkew, Retry::Backoff),
            (
                api(503, "shutting down", Some(1)),
                Reason::ApiServerError,
                Retry::After(Duration::from_secs(1)),
            ),
        ] {
            let failure = from_kube("write ServiceAccount coder", &error);
            assert_eq!((failure.reason, failure.retry), (reason, retry), "{error}");
        }
    }

    #[test]
    fn a_forbidden_call_names_verb_and_resource() {
        let text = r#"serviceaccounts "coder" is forbidden: User "u" cannot patch resource "serviceaccounts" in API group "" in the namespace "ns""#;
        let failure = from_kube("write ServiceAccount coder", &api(403, text, None));
        assert_eq!(failure.message, format!("cannot write ServiceAccount coder: {text}"));
    }
}
