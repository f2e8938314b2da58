//! The layer that every call passes: names, fence, deadline, fault injection and measurement.
//!
//! A caller gets the response of the server with a body that ends at the deadline of its call. Nothing is buffered:
//! frames are passed on as they arrive. Only a response that is no Status, of an overloaded server, is replaced by one.

use std::{
    borrow::Cow,
    future::{Future, poll_fn, ready},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{Either, Full};
use kube::client::Body;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tower::{BoxError, Layer, Service};

use super::{Call, ClientSettings, EXIT_CODE, Fault, Interrupted, describe, is_gateway_error};
use crate::{
    fence::Fence,
    intervals::{FENCE_CHECK_PERIOD, UNANSWERED_AFTER},
    metrics::Metrics,
    outage::Outage,
};

/// The layer, for a [`kube::client::ClientBuilder`].
#[derive(Clone)]
pub struct Guard {
    rules: Arc<Rules>,
}

struct Rules {
    settings: ClientSettings,
    user_agent: HeaderValue,
}

/// A service wrapped by the layer.
pub struct GuardService<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl Guard {
    /// Creates the layer. Fails if the user agent is not a valid header value.
    pub fn new(settings: ClientSettings) -> kube::Result<Self> {
        let user_agent = HeaderValue::from_str(&settings.user_agent)
            .map_err(|error| kube::Error::HttpError(error.into()))?;
        Ok(Self { rules: Arc::new(Rules { settings, user_agent }) })
    }
}

impl<S> Layer<S> for Guard {
    type Service = GuardService<S>;

    fn layer(&self, inner: S) -> GuardService<S> {
        GuardService { inner, rules: self.rules.clone() }
    }
}

/// The body of the server, or that of a Status in its place.
type AnyBody<B> = Either<B, Full<Bytes>>;
type GuardedResponse<B> = Response<GuardedBody<AnyBody<B>>>;

impl<S, B> Service<Request<Body>> for GuardService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = GuardedResponse<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<GuardedResponse<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let rules = self.rules.clone();
        let record = CallRecord {
            metrics: rules.settings.metrics.clone(),
            outage: rules.settings.outage.clone(),
            call: Call::of(&request),
            started: Instant::now(),
            deadline: rules.settings.deadline,
            code: CANCELED.into(),
        };
        if !record.call.as_meant {
            return Box::pin(ready(record.finish(Err(Interrupted::InvalidName.into()))));
        }
        if rules.fence(&record.call).is_some_and(|fence| !fence.is_open()) {
            return Box::pin(ready(record.finish(Err(Interrupted::NotLeading.into()))));
        }
        let delay = match rules.settings.faults.as_ref().and_then(|faults| faults.before(&record.call)) {
            None => Duration::ZERO,
            Some(Fault::Delay(delay)) => delay,
            Some(fault) => return Box::pin(ready(record.finish(injected(fault)))),
        };
        request.headers_mut().insert(USER_AGENT, rules.user_agent.clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let result = rules.headers(&record, delay, response).await;
            record.finish(result)
        })
    }
}

impl Rules {
    /// The fence that must be open for this call: none for a read.
    fn fence(&self, call: &Call) -> Option<&Fence> {
        self.settings.fence.as_ref().filter(|_| call.writes)
    }

    /// Waits for the headers of the response, within the deadline and while the fence is open.
    async fn headers<B, E: Into<BoxError>>(
        &self,
        record: &CallRecord,
        delay: Duration,
        response: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<AnyBody<B>>, BoxError> {
        let work = async {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let response = response.await.map_err(Into::into)?;
            if let Some(status) = overloaded(&response) {
                return Ok(status.map(Either::Right));
            }
            match self.settings.faults.as_ref().and_then(|faults| faults.after(&record.call)) {
                None => {}
                Some(Fault::Delay(delay)) => sleep(delay).await,
                Some(fault) => return injected(fault),
            }
            Ok(response.map(Either::Left))
        };
        let work = async {
            match self.fence(&record.call) {
                Some(fence) => while_open(fence, work).await,
                None => work.await,
            }
        };
        timeout_at(record.started + record.deadline, work)
            .await
            .unwrap_or_else(|_| Err(Interrupted::Timeout(record.deadline).into()))
    }
}

/// The result of a call that a test makes fail.
fn injected<B>(fault: Fault) -> Result<Response<AnyBody<B>>, BoxError> {
    match fault {
        Fault::Error | Fault::Delay(_) => Err(Interrupted::Injected.into()),
        Fault::Status(code) => {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(status(code, "injected fault", 0).map(Either::Right))
        }
        Fault::Exit => std::process::exit(EXIT_CODE),
    }
}

/// Polls a write only while the fence is open. The check comes before every poll, because a process that was stopped
/// (SIGSTOP, a frozen VM) resumes in the middle of a write, long after its lease ended. Dropping the future then closes
/// the connection, so that bytes that were not sent by then are never sent.
async fn while_open<T>(
    fence: &Fence,
    work: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    let mut work = pin!(work);
    let mut step = poll_fn(|cx| {
        if fence.is_open() {
            work.as_mut().poll(cx)
        } else {
            Poll::Ready(Err(Interrupted::LostLeading.into()))
        }
    });
    loop {
        let next_check = fence.remaining().clamp(Duration::from_millis(1), FENCE_CHECK_PERIOD);
        tokio::select! {
            biased;
            result = &mut step => return result,
            () = sleep(next_check) => {}
        }
    }
}

/// The code of a call whose caller gave up.
const CANCELED: &str = "canceled";

/// Measures one call and counts it when dropped, so that a call whose caller gives up is counted as [`CANCELED`].
struct CallRecord {
    metrics: Arc<Metrics>,
    outage: Outage,
    call: Call,
    started: Instant,
    deadline: Duration,
    code: Cow<'static, str>,
}

impl CallRecord {
    /// Records the result of the call. The body of a response goes on measuring, except for a stream, which may stay
    /// open for minutes.
    fn finish<B>(
        mut self,
        result: Result<Response<AnyBody<B>>, BoxError>,
    ) -> Result<GuardedResponse<B>, BoxError> {
        self.tell(&result);
        let response = result.inspect_err(|error| self.fail(error))?;
        self.code = response.status().as_str().to_owned().into();
        let limit = (!self.call.streams)
            .then(|| Limit { at: Box::pin(sleep_until(self.started + self.deadline)), record: self });
        Ok(response.map(|body| GuardedBody { inner: Box::pin(body), limit }))
    }

    /// Tells whether the server answered. A call that was not sent says nothing about it.
    fn tell<B>(&self, result: &Result<Response<AnyBody<B>>, BoxError>) {
        match result {
            Ok(response) if is_gateway_error(response.status().as_u16()) => {
                self.outage.unanswered(self.started, || format!("the answer is {}", response.status()));
            }
            Ok(_) => self.outage.answered(),
            Err(error) => match error.downcast_ref() {
                None | Some(Interrupted::Timeout(_)) => {
                    self.outage.unanswered(self.started, || describe(error.as_ref()));
                }
                Some(_) => {}
            },
        }
    }

    /// Makes the failure the result of the call.
    fn fail(&mut self, error: &BoxError) {
        self.code = match error.downcast_ref() {
            Some(Interrupted::Timeout(_)) => "timeout",
            Some(Interrupted::NotLeading | Interrupted::LostLeading) => "fenced",
            Some(Interrupted::InvalidName) => "refused",
            Some(Interrupted::Injected) | None => "error",
        }
        .into();
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        if self.code == CANCELED && took >= UNANSWERED_AFTER {
            self.outage.unanswered(self.started, || format!("no response within {} s", took.as_secs()));
        }
        let Call { verb, resource, path, .. } = &self.call;
        self.metrics.api_call(verb, resource, &self.code, took);
        let ms = took.as_millis();
        tracing::debug!(verb, resource, code = %self.code, ms, path, "called the API server");
    }
}

/// A response body with the deadline of its call. The call is measured until the body ends.
pub struct GuardedBody<B> {
    inner: Pin<Box<B>>,
    /// `None` for a stream, and after the end of the body.
    limit: Option<Limit>,
}

struct Limit {
    at: Pin<Box<Sleep>>,
    record: CallRecord,
}

impl<B> HttpBody for GuardedBody<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let error = match self.inner.as_mut().poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => Some(error.into()),
            Poll::Ready(None) => None,
            Poll::Pending => {
                let Some(limit) = &mut self.limit else { return Poll::Pending };
                std::task::ready!(limit.at.as_mut().poll(cx));
                Some(Interrupted::Timeout(limit.record.deadline).into())
            }
        };
        if let (Some(mut limit), Some(error)) = (self.limit.take(), &error) {
            limit.record.fail(error);
        }
        Poll::Ready(error.map(Err))
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
fn overloaded<B>(response: &Response<B>) -> Option<Response<Full<Bytes>>> {
    let code = response.status();
    if ![StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&code) {
        return None;
    }
    let seconds: u32 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(status(code, "the API server is overloaded and asks to retry later", seconds))
}

/// A response with a Status object of a failure. Zero seconds mean that the server does not ask for a delay.
fn status(code: StatusCode, message: &str, retry_after_seconds: u32) -> Response<Full<Bytes>> {
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
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message,
        "details": {"retryAfterSeconds": retry_after_seconds},
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
