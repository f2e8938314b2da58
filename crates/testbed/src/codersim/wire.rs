//! A websocket whose binary messages carry yamux, as daemons and proxies open it.

use std::{future::poll_fn, io};

use bytes::BytesMut;
use futures::{AsyncWriteExt as _, SinkExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};
use tokio_util::compat::TokioAsyncReadCompatExt as _;
use yamux::{Config, Connection, Mode, Stream};

use super::message::{Asked, Reply};

const BUFFER: usize = 64 * 1024;

/// Accepts a websocket, or refuses a request that is not for one.
pub(super) fn accept(asked: &Asked) -> Result<Reply, Reply> {
    let has = |name: &str, word: &str| {
        let words = asked.header(name).unwrap_or_default();
        words.split(',').any(|found| found.trim().eq_ignore_ascii_case(word))
    };
    for (name, shown, word) in [("connection", "Connection", "Upgrade"), ("upgrade", "Upgrade", "websocket")]
    {
        if !has(name, word) {
            let found = asked.header(name).unwrap_or_default();
            let text =
                format!("WebSocket protocol violation: {shown} header {found:?} does not contain {word}");
            return Err(Reply::text(426, &text)
                .header("Connection", "Upgrade")
                .header("Upgrade", "websocket"));
        }
    }
    let key = asked.header("sec-websocket-key");
    let key =
        key.ok_or_else(|| Reply::text(400, "WebSocket protocol violation: missing Sec-WebSocket-Key"))?;
    Ok(Reply::empty(101)
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Accept", &derive_accept_key(key.as_bytes())))
}

/// Serves the streams that the client opens, until it disconnects or `over` completes.
pub(super) async fn serve<S, F: Future<Output = io::Result<()>>>(
    socket: WebSocketStream<S>,
    over: impl Future<Output = ()>,
    call: impl Fn(Stream) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (near, far) = tokio::io::duplex(BUFFER);
    let streams = async {
        let mut connection = Connection::new(near.compat(), Config::default(), Mode::Server);
        let mut calls = FuturesUnordered::new();
        tokio::pin!(over);
        loop {
            tokio::select! {
                next = poll_fn(|cx| connection.poll_next_inbound(cx)) => {
                    let Some(Ok(mut stream)) = next else { return };
                    let call = &call;
                    calls.push(async move {
                        // An empty frame acknowledges the stream. The client waits for it, even if nothing is ever answered.
                        let _ = stream.write(&[]).await;
                        let _ = call(stream).await;
                    });
                }
                Some(()) = calls.next() => {}
                () = &mut over => return,
            }
        }
    };
    tokio::join!(streams, carry(socket, far));
}

/// Copies bytes between the messages of a websocket and a pipe, until one of them ends.
pub(super) async fn carry<S: AsyncRead + AsyncWrite + Unpin>(socket: WebSocketStream<S>, pipe: DuplexStream) {
    let (mut sink, mut messages) = socket.split();
    let (mut from, mut to) = tokio::io::split(pipe);
    let incoming = async {
        while let Some(Ok(message)) = messages.next().await {
            match message {
                Message::Binary(bytes) if to.write_all(&bytes).await.is_err() => return,
                Message::Close(_) => return,
                _ => {}
            }
        }
    };
    let outgoing = async {
        let mut buffer = BytesMut::with_capacity(BUFFER);
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            if sink.send(Message::Binary(buffer.split().freeze())).await.is_err() {
                return;
            }
        }
        let frame = CloseFrame { code: CloseCode::Away, reason: "".into() };
        let _ = sink.send(Message::Close(Some(frame))).await;
    };
    tokio::select! {
        () = incoming => {}
        () = outgoing => {}
    }
}
