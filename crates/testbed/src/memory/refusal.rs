//! Refusals of the server, as `Status` objects.

use serde_json::{Value, json};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
}

impl Refusal {
    pub(super) fn not_found(what: &str) -> Self {
        Self { code: 404, reason: "NotFound", message: format!("{what} not found") }
    }

    pub(super) fn exists(what: &str) -> Self {
        Self { code: 409, reason: "AlreadyExists", message: format!("{what} already exists") }
    }

    pub(super) fn conflict(what: &str) -> Self {
        let message =
            format!("{what}: it is not the one, or not in the state, that the request was made for");
        Self { code: 409, reason: "Conflict", message }
    }

    pub(super) fn invalid(what: &str) -> Self {
        Self::unprocessable(format!("{what} is invalid: metadata.uid: field is immutable"))
    }

    pub(super) fn unprocessable(message: impl Into<String>) -> Self {
        Self { code: 422, reason: "Invalid", message: message.into() }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into() }
    }

    pub(super) fn body(&self) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code})
    }
}
