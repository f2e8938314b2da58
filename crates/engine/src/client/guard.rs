//! The layer that every call passes: fence, deadline, fault injection and measurement.

use std::{
    borrow::Cow,
    future::{Future, poll_fn, ready},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header::USER_AGENT};
use http_body::Body as HttpBody;
use http_body_util::{Either, Full};
use kube::client::Body;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tower::{BoxError, Layer, Service};

use super::{
    Call, ClientSettings, Fault, Interrupted,
    faults::EXIT_CODE,
    response::{self, GuardedBody, Limit},
};
use crate::{fence::Fence, intervals::FENCE_CHECK_PERIOD, metrics::Metrics};

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

type GuardedResponse<B> = Response<GuardedBody<Either<B, Full<Bytes>>>>;

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
        let call = Call::of(&request);
        let mut record = CallRecord::new(&rules.settings.metrics, &call);

        if rules.fence(&call).is_some_and(|fence| !fence.is_open()) {
            record.code = "fenced".into();
            return Box::pin(ready(Err(Interrupted::NotLeading.into())));
        }
        let delay = match rules.settings.faults.as_ref().and_then(|faults| faults.before(&call)) {
            None => Duration::ZERO,
            Some(Fault::Delay(delay)) => delay,
            Some(fault) => return Box::pin(ready(rules.finish(&call, record, injected(fault)))),
        };
        request.headers_mut().insert(USER_AGENT, rules.user_agent.clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let result = rules.headers(&call, record.started, delay, response).await;
            rules.finish(&call, record, result)
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
        call: &Call,
        started: Instant,
        delay: Duration,
        response: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<Either<B, Full<Bytes>>>, BoxError> {
        let work = async {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let response = response.await.map_err(Into::into)?;
            if let Some(status) = response::overloaded(&response) {
                return Ok(status.map(Either::Right));
            }
            match self.settings.faults.as_ref().and_then(|faults| faults.after(call)) {
                None => {}
                Some(Fault::Delay(delay)) => sleep(delay).await,
                Some(fault) => return injected(fault),
            }
            Ok(response.map(Either::Left))
        };
        let work = async {
            match self.fence(call) {
                Some(fence) => while_open(fence, work).await,
                None => work.await,
            }
        };
        let deadline = self.settings.deadline;
        timeout_at(started + deadline, work)
            .await
            .unwrap_or_else(|_| Err(Interrupted::Timeout(deadline).into()))
    }

    /// Records the result of the call. The body of a response goes on measuring, except for a stream, which may stay
    /// open for minutes.
    fn finish<B>(
        &self,
        call: &Call,
        mut record: CallRecord,
        result: Result<Response<Either<B, Full<Bytes>>>, BoxError>,
    ) -> Result<GuardedResponse<B>, BoxError> {
        let response = result.inspect_err(|error| record.code = failure_code(error).into())?;
        record.code = response.status().as_str().to_owned().into();
        let (limit, record) = if call.streams {
            (None, None)
        } else {
            let deadline = self.settings.deadline;
            let sleep = Box::pin(sleep_until(record.started + deadline));
            (Some(Limit { sleep, deadline }), Some(record))
        };
        Ok(response.map(|body| GuardedBody::new(body, limit, record)))
    }
}

fn failure_code(error: &BoxError) -> &'static str {
    match error.downcast_ref() {
        Some(Interrupted::Timeout(_)) => "timeout",
        Some(Interrupted::NotLeading | Interrupted::LostLeading) => "fenced",
        Some(Interrupted::Injected) | None => "error",
    }
}

/// The result of a call that a test makes fail.
fn injected<B>(fault: Fault) -> Result<Response<Either<B, Full<Bytes>>>, BoxError> {
    match fault {
        Fault::Error | Fault::Delay(_) => Err(Interrupted::Injected.into()),
        Fault::Status(code) => {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(response::status(code, "injected fault", None).map(Either::Right))
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

/// Measures one call and counts it when dropped, so that a call whose caller gives up is counted as `canceled`.
pub(super) struct CallRecord {
    metrics: Arc<Metrics>,
    call: Call,
    started: Instant,
    pub(super) code: Cow<'static, str>,
}

impl CallRecord {
    fn new(metrics: &Arc<Metrics>, call: &Call) -> Self {
        Self {
            metrics: metrics.clone(),
            call: call.clone(),
            started: Instant::now(),
            code: "canceled".into(),
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let Call { verb, resource, .. } = &self.call;
        self.metrics.api_call(verb.as_str(), resource, &self.code, took);
        let (path, ms) = (self.call.path(), took.as_millis());
        tracing::debug!(%verb, resource, code = %self.code, ms, path, "called the API server");
    }
}
