//! The client side of the websocket, for tests: plays a daemon or a proxy.

use std::future::poll_fn;

use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, client::IntoClientRequest as _, http::HeaderValue},
};
use tokio_util::{compat::TokioAsyncReadCompatExt as _, task::AbortOnDropHandle};
use yamux::{Config, Connection, Mode, Stream};

use super::{CoderSim, drpc::Wire, wire};

/// A connected client. Dropping it disconnects.
pub(super) struct Client {
    pub(super) wire: Wire<Stream>,
    /// Ends when the server closes the websocket.
    pub(super) carried: AbortOnDropHandle<()>,
    _driven: AbortOnDropHandle<()>,
}

/// Opens a websocket with these headers, or returns how it was refused.
pub(super) async fn dial(
    sim: &CoderSim,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<WebSocketStream<TcpStream>, (u16, Value)> {
    let mut request = format!("ws://{}{path}", sim.address()).into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let stream = TcpStream::connect(sim.address()).await.unwrap();
    match client_async(request, stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            Err((response.status().as_u16(), serde_json::from_slice(&body).unwrap_or_default()))
        }
        Err(other) => panic!("{other}"),
    }
}

impl Client {
    /// Opens a stream and waits until it is acknowledged.
    pub(super) async fn open(socket: WebSocketStream<TcpStream>, call: &str) -> Self {
        let (near, far) = tokio::io::duplex(1024);
        let carried = AbortOnDropHandle::new(tokio::spawn(wire::carry(socket, far)));
        let mut connection = Connection::new(near.compat(), Config::default(), Mode::Client);
        let stream = poll_fn(|cx| connection.poll_new_outbound(cx)).await.unwrap();
        let driven =
            tokio::spawn(
                async move { while poll_fn(|cx| connection.poll_next_inbound(cx)).await.is_some() {} },
            );
        let mut wire = Wire::new(stream);
        wire.send(super::drpc::Kind::Invoke, 1, call.as_bytes()).await.unwrap();
        Self { wire, carried, _driven: AbortOnDropHandle::new(driven) }
    }
}
