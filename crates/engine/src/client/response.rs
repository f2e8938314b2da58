//! Responses as callers get them: a body that ends at the deadline of its call, and Status objects in place of
//! responses that are not one. Nothing is buffered: frames are passed on as they arrive.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::time::Sleep;
use tower::BoxError;

use super::{Interrupted, guard::CallRecord};

/// A response body with the deadline of its call. The call is measured until the body ends.
pub struct GuardedBody<B> {
    inner: Pin<Box<B>>,
    limit: Option<Limit>,
    record: Option<CallRecord>,
}

pub(super) struct Limit {
    pub(super) sleep: Pin<Box<Sleep>>,
    pub(super) deadline: Duration,
}

impl<B> GuardedBody<B> {
    pub(super) fn new(inner: B, limit: Option<Limit>, record: Option<CallRecord>) -> Self {
        Self { inner: Box::pin(inner), limit, record }
    }

    /// Ends the measurement. `code` replaces the HTTP status as the result of the call.
    fn end(&mut self, code: Option<&'static str>) {
        if let Some(mut record) = self.record.take()
            && let Some(code) = code
        {
            record.code = code.into();
        }
    }
}

impl<B> Body for GuardedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.inner.as_mut().poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => {
                self.end(Some("error"));
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.end(None);
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Some(limit) = &mut self.limit else { return Poll::Pending };
                ready!(limit.sleep.as_mut().poll(cx));
                let deadline = limit.deadline;
                self.end(Some("timeout"));
                Poll::Ready(Some(Err(Interrupted::Timeout(deadline).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The Status that stands for an overloaded server's response, if that has a `Retry-After` in seconds.
///
/// Overloaded servers often send the header with a body that is no Status; kube drops the header. In a Status, the
/// delay reaches whoever retries.
pub(super) fn overloaded<B>(response: &Response<B>) -> Option<Response<Full<Bytes>>> {
    let code = response.status();
    if ![StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&code) {
        return None;
    }
    let seconds: u32 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(status(code, "the API server is overloaded and asks to retry later", Some(seconds)))
}

/// A response with a Status object of a failure.
pub(super) fn status(
    code: StatusCode,
    message: &str,
    retry_after_seconds: Option<u32>,
) -> Response<Full<Bytes>> {
    // kube tells failures apart by the reason, not by the code.
    let reason = match code.as_u16() {
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
    let mut body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
    });
    if let (Some(seconds), Some(fields)) = (retry_after_seconds, body.as_object_mut()) {
        fields.insert("details".into(), serde_json::json!({"retryAfterSeconds": seconds}));
    }
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
