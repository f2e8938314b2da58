//! A connection that delivers a bounded number of bytes.
//!
//! The driver holds every message of the server as a whole, and the rows of an answer until they are read, so a server that
//! streams would decide how much memory the operator needs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::intervals::MAX_DATABASE_BYTES;

/// Whether the server sent more than it may. The driver itself only says that the connection is closed.
#[derive(Clone, Default)]
pub(super) struct Excess(Arc<AtomicBool>);

impl Excess {
    pub(super) fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that fails after [`MAX_DATABASE_BYTES`] were read. Writes are not limited.
pub(super) struct Limited<S> {
    inner: S,
    left: usize,
    excess: Excess,
}

impl<S> Limited<S> {
    pub(super) fn new(inner: S, excess: Excess) -> Self {
        Self { inner, left: MAX_DATABASE_BYTES, excess }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let Some(left) = self.left.checked_sub(buf.filled().len() - before) else {
            self.excess.0.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
        };
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
