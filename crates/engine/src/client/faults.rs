//! Things that go wrong on purpose. Tests hand a [`Faults`] to the client; a running operator has none.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, header::CONTENT_TYPE};
use http_body_util::Full;

use super::Call;

/// The exit code of [`Fault::Exit`].
pub const EXIT_CODE: i32 = 86;

/// Decides what goes wrong.
pub trait Faults: Send + Sync {
    /// Asked before a call is sent: with an answer other than a delay, the server never sees it.
    fn before(&self, call: &Call) -> Option<Fault>;

    /// Asked when the server has answered: it did what it was asked to, and we do not learn of it.
    fn after(&self, call: &Call) -> Option<Fault>;
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks.
    Error,
    /// This HTTP status, in place of the answer.
    Status(u16),
    /// The call takes this much longer; its deadline still holds.
    Delay(Duration),
    /// The process ends on the spot, with [`EXIT_CODE`].
    Exit,
}

/// The answer of an API server that fails with `code`.
pub(super) fn status(code: u16) -> Response<Full<Bytes>> {
    // kube tells answers apart by the reason, not by the code.
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": "injected fault",
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
