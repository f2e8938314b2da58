//! The body of an answer, held to the deadline of its call. Nothing is buffered: frames pass as they come.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use tower::BoxError;

use super::{Interrupted, guard::Ticket};

/// A body with a deadline, which also ends the measuring of its call.
pub struct GuardedBody<B> {
    inner: Pin<Box<B>>,
    limit: Option<Limit>,
    ticket: Option<Ticket>,
}

pub(super) struct Limit {
    pub(super) sleep: Pin<Box<Sleep>>,
    pub(super) deadline: Duration,
}

impl<B> GuardedBody<B> {
    pub(super) fn new(inner: B, limit: Option<Limit>, ticket: Option<Ticket>) -> Self {
        Self { inner: Box::pin(inner), limit, ticket }
    }

    fn end(&mut self, code: Option<&'static str>) {
        if let Some(mut ticket) = self.ticket.take()
            && let Some(code) = code
        {
            ticket.code = code.into();
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
