//! The layer itself.

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
use http::{HeaderValue, Request, Response, header::USER_AGENT};
use http_body::Body as HttpBody;
use http_body_util::{Either, Full};
use kube::client::Body;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tower::{BoxError, Layer, Service};

use super::{
    Call, Fault, Interrupted, Settings,
    body::{GuardedBody, Limit},
    faults::{self, EXIT_CODE},
    patience,
};
use crate::{fence::Fence, metrics::Metrics};

/// How often a write in flight looks whether the fence was closed by hand.
const LOOK: Duration = Duration::from_millis(250);

/// The layer that every call passes.
#[derive(Clone)]
pub struct Guard {
    rules: Arc<Rules>,
}

struct Rules {
    settings: Settings,
    user_agent: HeaderValue,
}

/// A service behind the layer.
pub struct GuardService<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl Guard {
    /// A layer with these settings. Fails if the user agent cannot be sent as a header.
    pub fn new(settings: Settings) -> kube::Result<Self> {
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

type Answer<B> = Response<GuardedBody<Either<B, Full<Bytes>>>>;

impl<S, B> Service<Request<Body>> for GuardService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let rules = self.rules.clone();
        let call = Call::of(&request);
        let mut ticket = Ticket::new(&rules.settings.metrics, &call);

        if rules.fence(&call).is_some_and(|fence| !fence.is_open()) {
            ticket.code = "fenced".into();
            return Box::pin(ready(Err(Interrupted::NotLeading.into())));
        }
        let delay = match rules.settings.faults.as_ref().and_then(|faults| faults.before(&call)) {
            None => Duration::ZERO,
            Some(Fault::Delay(delay)) => delay,
            Some(fault) => return Box::pin(ready(rules.answer(&call, ticket, instead(fault)))),
        };
        request.headers_mut().insert(USER_AGENT, rules.user_agent.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let result = rules.conduct(&call, ticket.started, delay, answer).await;
            rules.answer(&call, ticket, result)
        })
    }
}

impl Rules {
    /// The fence that holds this call back, if any does.
    fn fence(&self, call: &Call) -> Option<&Fence> {
        self.settings.fence.as_ref().filter(|_| call.writes)
    }

    /// Waits for the headers of the answer, within the deadline and while the fence is open.
    async fn conduct<B, E: Into<BoxError>>(
        &self,
        call: &Call,
        started: Instant,
        delay: Duration,
        answer: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<Either<B, Full<Bytes>>>, BoxError> {
        let work = async {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let response = answer.await.map_err(Into::into)?;
            if let Some(seconds) = patience::asked_for(&response) {
                return Ok(patience::status(response.status(), seconds).map(Either::Right));
            }
            match self.settings.faults.as_ref().and_then(|faults| faults.after(call)) {
                None => {}
                Some(Fault::Delay(delay)) => sleep(delay).await,
                Some(fault) => return instead(fault),
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

    /// Notes how the call ended; if with an answer, hands the measuring on to its body.
    fn answer<B>(
        &self,
        call: &Call,
        mut ticket: Ticket,
        result: Result<Response<Either<B, Full<Bytes>>>, BoxError>,
    ) -> Result<Answer<B>, BoxError> {
        let response = result.inspect_err(|error| ticket.code = failure(error).into())?;
        ticket.code = response.status().as_str().to_owned().into();
        let (limit, ticket) = if call.streams {
            (None, None)
        } else {
            let deadline = self.settings.deadline;
            let sleep = Box::pin(sleep_until(ticket.started + deadline));
            (Some(Limit { sleep, deadline }), Some(ticket))
        };
        Ok(response.map(|body| GuardedBody::new(body, limit, ticket)))
    }
}

fn failure(error: &BoxError) -> &'static str {
    match error.downcast_ref() {
        Some(Interrupted::Timeout(_)) => "timeout",
        Some(Interrupted::NotLeading | Interrupted::LostLeading) => "fenced",
        Some(Interrupted::Injected) | None => "error",
    }
}

/// What the caller gets in place of an answer.
fn instead<B>(fault: Fault) -> Result<Response<Either<B, Full<Bytes>>>, BoxError> {
    match fault {
        Fault::Error | Fault::Delay(_) => Err(Interrupted::Injected.into()),
        Fault::Status(code) => Ok(faults::status(code).map(Either::Right)),
        Fault::Exit => std::process::exit(EXIT_CODE),
    }
}

/// Looks at the fence before every step of a write. Dropping the work closes its connection, so that what
/// was not sent by then never is: a stopped process must not go on with a write when it wakes.
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
        let look = fence.remaining().clamp(Duration::from_millis(1), LOOK);
        tokio::select! {
            biased;
            result = &mut step => return result,
            () = sleep(look) => {}
        }
    }
}

/// Measures one call and counts it when dropped.
pub(super) struct Ticket {
    metrics: Arc<Metrics>,
    call: Call,
    started: Instant,
    pub(super) code: Cow<'static, str>,
}

impl Ticket {
    fn new(metrics: &Arc<Metrics>, call: &Call) -> Self {
        Self {
            metrics: metrics.clone(),
            call: call.clone(),
            started: Instant::now(),
            code: "canceled".into(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let Call { verb, resource, .. } = &self.call;
        self.metrics.api_call(verb.as_str(), resource, &self.code, took);
        let (path, ms) = (self.call.path(), took.as_millis());
        tracing::debug!(%verb, resource, code = %self.code, ms, path, "called the API server");
    }
}
