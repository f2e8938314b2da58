//! A server that is too busy says for how long in a header, often with a body that is no Status. Here the header
//! becomes part of a Status, where those who retry look for it.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::Full;

/// The seconds for which a busy server asks to be left alone.
pub(super) fn asked_for<B>(response: &Response<B>) -> Option<u32> {
    let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    let header = response.headers().get(RETRY_AFTER).filter(|_| busy.contains(&response.status()))?;
    header.to_str().ok()?.trim().parse().ok()
}

/// The answer of a busy server as a Status.
pub(super) fn status(code: StatusCode, seconds: u32) -> Response<Full<Bytes>> {
    let reason = if code == StatusCode::TOO_MANY_REQUESTS { "TooManyRequests" } else { "ServiceUnavailable" };
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": "the API server is busy and asks to be left alone for a while",
        "details": {"retryAfterSeconds": seconds},
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
